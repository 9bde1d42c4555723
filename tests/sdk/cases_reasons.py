"""Every terminal reason as each SDK raises it, from `server/`, whose runs end for the reason that it is
asked for: before the head of an answer, and after the first delta of a stream.

covers: B2, H2, T92
"""

import pathlib
import re

import expect
from client import Seen
from runner import case
from sdks import CALLERS

SOURCE = pathlib.Path(__file__).parents[2] / "src/run/reason.rs"
DELTA = "So far, "

# The wire names, and the status of an answer of which nothing was sent yet.
STATUS = {
    "completed": 499,
    "upstream_failed": 502,
    "step_timeout": 504,
    "slow": 504,
    "max_turn_time": 504,
    "timeout": 504,
    "client_disconnect": 499,
    "aborted": 499,
    "superseded": 422,
    "shutdown": 503,
    "turn_cap_reached": 422,
    "token_cap_reached": 422,
    "retry_budget_exceeded": 422,
    "per_dispatch_errors_exceeded": 422,
    "consecutive_errors": 422,
    "loop_detected": 422,
    "stuck": 422,
    "idle_circuit_open": 422,
    # Of a program's own.
    "budget_of_the_day": 422,
    "maintenance": 503,
}

# Worth a try elsewhere, or nobody's reason: SDKs try twice more.
TRIED_AGAIN = ["shutdown", "upstream_failed"]


def over_reasons(function):
    """Registers a case for each reason, for each caller."""
    for name in STATUS:

        def of_reason(context, dialect, name=name):
            function(context, dialect, name)

        of_reason.__module__ = function.__module__
        case(f"{function.__doc__}: `{name}`", over=CALLERS)(of_reason)
    return function


def declared():
    """The variants in the source of the crate."""
    found = re.search(r"pub enum TerminalReason \{\n(.*?)\n\}", SOURCE.read_text(), re.DOTALL)
    return re.findall(r"^    (\w+)", found.group(1), re.MULTILINE)


# covers: T93
@case("the reasons that are played are all that there are")
def all_reasons(context):
    listed = context.reasons.raw.get(f"{context.reasons.url}/reasons").json()

    expect.equal({reason["variant"] for reason in listed}, set(declared()))
    expect.equal(sorted(reason["name"] for reason in listed), sorted(STATUS))


@over_reasons
def unary(context, dialect, name):
    """before the head, unary"""
    before_head(context, dialect, name, context.reasons.ask)


@over_reasons
def streaming(context, dialect, name):
    """before the head, streaming"""
    before_head(context, dialect, name, context.reasons.stream)


def before_head(context, dialect, name, call):
    raised = expect.reason(lambda: call(dialect, name, context.prompt), name)

    expect.equal(raised.status, STATUS[name])
    headers = raised.headers
    # No reason of ours caused it, so the headers say nothing of one.
    ours = name != "upstream_failed"
    expect.equal(headers.get("x-terminal-reason"), name if ours else None)
    retry = "true" if name == "shutdown" else "false"
    expect.equal(headers.get("x-should-retry"), retry if ours else None)
    assert headers["x-run-id"], headers
    expect.equal(shape(raised.error), BODY[dialect.name == "messages"])
    expect.equal(context.reasons.sent, 3 if name in TRIED_AGAIN else 1)


# What the SDKs hand out of an error's body: OpenAI's the error itself, Anthropic's all of it.
BODY = [{"message", "type", "code", "param"}, {"type", "error.type", "error.message"}]


def shape(body):
    """The keys of an object and of what is in it."""
    keys = set()
    for key, value in body.items():
        keys |= {f"{key}.{inner}" for inner in value} if isinstance(value, dict) else {key}
    return keys


@over_reasons
def mid_stream(context, dialect, name):
    """mid-stream"""
    client = context.reasons
    seen = Seen()
    stream = client.stream(dialect, "stream", context.prompt, seen, until=1)

    ended = client.raw.post(f"{client.url}/runs/{seen.run_id}/end/{name}")

    expect.equal(ended.json(), True)
    expect.reason(stream.read, name)
    expect.equal(seen.text, DELTA)
    expect.one_request(client)
