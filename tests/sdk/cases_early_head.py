"""Streams whose head the gateway sends 100 ms after the request, while the scripted upstream waits for a
second: the SDK has a 200, and what keeps the stream alive, before the first event.

covers: B5, H2
"""

import time

import expect
from cases_scripted import DELTAS, MODEL, TEXT, USAGE, deltas, stalls_before_head, whole_stream
from client import Seen
from runner import case
from sdks import CALLERS

REFUSAL = b'{"type":"error","error":{"type":"not_found_error","code":"not_found_error","message":"no such model"}}'


def late(script):
    def wait(exchange):
        time.sleep(1)
        script(exchange)

    return wait


@case("behind an early head, healthy", over=CALLERS)
def healthy(context, dialect):
    def script(exchange):
        exchange.sse(whole_stream(dialect))
        exchange.end()

    context.play(late(script))

    seen = context.alone("early").stream(dialect, MODEL, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.equal(seen.usage, USAGE)
    expect.one_request(context.alone("early"), context.upstream.seen(context.key))


@case("behind an early head, silent between events", over=CALLERS)
def silent_between(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude() + dialect.opening() + deltas(dialect))
        time.sleep(1)
        exchange.send(dialect.closing(DELTAS))
        exchange.end()

    context.play(late(script))

    seen = context.alone("early").stream(dialect, MODEL, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.one_request(context.alone("early"), context.upstream.seen(context.key))


def refused(context, dialect, status):
    context.play(late(lambda exchange: exchange.json(REFUSAL, status=status)))

    raised = expect.error(lambda: context.alone("early").stream(dialect, MODEL, context.prompt), "no such model")

    assert status in raised.message, raised
    expect.equal(raised.type, "not_found_error")
    expect.one_request(context.alone("early"), context.upstream.seen(context.key))


@case("behind an early head, refused with a 404", over=CALLERS)
def refused_for_good(context, dialect):
    refused(context, dialect, "404 Not Found")


@case("behind an early head, refused with a 503", over=CALLERS)
def refused_for_now(context, dialect):
    refused(context, dialect, "503 Service Unavailable")


@case("behind an early head, an answer that is no stream", over=CALLERS)
def no_stream(context, dialect):
    context.play(late(lambda exchange: exchange.json(b'{"choices":[{}],"output":[{}],"content":[{}]}')))

    raised = expect.error(lambda: context.alone("early").stream(dialect, MODEL, context.prompt))

    expect.equal(raised.type, "upstream_failed")
    expect.one_request(context.alone("early"), context.upstream.seen(context.key))


@case("behind an early head, silence", over=CALLERS)
def silence(context, dialect):
    context.play(stalls_before_head)
    seen = Seen()

    expect.reason(lambda: context.alone("early").stream(dialect, MODEL, context.prompt, seen), "step_timeout")

    expect.equal(seen.text, "")
    expect.one_request(context.alone("early"), context.upstream.seen(context.key))
