"""Why a stream that must end early ends as it does: what each SDK makes of every way to do it, straight
from the scripted upstream, and the same through the gateway. If a new SDK changes its mind, we want to
know.

One good delta comes first; it is always shown.

covers: T89, T91
"""

import json
import re

import expect
import sdks
from client import Seen
from runner import case
from sdks import CALLERS
from upstream import PATIENCE

MODEL = "scripted"
DELTA = "So far, "
MESSAGE = "upstream is melting"

NESTED = {"type": "melted", "code": "melted", "message": MESSAGE, "param": None}
FLAT = {"type": "error", "code": "melted", "message": MESSAGE, "param": None, "sequence_number": 9}


def frame(value, name=None):
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(value)}\n\n".encode()


def failed_response():
    response = {"id": "resp_1", "object": "response", "created_at": 1, "status": "failed", "model": "scripted"}
    error = {"code": "server_error", "message": MESSAGE}
    rest = {"incomplete_details": None, "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"type": "response.failed", "sequence_number": 9, "response": {**response, **rest, "error": error}}


class Ending:
    """How a stream ends early: a frame before a clean end, or `None` and an end of the transport.
    `raised_by` picks those whose SDK raises; the others take what came for the whole answer, or show an
    event if it is of their dialect: `shown_in`. `dialects` are those that can have it at all."""

    def __init__(
        self, name, data, raised_by, finish=lambda exchange: exchange.end(), shown_in=None, dialects=None
    ):
        self.name = name
        self.data = data
        self.raised_by = raised_by
        self.finish = finish
        self.shown_in = shown_in
        self.dialects = dialects

    def play(self, exchange):
        exchange.sse(exchange.dialect.prelude(), exchange.dialect.delta(DELTA))
        if self.data:
            exchange.send(self.data)
        self.finish(exchange)

    @property
    def event(self):
        return re.match(rb"event: (\S+)", self.data).group(1).decode()

    def callers(self):
        return [caller for caller in CALLERS if not self.dialects or caller.dialect.name in self.dialects]


def openai(caller):
    return caller.dialect.name != "messages"


def everybody(_caller):
    return True


def nobody(_caller):
    return False


def anthropic_and_newest_node(caller):
    """OpenAI's SDK for Python shows an error event that is flat as an event, as version 6 for Node did."""
    return caller.sdk in (sdks.ANTHROPIC_PYTHON, sdks.ANTHROPIC_NODE, sdks.OPENAI_NODE)


# Upstream's own word, which the gateway hands on as it is.
OWN = [
    Ending("`data: {error: {..}}`", frame({"error": NESTED}), openai),
    Ending("`event: error`, flat", frame(FLAT, "error"), anthropic_and_newest_node, shown_in="responses"),
    Ending("`event: response.failed`", frame(failed_response(), "response.failed"), nobody, shown_in="responses", dialects=["responses"]),
    Ending("`event: error`, nested", frame({"type": "error", "error": NESTED}, "error"), everybody),
    Ending("nested, without `event:`", frame({"type": "error", "error": NESTED}), openai),
    Ending("`event: error`, nested and flat", frame({**FLAT, "error": NESTED}, "error"), everybody),
]

# What only the transport says, which the gateway says in words.
CUTS = [
    Ending("clean end without a terminator", None, nobody),
    Ending("end without the last chunk", None, everybody, finish=lambda exchange: exchange.shown.wait(PATIENCE)),
    Ending("TCP reset", None, everybody, finish=lambda exchange: exchange.reset()),
]


def over_endings(endings):
    """Registers a case for each of the endings, for each caller that may meet it."""

    def register(function):
        for ending in endings:

            def of_ending(context, dialect, ending=ending):
                function(context, dialect, ending)

            of_ending.__module__ = function.__module__
            case(f"{function.__doc__}: {ending.name}", over=ending.callers())(of_ending)
        return function

    return register


def listen(context, client, dialect, seen):
    """Reads the stream to its end, and tells upstream when the delta was shown."""
    stream = client.stream(dialect, MODEL, context.prompt, seen, until=1)
    context.upstream.wait(context.key).shown.set()
    stream.read()


def read(context, client, dialect, ending, raises):
    """Reads the stream; the SDK must raise what upstream said, or show it if it is of the dialect."""
    context.play(ending.play)
    seen = Seen()
    if raises:
        raised = expect.error(lambda: listen(context, client, dialect, seen))
        assert not ending.data or MESSAGE in raised.message, raised
    else:
        listen(context, client, dialect, seen)
    expect.equal(seen.text, DELTA)
    shown = not raises and ending.shown_in == dialect.name
    expect.equal([event for event in seen.events if event in ("error", "response.failed")], [ending.event] if shown else [])
    expect.one_request(client, context.upstream.seen(context.key))


@over_endings(OWN + CUTS)
def straight(context, dialect, ending):
    """without a gateway"""
    read(context, context.direct, dialect, ending, raises=ending.raised_by(context.caller))


@over_endings(OWN)
def own_word(context, dialect, ending):
    """upstream's own word, through the gateway"""
    raises = ending.raised_by(context.caller)
    # What its SDK would not hear, the gateway says once more.
    read(context, context.scripted, dialect, ending, raises or ending.shown_in != dialect.name)


@over_endings(CUTS)
def cut(context, dialect, ending):
    """through the gateway"""
    context.play(ending.play)
    seen = Seen()

    expect.reason(lambda: listen(context, context.scripted, dialect, seen), "upstream_failed")

    expect.equal(seen.text, DELTA)
    expect.one_request(context.scripted, context.upstream.seen(context.key))
