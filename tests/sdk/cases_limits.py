"""The reasons that the gateway gives by its configuration or its end, apart from the step window of
`cases_scripted.py`.

covers: H2
"""

import json
import select
import socket
import time

import dialects
import expect
from cases_scripted import DELTAS, MODEL, TEXT, drips, stalls_before_head, stalls_mid_stream
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
