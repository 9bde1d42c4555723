"""Cases against a gateway with a configuration file, in front of a scripted upstream: 2 s and 5 s.

covers: H2
"""

import json
import threading
import time

import httpx2

import dialects
import expect
from client import Seen
from runner import case
from sdks import CALLERS, EACH_OPENAI

MODEL = "scripted"
DELTAS = ["One, ", "two, ", "drei ½ 🦀"]
TEXT = "".join(DELTAS)
USAGE = (dialects.INPUT_TOKENS, len(DELTAS))


def deltas(dialect):
    return b"".join(map(dialect.delta, DELTAS))


def whole_stream(dialect):
    return dialect.prelude() + dialect.opening() + deltas(dialect) + dialect.closing(DELTAS)


def stalls_before_head(exchange):
    exchange.silence()


def stalls_mid_stream(exchange):
    exchange.sse(exchange.dialect.prelude(), deltas(exchange.dialect))
    exchange.silence()


def drips(exchange):
    """Alive for as long as somebody listens: no window passes."""
    exchange.sse(exchange.dialect.prelude())
    exchange.drip(exchange.dialect.delta("drip "), every=0.2)


def post(client, path, body):
    return client.raw.post(f"{client.url}{path}", json=body)


@case("scripted, healthy, unary", over=CALLERS)
def healthy_unary(context, dialect):
    context.play(lambda exchange: exchange.json(json.dumps(dialect.whole(DELTAS)).encode()))

    text, usage = context.scripted.ask(dialect, MODEL, context.prompt)

    expect.equal(text, TEXT)
    expect.equal(usage, USAGE)
    exchanges = context.upstream.seen(context.key)
    expect.one_request(context.scripted, exchanges)
    expect.equal(json.loads(exchanges[0].body)["model"], "scripted-model")


# covers: T94
@case("scripted, healthy, streaming in scraps that split events and characters", over=CALLERS)
def healthy_stream(context, dialect):
    def script(exchange):
        data = whole_stream(dialect)
        exchange.sse(*(data[at : at + 7] for at in range(0, len(data), 7)))
        exchange.end()

    context.play(script)

    seen = context.scripted.stream(dialect, MODEL, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.equal(seen.usage, USAGE)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


def stream_in_scraps(context, dialect, data, size):
    """What a caller gets, byte for byte, of a stream that upstream wrote `size` bytes at a time."""

    def script(exchange):
        exchange.sse(*(data[at : at + size] for at in range(0, len(data), size)))
        exchange.end()

    context.play(script)
    request = dialect.request(MODEL, context.prompt, stream=True)

    with context.patient.raw.stream("POST", f"{context.patient.url}/v1/{dialect.operation}", json=request) as answer:
        received = b"".join(answer.iter_raw())

    expect.equal(answer.status_code, 200)
    expect.equal(answer.headers["content-type"], "text/event-stream")
    return received


# One byte, which splits all there is; odd ones, which split characters and line ends; all at once.
SIZES = [1, 2, 3, 11, 97, 1 << 20]


# covers: T94
@case("a stream that succeeds is upstream's, byte for byte", over=dialects.DIALECTS)
def identical_stream(context, dialect):
    data = (
        b": a comment\n\n"
        + dialect.prelude()
        + dialect.life
        + dialect.opening()
        + deltas(dialect).replace(b"\n", b"\r\n")
        + b"id: 7\nretry: 100\n: inside\n"
        + dialect.delta("  spaced  ")
        + dialect.life.replace(b"\n", b"\r")
        + dialect.closing(DELTAS)
    )
    for size in SIZES:
        expect.equal(stream_in_scraps(context, dialect, data, size), data)


# covers: T94
@case("a chat stream that finished but for [DONE] is upstream's and a [DONE], byte for byte")
def supplied_done(context):
    chat = dialects.DIALECTS[0]
    data = chat.prelude() + deltas(chat) + chat.finish()
    for size in SIZES:
        expect.equal(stream_in_scraps(context, chat, data, size), data + chat.done)


@case("an answer that succeeds is upstream's, byte for byte", over=dialects.DIALECTS)
def identical_unary(context, dialect):
    data = json.dumps(dialect.whole(DELTAS), indent=3).encode() + b"\r\n \n"
    context.play(lambda exchange: exchange.json(data))

    answer = post(context.scripted, f"/v1/{dialect.operation}", dialect.request(MODEL, context.prompt))

    expect.equal(answer.status_code, 200)
    expect.equal(answer.content, data)


@case("scripted, models.list()", over=EACH_OPENAI)
def models(context, _dialect):
    expect.equal(context.scripted.models(), [("model", MODEL)])


@case("scripted, silence before the head, unary", over=CALLERS)
def stall_head_unary(context, dialect):
    context.play(stalls_before_head)

    raised = expect.reason(lambda: context.scripted.ask(dialect, MODEL, context.prompt), "step_timeout")

    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.equal(raised.status, 504)
    expect.equal(raised.headers["x-should-retry"], "false")
    expect.one_request(context.scripted, exchanges)


@case("scripted, silence before the head, streaming", over=CALLERS)
def stall_head_stream(context, dialect):
    context.play(stalls_before_head)

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt), "step_timeout")

    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(context.scripted, exchanges)


@case("scripted, silence mid-stream", over=CALLERS)
def stall_stream(context, dialect):
    context.play(stalls_mid_stream)
    seen = Seen()

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt, seen), "step_timeout")

    expect.equal(seen.text, TEXT)
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(context.scripted, exchanges)


@case("silence in the middle of an event", over=CALLERS)
def stall_mid_event(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude(), deltas(dialect), dialect.delta("half an event")[:-20])
        exchange.silence()

    context.play(script)
    seen = Seen()

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt, seen), "step_timeout")

    expect.equal(seen.text, TEXT)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


@case("scripted, pings only", over=CALLERS)
def pings(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude())
        exchange.drip(dialect.life, every=0.2)

    context.play(script)

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt), "step_timeout")

    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(context.scripted, exchanges)


@case("pings after the first deltas", over=CALLERS)
def late_pings(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude(), deltas(dialect))
        exchange.drip(dialect.life, every=0.2)

    context.play(script)
    seen = Seen()

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt, seen), "step_timeout")

    expect.equal(seen.text, TEXT)
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(context.scripted, exchanges)


@case("scripted, slow but alive, ten times the window", over=CALLERS)
def slow_stream(context, dialect):
    words = [f"{number} " for number in range(40)]

    def script(exchange):
        exchange.sse(dialect.prelude())
        for word in words:
            time.sleep(0.55)
            exchange.send(dialect.delta(word))
        exchange.send(dialect.closing(words))
        exchange.end()

    context.play(script)

    seen = context.scripted.stream(dialect, MODEL, context.prompt)

    expect.equal(seen.deltas, words)
    expect.equal(seen.usage, (dialects.INPUT_TOKENS, len(words)))
    expect.one_request(context.scripted, context.upstream.seen(context.key))


@case("a clean end without a terminator", over=CALLERS)
def cut_cleanly(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude(), deltas(dialect))
        exchange.end()

    context.play(script)
    seen = Seen()

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt, seen), "upstream_failed")

    expect.equal(seen.text, TEXT)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


# OpenAI's SDKs, but for the older one, compare ids: a `response.failed` of another than the answer's would make
# them raise that, and not the reason.
@case("a clean end without a terminator, the SDK's own accumulating stream", over=CALLERS)
def cut_accumulating(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude(), dialect.opening(), deltas(dialect))
        exchange.end()

    context.play(script)

    expect.reason(lambda: context.scripted.accumulate(dialect, MODEL, context.prompt), "upstream_failed")

    expect.one_request(context.scripted, context.upstream.seen(context.key))


@case("a reset mid-stream", over=CALLERS)
def cut_by_reset(context, dialect):
    def script(exchange):
        exchange.sse(dialect.prelude(), deltas(dialect))
        exchange.reset()

    context.play(script)
    seen = Seen()
    stream = context.scripted.stream(dialect, MODEL, context.prompt, seen, until=len(DELTAS))

    context.upstream.wait(context.key).shown.set()
    expect.reason(stream.read, "upstream_failed")

    expect.equal(seen.text, TEXT)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


@case("a connection that closes mid-stream without the last chunk", over=CALLERS)
def cut_by_close(context, dialect):
    context.play(lambda exchange: exchange.sse(dialect.prelude(), deltas(dialect)))
    seen = Seen()

    expect.reason(lambda: context.scripted.stream(dialect, MODEL, context.prompt, seen), "upstream_failed")

    expect.equal(seen.text, TEXT)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


# The SDKs retry a broken unary answer by themselves, so requests are not counted.
@case("scripted, an answer that is cut mid-body, unary", over=CALLERS)
def cut_unary(context, dialect):
    data = json.dumps(dialect.whole(DELTAS)).encode()
    context.play(lambda exchange: exchange.json(data[:50], length=len(data)))

    expect.error(lambda: context.scripted.ask(dialect, MODEL, context.prompt))


@case("a chat stream that finished but for [DONE] is whole", over=EACH_OPENAI)
def finished_without_done(context, dialect):

    def script(exchange):
        exchange.sse(dialect.prelude(), deltas(dialect), dialect.finish())
        exchange.end()

    context.play(script)

    seen = context.scripted.stream(dialect, MODEL, context.prompt)

    expect.equal(seen.text, TEXT)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


@case("upstream's own error mid-stream is the only one, and unchanged", over=CALLERS)
def own_error(context, dialect):
    def script(exchange):
        exchange.sse(data)
        exchange.end()

    data = dialect.prelude() + deltas(dialect) + dialect.own_error
    context.play(script)
    seen = Seen()
    request = dialect.request(MODEL, context.prompt, stream=True)

    expect.error(lambda: context.scripted.stream(dialect, MODEL, context.prompt, seen), "upstream is melting")
    expect.equal(seen.text, TEXT)
    expect.one_request(context.scripted, context.upstream.seen(context.key))

    answer = post(context.scripted, f"/v1/{dialect.operation}", request)
    expect.equal(answer.content, data)


@case("upstream's own refusal is unchanged", over=CALLERS)
def own_refusal(context, dialect):
    body = b'{"type":"error","error":{"type":"not_found_error","code":"model_not_found","message":"no such model"}}'
    context.play(lambda exchange: exchange.json(body, status="404 Not Found"))

    raised = expect.error(lambda: context.scripted.ask(dialect, MODEL, context.prompt), "no such model")

    expect.equal(raised.status, 404)
    expect.equal(raised.type, "not_found_error")
    expect.equal(raised.headers.get("x-terminal-reason"), None)
    expect.one_request(context.scripted, context.upstream.seen(context.key))


@case("a malformed run id is refused", over=CALLERS)
def bad_run_id(context, dialect):
    context.play(stalls_before_head)

    raised = expect.error(
        lambda: context.scripted.ask(dialect, MODEL, context.prompt, headers={"x-run-id": "bad id"})
    )

    expect.equal(raised.status, 400)
    expect.one_request(context.scripted)
    expect.equal(context.upstream.seen(context.key), [])


@case("an aborted run, mid-stream", over=CALLERS)
def abort_mid_stream(context, dialect):
    context.play(drips)
    client = context.patient
    seen = Seen()
    stream = client.stream(dialect, MODEL, context.prompt, seen, until=1)
    assert seen.run_id, "no x-run-id"

    first = post(client, f"/runs/{seen.run_id}/abort", {})

    expect.equal(first.json(), {"aborted": True})
    expect.reason(stream.read, "aborted")
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    second = post(client, f"/runs/{seen.run_id}/abort", {})
    expect.equal(second.json(), {"aborted": False})
    expect.one_request(client, exchanges)


@case("an aborted run, before the head", over=CALLERS)
def abort_before_head(context, dialect):
    context.play(stalls_before_head)
    run = f"sdk-{time.monotonic_ns()}"
    answers = []

    def abort():
        context.upstream.wait(context.key)
        answers.append(httpx2.post(f"{context.patient.url}/runs/{run}/abort", trust_env=False).json())

    aborting = threading.Thread(target=abort)
    aborting.start()
    raised = expect.reason(
        lambda: context.patient.ask(dialect, MODEL, context.prompt, headers={"x-run-id": run}), "aborted"
    )
    aborting.join()

    expect.equal(answers, [{"aborted": True}])
    expect.equal(raised.status, 499)
    exchanges = context.upstream.seen(context.key)
    expect.released(exchanges[0])
    expect.one_request(context.patient, exchanges)


@case("the caller leaves mid-stream", over=CALLERS)
def leave_mid_stream(context, dialect):
    context.play(drips)
    stream = context.patient.stream(dialect, MODEL, context.prompt, until=2)

    stream.close()

    exchange = context.upstream.wait(context.key)
    expect.released(exchange)
    time.sleep(0.5)
    expect.one_request(context.patient, context.upstream.seen(context.key))


@case("the caller leaves before the head", over=CALLERS)
def leave_before_head(context, dialect):
    context.play(stalls_before_head)

    # Time for the request to reach upstream, on a busy machine too.
    expect.error(lambda: context.patient.ask(dialect, MODEL, context.prompt, timeout=3, retries=0))

    expect.released(context.upstream.wait(context.key))
    time.sleep(0.5)
    expect.one_request(context.patient, context.upstream.seen(context.key))
