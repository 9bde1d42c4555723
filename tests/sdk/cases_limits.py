"""The reasons that the gateway gives by its configuration or its end, apart from the step window of
`cases_scripted.py`.

covers: H2
"""

import json
import select
import socket
import threading
import time

import dialects
import expect
from cases_scripted import DELTAS, MODEL, TEXT, deltas, drips, stalls_before_head, stalls_mid_stream
from client import TIMEOUT, Seen
from runner import case
from sdks import CALLERS

# Gateways of one limit, each named for the reason that it gives.
CEILINGS = ["max_turn_time", "timeout"]

# A conversation that is not in a socket's buffer before it is answered.
LONG = " and so on" * 800_000


def over_ceilings(function):
    for name in CEILINGS:

        def of_ceiling(context, dialect, name=name):
            function(context, dialect, name)

        of_ceiling.__module__ = function.__module__
        case(f"{function.__doc__}: `{name}`", over=CALLERS)(of_ceiling)
    return function


@over_ceilings
def unary(context, dialect, name):
    """past a ceiling of the run, unary"""
    context.play(stalls_before_head)
    client = context.alone(name)

    raised = expect.reason(lambda: client.ask(dialect, MODEL, context.prompt), name)

    expect.equal(raised.status, 504)
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(client, exchanges)


@over_ceilings
def mid_stream(context, dialect, name):
    """past a ceiling of the run, mid-stream, though alive"""
    context.play(drips)
    client = context.alone(name)
    seen = Seen()

    expect.reason(lambda: client.stream(dialect, MODEL, context.prompt, seen), name)

    assert seen.text.startswith("drip drip "), seen.text
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(client, exchanges)


def fails(exchange):
    body = json.dumps({"type": "error", "error": {"type": "server_error", "code": None, "message": "melting"}})
    # An SDK that tries again may not have read this one: time for the gateway to notice that it was dropped.
    exchange.json(body.encode(), status="500 Melting", headers={"retry-after-ms": "500"})


# A gateway that lets a run repeat a failure once, and one that lets it make one error.
@case("an SDK's own retries run into the budget of its run: `retry_budget_exceeded`", over=CALLERS)
def retry_budget(context, dialect):
    runs_out(context, dialect, "retry_budget_exceeded")


@case("an SDK's own retries run into the errors of its run: `per_dispatch_errors_exceeded`", over=CALLERS)
def run_errors(context, dialect):
    runs_out(context, dialect, "per_dispatch_errors_exceeded")


def runs_out(context, dialect, name):
    context.play(fails)
    client = context.alone(name)
    run = {"x-run-id": f"sdk-{time.monotonic_ns()}"}

    def ask():
        return client.ask(dialect, MODEL, context.prompt, headers=run)

    raised = expect.reason(ask, name)
    expect.equal(raised.status, 422)
    # Two that failed, and a third that was told so, without asking upstream.
    expect.equal(client.sent, 3)
    expect.equal(len(context.upstream.seen(context.key)), 2)

    # The next is told at once, and hears it while it still uploads. The cell tells of the first.
    first, before = context.outcome, client.sent
    expect.reason(lambda: client.ask(dialect, MODEL, context.prompt + LONG, headers=run), name)
    expect.equal(client.sent - before, 1)
    expect.equal(len(context.upstream.seen(context.key)), 2)
    context.outcome = first


@case("a connection on which a run was told that it is over stays open for its body")
def unread_body(context):
    context.play(fails)
    client = context.alone("per_dispatch_errors_exceeded")
    host, port = client.url.removeprefix("http://").split(":")
    run = f"sdk-{time.monotonic_ns()}"
    chat = dialects.DIALECTS[0]
    request = chat.request(MODEL, context.prompt)
    url = f"{client.url}/v1/{chat.operation}"
    for _ in range(2):
        expect.equal(client.raw.post(url, json=request, headers={"x-run-id": run}).status_code, 500)
    head = (
        f"POST /v1/{chat.operation} HTTP/1.1\r\nhost: gateway\r\nx-run-id: {run}\r\n"
        "content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    ).encode()

    with socket.create_connection((host, int(port))) as connection:
        # SDKs send the body by itself, and a long one is under way for a while.
        connection.sendall(head)
        connection.settimeout(TIMEOUT)
        first = connection.recv(65536)
        rest, closed = read_for(connection, seconds=2)
        first += rest
        assert first.startswith(b"HTTP/1.1 422 "), first
        assert not closed and b"connection: close" not in first.lower(), first


def read_for(connection, seconds):
    """What comes, and whether the connection was closed within the time."""
    data = b""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([connection], [], [], left)[0]:
        received = connection.recv(65536)
        if not received:
            return data, True
        data += received
    return data, False


@case("a gateway that goes down, mid-stream: `shutdown`", over=CALLERS)
def shutdown_mid_stream(context, dialect):
    context.play(stalls_mid_stream)
    client, gateway = context.start("patient")
    seen = Seen()
    stream = client.stream(dialect, MODEL, context.prompt, seen, until=len(DELTAS))

    gateway.process.terminate()
    expect.reason(stream.read, "shutdown")

    expect.equal(seen.text, TEXT)
    expect.one_request(client, context.upstream.seen(context.key))
    expect.equal(gateway.stop(), 0)


@case("a gateway that goes down, before the head, an SDK that does not try again: `shutdown`", over=CALLERS)
def shutdown_before_head(context, dialect):
    client, gateway = context.start("patient")

    def script(exchange):
        gateway.process.terminate()
        exchange.silence()

    context.play(script)

    raised = expect.reason(lambda: client.ask(dialect, MODEL, context.prompt, retries=0), "shutdown")

    expect.equal(raised.status, 503)
    expect.equal(raised.headers["x-should-retry"], "true")
    expect.one_request(client, context.upstream.seen(context.key))
    expect.equal(gateway.stop(), 0)


# Of twelve tokens: the cap of the gateway that is named for it. Each drip is more than one token by the
# gateway's estimate of four bytes.
STATES_AS_IT_GOES = [caller for caller in CALLERS if caller.dialect.name != "responses"]


def states_as_it_goes(exchange):
    """Three tokens for each letter, which is less than one by the estimate."""
    exchange.sse(exchange.dialect.prelude())
    for tokens in range(3, 300, 3):
        exchange.send(stated_delta(exchange.dialect, "a", tokens))
        if exchange.silence(0.05):
            return


def stated_delta(dialect, text, tokens):
    """A delta of an upstream that states the tokens of its answer with each."""
    if dialect.name == "chat":
        return dialect.chunk(dialect.choice({"content": text}), dialect.usage(tokens))
    delta = {"stop_reason": None, "stop_sequence": None}
    stated = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens}}
    return dialect.delta(text) + dialects.event(stated)


def states_at_the_end(exchange):
    """Far more than the estimate, when nothing is left to cut."""
    answer = deltas(exchange.dialect) + exchange.dialect.closing([*DELTAS, *[""] * 47])
    exchange.sse(exchange.dialect.prelude(), exchange.dialect.opening(), answer)
    exchange.end()


def runs_long_and_states_at_the_end(exchange):
    exchange.sse(exchange.dialect.prelude())
    for _ in range(100):
        exchange.send(exchange.dialect.delta("a drip of the tap "))
        if exchange.silence(0.05):
            return
    exchange.send(exchange.dialect.closing(["a drip of the tap "] * 100))
    exchange.end()


def run_header():
    return {"x-run-id": f"sdk-{time.monotonic_ns()}"}


def exceeds_its_tokens(context, dialect, script, words):
    """The stream ends in the frame that says so, and the run is over."""
    context.play(script)
    client, run, seen = context.alone("token_cap_reached"), run_header(), Seen()

    cut = expect.reason(
        lambda: client.stream(dialect, MODEL, context.prompt, seen, headers=run), "token_cap_reached"
    )

    assert ("estimated" in cut.message) == words, cut.message
    assert seen.text, "no text came before the cut"
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(client, exchanges)
    is_over(context, client, dialect, run)


def is_over(context, client, dialect, run):
    """The next request is refused, and no upstream is asked."""
    first = context.outcome
    raised = expect.reason(
        lambda: client.ask(dialect, MODEL, context.prompt, headers=run), "token_cap_reached"
    )
    expect.equal(raised.status, 422)
    expect.equal(raised.headers["x-should-retry"], "false")
    expect.equal(client.sent, 2)
    expect.equal(len(context.upstream.seen(context.key)), 1)
    context.outcome = first


# covers: H8
@case("past a cap on tokens, of an upstream that never states them: `token_cap_reached`", over=CALLERS)
def tokens_never_stated(context, dialect):
    exceeds_its_tokens(context, dialect, drips, True)


# covers: H8
@case("past a cap on tokens, of an upstream that states them at the end: `token_cap_reached`", over=CALLERS)
def tokens_stated_late(context, dialect):
    exceeds_its_tokens(context, dialect, runs_long_and_states_at_the_end, True)


# covers: H8
@case("past a cap on tokens, of an upstream that states them as it goes: `token_cap_reached`", over=STATES_AS_IT_GOES)
def tokens_stated(context, dialect):
    exceeds_its_tokens(context, dialect, states_as_it_goes, False)


# covers: H8
@case("a stream whose upstream states at its end that it is past a cap is whole, and the next call is refused", over=CALLERS)
def tokens_stated_at_the_end(context, dialect):
    context.play(states_at_the_end)
    client, run = context.alone("token_cap_reached"), run_header()

    seen = client.stream(dialect, MODEL, context.prompt, headers=run)

    expect.equal(seen.text, TEXT)
    is_over(context, client, dialect, run)


# covers: H12
@case("a turn that is put off at a cap, a run that is extended meanwhile: slow, by its `retry-after`", over=CALLERS)
def put_off_at_a_cap(context, dialect):
    context.play(states_at_the_end)
    client, run = context.alone("run_paused"), run_header()
    expect.equal(client.stream(dialect, MODEL, context.prompt, headers=run).text, TEXT)
    extend = f"{client.url}/runs/{run['x-run-id']}/extend"
    threading.Timer(5, lambda: client.raw.post(extend, json={"turns": 1}).raise_for_status()).start()
    begun = time.monotonic()

    seen = client.stream(dialect, MODEL, context.prompt, headers=run)

    expect.equal(seen.text, TEXT)
    took = time.monotonic() - begun
    assert 30 <= took < 45, f"it took {took:.1f} s"
    # One turn, and one that was sent twice; upstream has seen each once.
    expect.equal(client.sent, 3)
    expect.equal(len(context.upstream.seen(context.key)), 2)
