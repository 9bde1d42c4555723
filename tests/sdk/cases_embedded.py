"""Cases against the gateway as it starts without a configuration: simulated upstream, 2 s and 5 s."""

import httpx2

import dialects
import expect
from client import SDK_ERRORS
from runner import case

TEXT = "Hello from the simulated upstream."
USAGE = (9, 6)
SLOW_TEXT = "".join(f"{number} " for number in range(1, 21))
FIRST = "Hello from the"


@case("healthy, unary", over=dialects.DIALECTS)
def healthy_unary(context, dialect):
    text, usage = context.embedded.ask(dialect, "sim-healthy", context.prompt)

    expect.equal(text, TEXT)
    expect.equal(usage, USAGE)
    expect.one_request(context.embedded)


@case("healthy, streaming", over=dialects.DIALECTS)
def healthy_stream(context, dialect):
    seen = context.embedded.stream(dialect, "sim-healthy", context.prompt)

    expect.equal(seen.deltas, ["Hello", " from", " the", " simulated", " upstream", "."])
    expect.equal(seen.usage, USAGE)
    assert seen.run_id, "no x-run-id"
    expect.one_request(context.embedded)


@case("healthy, the SDK's own accumulating stream", over=dialects.DIALECTS)
def healthy_helper(context, dialect):
    text, usage = dialect.helper(context.embedded, "sim-healthy", context.prompt)

    expect.equal(text, TEXT)
    expect.equal(usage, USAGE)
    expect.one_request(context.embedded)


@case("models.list()")
def models(context):
    models = context.embedded.openai.models.list().data

    assert models, "no models"
    assert all(model.object == "model" for model in models), models
    expect.one_request(context.embedded)


@case("embeddings.create()")
def embeddings(context):
    answer = context.embedded.openai.embeddings.create(model="sim-healthy", input=["one", "two"])

    expect.equal([item.embedding for item in answer.data], [[0.5, -0.25, 0.125, 0.0]] * 2)
    expect.equal(answer.usage.total_tokens, 18)
    expect.one_request(context.embedded)


@case("messages.count_tokens()")
def count_tokens(context):
    messages = [{"role": "user", "content": context.prompt}]

    answer = context.embedded.anthropic.messages.count_tokens(model="sim-healthy", messages=messages)

    expect.equal(answer.input_tokens, 9)
    expect.one_request(context.embedded)


@case("slow but alive, ten times the window, streaming", over=dialects.DIALECTS)
def slow_stream(context, dialect):
    seen = context.embedded.stream(dialect, "sim-slow", context.prompt)

    expect.equal(seen.text, SLOW_TEXT)
    expect.equal(seen.usage, (9, 20))
    expect.one_request(context.embedded)


@case("slow but alive, longer than the step window, unary", over=dialects.DIALECTS)
def slow_unary(context, dialect):
    text, _ = context.embedded.ask(dialect, "sim-slow", context.prompt)

    expect.equal(text, SLOW_TEXT)
    expect.one_request(context.embedded)


@case("silence before the head, unary", over=dialects.DIALECTS)
def stall_head_unary(context, dialect):
    raised = expect.reason(
        lambda: context.embedded.ask(dialect, "sim-stall-head", context.prompt), "step_timeout"
    )

    expect.equal(raised.status_code, 504)
    expect.equal(raised.response.headers["x-terminal-reason"], "step_timeout")
    expect.equal(raised.response.headers["x-should-retry"], "false")
    expect.one_request(context.embedded)


@case("silence before the head, streaming", over=dialects.DIALECTS)
def stall_head_stream(context, dialect):
    raised = expect.reason(
        lambda: context.embedded.stream(dialect, "sim-stall-head", context.prompt), "step_timeout"
    )

    expect.equal(raised.status_code, 504)
    expect.one_request(context.embedded)


@case("silence mid-stream", over=dialects.DIALECTS)
def stall_stream(context, dialect):
    seen = dialects.Seen()

    expect.reason(
        lambda: context.embedded.stream(dialect, "sim-stall-stream", context.prompt, seen), "step_timeout"
    )

    expect.equal(seen.text, FIRST)
    expect.one_request(context.embedded)


@case("pings only", over=dialects.DIALECTS)
def pings(context, dialect):
    seen = dialects.Seen()

    expect.reason(lambda: context.embedded.stream(dialect, "sim-ping", context.prompt, seen), "step_timeout")

    expect.equal(seen.text, "")
    expect.one_request(context.embedded)


@case("a stream that is cut cleanly", over=dialects.DIALECTS)
def cut_stream(context, dialect):
    seen = dialects.Seen()

    expect.reason(lambda: context.embedded.stream(dialect, "sim-cut", context.prompt, seen), "upstream_failed")

    expect.equal(seen.text, FIRST)
    expect.one_request(context.embedded)


# The SDKs retry a broken unary answer by themselves, so requests are not counted.
@case("an answer that is cut mid-body, unary", over=dialects.DIALECTS)
def cut_unary(context, dialect):
    expect.error(lambda: context.embedded.ask(dialect, "sim-cut", context.prompt), kinds=SDK_ERRORS)


@case("silence mid-body, unary", over=dialects.DIALECTS)
def stall_unary(context, dialect):
    raised = expect.error(lambda: context.embedded.ask(dialect, "sim-stall-stream", context.prompt))

    # The gateway must have ended it, not this caller's patience.
    cause = raised
    while cause is not None:
        assert not isinstance(cause, httpx2.TimeoutException), f"the caller gave up first: {raised!r}"
        cause = cause.__cause__
