"""Streams of upstreams that keep to no specification, first straight from the scripted upstream, then through
the gateway. `not whole` is an end without all text and tokens.

covers: H2
"""

import time
from contextlib import nullcontext

import dialects
import expect
from cases_scripted import DELTAS, MODEL, TEXT, USAGE, deltas, whole_stream
from runner import case
from sdks import CALLERS, OPENAI_NODE, OPENAI_NODE_6

CHAT, RESPONSES, MESSAGES = dialects.DIALECTS
WHOLE = (TEXT, USAGE)
# How soon the end of a whole answer must come although its body stays open, in seconds.
OPEN = 3


def unterminated(dialect):
    return dialect.prelude() + dialect.opening() + deltas(dialect) + dialect.unterminated(DELTAS)


# By what is wrong: the stream's bytes, and its content type.
ODD = {
    "under `text/plain`": (whole_stream, "text/plain; charset=utf-8"),
    "under `application/json`": (whole_stream, "application/json"),
    "without its last blank line": (lambda dialect: whole_stream(dialect)[:-1], "text/event-stream"),
    "without its last line end": (lambda dialect: whole_stream(dialect)[:-2], "text/event-stream"),
    "without its terminator, or with `response.done` in place of it": (unterminated, "text/event-stream"),
}


def over_odd(register):
    for name, (data, content_type) in ODD.items():
        register(name, data, content_type)
    return register


def play(context, dialect, data, content_type):
    def script(exchange):
        exchange.sse(data(dialect), content_type=content_type)
        exchange.end()

    context.play(script)


@over_odd
def straight(name, data, content_type):
    @case(f"without a gateway: {name}", over=CALLERS)
    def of_name(context, dialect):
        play(context, dialect, data, content_type)
        seen = context.direct.stream(dialect, MODEL, context.prompt)
        context.outcome = "ends" if (seen.text, seen.usage) == WHOLE else "not whole"


@over_odd
def through(name, data, content_type):
    @case(f"through the gateway: {name}", over=CALLERS)
    def of_name(context, dialect):
        play(context, dialect, data, content_type)

        seen = context.scripted.stream(dialect, MODEL, context.prompt)

        expect.equal((seen.text, seen.usage), WHOLE)
        expect.one_request(context.scripted, context.upstream.seen(context.key))


@over_odd
def accumulating(name, data, content_type):
    @case(f"through the gateway, the SDK's own accumulating stream: {name}", over=CALLERS)
    def of_name(context, dialect):
        play(context, dialect, data, content_type)

        expect.equal(context.scripted.accumulate(dialect, MODEL, context.prompt), WHOLE)

        expect.one_request(context.scripted, context.upstream.seen(context.key))


def stays_open(context, dialect, data):
    def script(exchange):
        # Before it is sent: a client may be done before this thread goes on.
        sent.append(time.monotonic())
        exchange.sse(data)
        exchange.silence()

    sent = []
    context.play(script)

    seen = context.patient.stream(dialect, MODEL, context.prompt)

    took = time.monotonic() - sent[0]
    assert took < OPEN, f"the stream ended {took:.1f} s after its last event"
    expect.equal((seen.text, seen.usage), WHOLE)
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(context.patient, exchanges)


@case("a whole answer whose body stays open", over=CALLERS)
def open_body(context, dialect):
    stays_open(context, dialect, whole_stream(dialect))


@case("a whole answer without a terminator whose body stays open", over=CALLERS)
def open_unterminated(context, dialect):
    stays_open(context, dialect, unterminated(dialect))


SLOW_DOWN = "Rate limit reached for requests"
LIMITED = {
    CHAT: {"error": {"message": SLOW_DOWN, "type": "requests", "param": None, "code": "rate_limit_exceeded"}},
    RESPONSES: {"type": "error", "sequence_number": 0, "code": "rate_limit_exceeded", "message": SLOW_DOWN, "param": None},
    MESSAGES: {"type": "error", "error": {"type": "rate_limit_error", "message": SLOW_DOWN}},
}


def limited(exchange):
    exchange.sse(dialects.event(LIMITED[exchange.dialect], named=exchange.dialect is not CHAT))
    exchange.end()


@case("a first event that says 429", over=CALLERS)
def limited_always(context, dialect):
    """It is raised by its status, and the SDK tries again as after any 429."""
    client, _ = context.start("scripted")
    context.play(limited)

    raised = expect.error(lambda: client.stream(dialect, MODEL, context.prompt), SLOW_DOWN)

    expect.equal(raised.kind, "RateLimitError")
    expect.equal(raised.status, 429)
    expect.equal(client.sent, 3)


@case("a first event that says 429, once", over=CALLERS)
def limited_once(context, dialect):
    def script(exchange):
        if len(context.upstream.seen(context.key)) == 1:
            return limited(exchange)
        exchange.sse(whole_stream(dialect))
        exchange.end()

    client, _ = context.start("scripted")
    context.play(script)

    seen = client.stream(dialect, MODEL, context.prompt)

    expect.equal((seen.text, seen.usage), WHOLE)
    expect.equal(len(context.upstream.seen(context.key)), 2)
