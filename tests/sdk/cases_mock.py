"""The gateway in front of an upstream that this project did not write: the mock server aimock, healthy and
with its own fault injection. Where another candidate may stand in, the SDK gets its answer; where none
does, it is told why, but for JSON that is broken under 200: a last answer is the upstream's own, handed on
byte for byte, and an SDK that asked for a stream finds no event in it and raises nothing.

covers: T95
"""

import json

import expect
from client import Seen
from runner import case
from sdks import CALLERS

TEXT = "Hello from a mock that somebody else wrote."
# What is said until a fault, and never in place of the healthy one's text.
FAULTY_TEXT = "So far a faulty mock got, and it should not have got to these last words."
HEALTHY = "mock-healthy"

# Pieces of so many characters, of which the first eight hold text in every dialect.
CHUNK = 5
QUICK, NEVER = 20, 60_000

# What aimock does, by the model that it is asked for. Rates of 1 are always.
FAULTS = {
    "mock-429": {"chaos": {"rateLimitRate": 1}},
    "mock-500": {"chaos": {"dropRate": 1}},
    "mock-malformed": {"chaos": {"malformedRate": 1}},
    "mock-disconnect": {"chaos": {"disconnectRate": 1}},
    "mock-hang": {"chaos": {"latencyMs": 30_000}},
    # Streams alone; what is not streamed is healthy. The pauses let out what was said before.
    "mock-cut-early": {"truncateAfterChunks": 1, "latency": QUICK},
    "mock-cut": {"truncateAfterChunks": 8, "latency": QUICK},
    "mock-stall": {"recordedTimings": {"ttftMs": 1, "interChunkDelaysMs": [1] * 7 + [NEVER], "totalDurationMs": NEVER}},
}

# What a sole candidate's fault is raised as: a word that says why, and the requests that the SDK makes.
BEFORE_HEAD = {
    "mock-429": ("rate limit exceeded", 3),
    "mock-500": ("request dropped", 3),
    "mock-disconnect": ("upstream_failed", 3),
    # Half a JSON document under 200, which the gateway hands to nobody.
    "mock-malformed": ("upstream_failed", 3),
    "mock-hang": ("step_timeout", 1),
}
MID_STREAM = {"mock-cut": "upstream_failed", "mock-stall": "step_timeout"}


def fixtures(names):
    """A file that aimock reads."""
    return json.dumps({"fixtures": [fixture(name) for name in names]})


def fixture(name):
    response = {"content": FAULTY_TEXT if name in FAULTS else TEXT}
    return {"match": {"model": name}, "response": response, "chunkSize": CHUNK, **FAULTS.get(name, {})}


def over_faults(faults):
    def register(function):
        for fault in faults:

            def of_fault(context, dialect, fault=fault):
                function(context, dialect, fault)

            of_fault.__module__ = function.__module__
            case(f"{function.__doc__}: {fault.removeprefix('mock-')}", over=CALLERS)(of_fault)
        return function

    return register


@case("aimock, healthy, unary", over=CALLERS)
def healthy_unary(context, dialect):
    text, _ = context.mock.ask(dialect, HEALTHY, context.prompt)

    expect.equal(text, TEXT)
    expect.one_request(context.mock)


@case("aimock, healthy, streaming", over=CALLERS)
def healthy_stream(context, dialect):
    seen = context.mock.stream(dialect, HEALTHY, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.equal(seen.headers["x-served-model"], HEALTHY)
    expect.one_request(context.mock)


@over_faults(["mock-429", "mock-500", "mock-disconnect", "mock-malformed", "mock-hang"])
def served_unary(context, dialect, fault):
    """aimock, another serves, unary"""
    text, _ = context.mock.ask(dialect, fault, context.prompt)

    expect.equal(text, TEXT)
    expect.one_request(context.mock)


@over_faults(["mock-429", "mock-500", "mock-disconnect", "mock-malformed", "mock-hang", "mock-cut-early"])
def served_stream(context, dialect, fault):
    """aimock, another serves, streaming"""
    seen = context.mock.stream(dialect, fault, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.equal(seen.headers["x-served-model"], HEALTHY)
    expect.one_request(context.mock)


@over_faults(BEFORE_HEAD)
def alone_unary(context, dialect, fault):
    """aimock, a sole candidate, unary"""
    told_before_head(context, dialect, fault, context.alone(fault).ask)


@over_faults(BEFORE_HEAD)
def alone_stream(context, dialect, fault):
    """aimock, a sole candidate, streaming"""
    told_before_head(context, dialect, fault, context.alone(fault).stream)


def told_before_head(context, dialect, fault, call):
    word, requests = BEFORE_HEAD[fault]
    expect.error(lambda: call(dialect, fault, context.prompt), word)
    expect.equal(context.alone(fault).sent, requests)


@over_faults(MID_STREAM)
def mid_stream(context, dialect, fault):
    """aimock, a sole candidate, mid-stream"""
    cut_mid_stream(context, dialect, fault, context.alone(fault))


# What was said cannot be taken back.
@over_faults(MID_STREAM)
def committed(context, dialect, fault):
    """aimock, another might serve, mid-stream"""
    cut_mid_stream(context, dialect, fault, context.mock)


def cut_mid_stream(context, dialect, fault, client):
    seen = Seen()

    expect.reason(lambda: client.stream(dialect, fault, context.prompt, seen), MID_STREAM[fault])

    assert FAULTY_TEXT.startswith(seen.text) and 0 < len(seen.text) < len(FAULTY_TEXT), seen.text
    expect.one_request(client)
