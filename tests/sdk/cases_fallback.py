"""Cases in which the first candidate fails before its first content, and what an SDK notices of it.

covers: T90
"""

import expect
from cases_embedded import TEXT, USAGE
from client import Seen
from runner import case
from sdks import CALLERS

SERVED = "sim-healthy"


def raw(dialect, model, context):
    """The same call by hand: what served it, and how often it was tried."""
    url = f"{context.embedded.url}/v1/{dialect.operation}"
    answer = context.embedded.raw.post(url, json=dialect.request(model, context.prompt))
    return answer.headers["x-served-model"], answer.headers["x-attempt"]


def over_models(*models):
    """Registers a case for each model in each dialect."""

    def register(function):
        for model in models:

            def of_model(context, dialect, model=model):
                function(context, dialect, model)

            case(f"{function.__doc__} ({model})", over=CALLERS)(of_model)
        return function

    return register


@over_models("sim-failing", "sim-overloaded", "sim-overloaded-stream", "sim-rate-limited", "sim-rate-limited-long")
def unary(context, dialect, model):
    """another model serves, unary"""
    text, usage = context.embedded.ask(dialect, model, context.prompt)

    expect.equal(text, TEXT)
    expect.equal(usage, USAGE)
    expect.one_request(context.embedded)
    # Asked once: who asks for a wait, and who is overloaded.
    once = model.startswith(("sim-rate-limited", "sim-overloaded"))
    attempts = "2" if once else "3"
    expect.equal(raw(dialect, model, context), (SERVED, attempts))


@over_models("sim-failing", "sim-overloaded", "sim-overloaded-stream", "sim-rate-limited", "sim-rate-limited-long", "sim-ping")
def streaming(context, dialect, model):
    """another model serves, streaming"""
    seen = context.embedded.stream(dialect, model, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.equal(seen.usage, USAGE)
    expect.equal(seen.headers["x-served-model"], SERVED)
    expect.one_request(context.embedded)


@case("another model serves after the window, unary, slow", over=CALLERS)
def silent_unary(context, dialect):
    text, _ = context.embedded.ask(dialect, "sim-stall-head", context.prompt)

    expect.equal(text, TEXT)
    expect.one_request(context.embedded)


@case("another model serves after the window, streaming, slow", over=CALLERS)
def silent_stream(context, dialect):
    seen = context.embedded.stream(dialect, "sim-stall-head", context.prompt)

    expect.equal(seen.text, TEXT)
    expect.one_request(context.embedded)


@case("the caller's fault is raised once, as the upstream said it", over=CALLERS)
def refused(context, dialect):
    raised = expect.error(lambda: context.embedded.ask(dialect, "sim-refusing", context.prompt))

    expect.equal(raised.status, 400)
    expect.equal(raised.headers["x-served-model"], "sim-refusing")
    expect.equal(raised.type, "invalid_request_error")
    expect.one_request(context.embedded)


# Nothing forbids the SDKs to retry these, so requests are not counted.
def last_answer(context, dialect, name, stream, status, kind, word):
    """The last candidate's own status and body are raised."""
    client = context.alone(name)
    call = client.stream if stream else client.ask
    raised = expect.error(lambda: call(dialect, "sim-failing", context.prompt), word)

    expect.equal(raised.status, status)
    expect.equal(raised.headers.get("x-terminal-reason"), None)
    expect.equal(raised.type, kind[dialect.name == "messages"])


@case("all candidates fail, unary", over=CALLERS)
def all_fail_unary(context, dialect):
    status = 529 if dialect.name == "messages" else 503
    last_answer(context, dialect, "failing", False, status, ("service_unavailable_error", "overloaded_error"), "verloaded")


@case("all candidates fail, streaming", over=CALLERS)
def all_fail_stream(context, dialect):
    status = 529 if dialect.name == "messages" else 503
    last_answer(context, dialect, "failing", True, status, ("service_unavailable_error", "overloaded_error"), "verloaded")


@case("all candidates fail, the last inside a stream", over=CALLERS)
def all_fail_in_stream(context, dialect):
    status = 529 if dialect.name == "messages" else 503
    last_answer(context, dialect, "overloaded", True, status, ("service_unavailable_error", "overloaded_error"), "verloaded")
