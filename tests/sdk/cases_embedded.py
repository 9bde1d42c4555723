"""Cases against the gateway's simulated upstream, 2 s and 5 s: as it starts without a configuration, and for
models that fail behind a gateway in which no other stands in for them."""

import expect
from client import Seen
from runner import case
from sdks import CALLERS, EACH_ANTHROPIC, EACH_OPENAI

TEXT = "Hello from the simulated upstream."
USAGE = (9, 6)
SLOW_TEXT = "".join(f"{number} " for number in range(1, 21))
FIRST = "Hello from the"


@case("healthy, unary", over=CALLERS)
def healthy_unary(context, dialect):
    text, usage = context.embedded.ask(dialect, "sim-healthy", context.prompt)

    expect.equal(text, TEXT)
    expect.equal(usage, USAGE)
    expect.one_request(context.embedded)


@case("healthy, streaming", over=CALLERS)
def healthy_stream(context, dialect):
    seen = context.embedded.stream(dialect, "sim-healthy", context.prompt)

    expect.equal(seen.deltas, ["Hello", " from", " the", " simulated", " upstream", "."])
    expect.equal(seen.usage, USAGE)
    assert seen.run_id, "no x-run-id"
    expect.one_request(context.embedded)


@case("healthy, the SDK's own accumulating stream", over=CALLERS)
def healthy_helper(context, dialect):
    text, usage = context.embedded.accumulate(dialect, "sim-healthy", context.prompt)

    expect.equal(text, TEXT)
    expect.equal(usage, USAGE)
    expect.one_request(context.embedded)


# covers: H1
@case("models.list()", over=EACH_OPENAI)
def models(context, _dialect):
    models = context.embedded.models()

    assert models, "no models"
    assert all(kind == "model" for kind, _ in models), models
    expect.one_request(context.embedded)


# covers: H1
@case("embeddings.create()", over=EACH_OPENAI)
def embeddings(context, _dialect):
    vectors, tokens = context.embedded.embeddings("sim-healthy", ["one", "two"])

    expect.equal(vectors, [[0.5, -0.25, 0.125, 0.0]] * 2)
    expect.equal(tokens, 18)
    expect.one_request(context.embedded)


# covers: H1
@case("messages.count_tokens()", over=EACH_ANTHROPIC)
def count_tokens(context, _dialect):
    expect.equal(context.embedded.count_tokens("sim-healthy", context.prompt), 9)
    expect.one_request(context.embedded)


@case("slow but alive, ten times the window, streaming", over=CALLERS)
def slow_stream(context, dialect):
    seen = context.embedded.stream(dialect, "sim-slow", context.prompt)

    expect.equal(seen.text, SLOW_TEXT)
    expect.equal(seen.usage, (9, 20))
    expect.one_request(context.embedded)


@case("slow but alive, longer than the step window, unary", over=CALLERS)
def slow_unary(context, dialect):
    text, _ = context.embedded.ask(dialect, "sim-slow", context.prompt)

    expect.equal(text, SLOW_TEXT)
    expect.one_request(context.embedded)


@case("silence before the head, unary", over=CALLERS)
def stall_head_unary(context, dialect):
    raised = expect.reason(
        lambda: context.alone("stall-head").ask(dialect, "sim-stall-head", context.prompt), "step_timeout"
    )

    expect.equal(raised.status, 504)
    expect.equal(raised.headers["x-terminal-reason"], "step_timeout")
    expect.equal(raised.headers["x-should-retry"], "false")
    expect.one_request(context.alone("stall-head"))


@case("silence before the head, streaming", over=CALLERS)
def stall_head_stream(context, dialect):
    raised = expect.reason(
        lambda: context.alone("stall-head").stream(dialect, "sim-stall-head", context.prompt), "step_timeout"
    )

    expect.equal(raised.status, 504)
    expect.one_request(context.alone("stall-head"))


@case("silence mid-stream", over=CALLERS)
def stall_stream(context, dialect):
    seen = Seen()

    expect.reason(
        lambda: context.alone("stall-stream").stream(dialect, "sim-stall-stream", context.prompt, seen), "step_timeout"
    )

    expect.equal(seen.text, FIRST)
    expect.one_request(context.alone("stall-stream"))


@case("pings only", over=CALLERS)
def pings(context, dialect):
    seen = Seen()

    expect.reason(lambda: context.alone("ping").stream(dialect, "sim-ping", context.prompt, seen), "step_timeout")

    expect.equal(seen.text, "")
    expect.one_request(context.alone("ping"))


@case("a stream that is cut cleanly", over=CALLERS)
def cut_stream(context, dialect):
    seen = Seen()

    expect.reason(lambda: context.alone("cut").stream(dialect, "sim-cut", context.prompt, seen), "upstream_failed")

    expect.equal(seen.text, FIRST)
    expect.one_request(context.alone("cut"))


# No reason caused it, so the SDKs may retry it, and requests are not counted.
@case("an answer that is cut mid-body, unary", over=CALLERS)
def cut_unary(context, dialect):
    raised = expect.reason(lambda: context.alone("cut").ask(dialect, "sim-cut", context.prompt), "upstream_failed")

    expect.equal(raised.status, 502)


@case("silence mid-body, unary", over=CALLERS)
def stall_unary(context, dialect):
    raised = expect.reason(
        lambda: context.alone("stall-stream").ask(dialect, "sim-stall-stream", context.prompt), "step_timeout"
    )

    # The gateway must have ended it, not this caller's patience.
    expect.equal(raised.status, 504)
    expect.one_request(context.alone("stall-stream"))
