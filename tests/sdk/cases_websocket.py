"""The Responses API over WebSocket, by those who speak it themselves: OpenAI's SDKs for Python and Node, and the
agents SDK for Python, in front of the scripted upstream.

Which events come is compared with the same over HTTP. A proxy counts the connections: no SDK may open a second one
by itself.
"""

import json
import threading
import time
from dataclasses import dataclass
from typing import Callable, get_args

from openai.types.responses import ResponsesServerEvent

import dialects
import expect
import python_websocket
from cases_scripted import DELTAS, MODEL, TEXT, USAGE, deltas, drips, whole_stream
from client import TIMEOUT, Raised
from python_websocket import LAST
from runner import case
from upstream import PATIENCE
from wire import Wire

RESPONSES = dialects.DIALECTS[1]
ARGUMENTS = json.dumps({"job": "job-1"})
OUTPUT = "job-1 is still running"
TOOL = {
    "type": "function",
    "name": "poll",
    "parameters": {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]},
    "strict": False,
}


@dataclass(frozen=True)
class Peer:
    """`play` runs a command as python_websocket.py says; `error` is what it hands over or raises at an error event.
    One that `is_plain` sends what its caller says, an agent asks by itself. One that `reconnects` also does so after
    a refused upgrade."""

    name: str
    play: Callable
    error: str
    is_plain: bool = True
    reconnects: bool = False

    def ask(self, text, **more):
        """One round that asks this."""
        if self.is_plain:
            return [{"type": "response.create", "model": MODEL, "input": text, **more}]
        return {"input": text, **more}

    def prepare(self, text):
        """One round that asks without the model."""
        return self.ask(text, generate=False) if self.is_plain else self.ask(text, prepare=True)

    def go_on(self, text):
        """One round that continues the last response."""
        return self.ask(text, previous_response_id=LAST) if self.is_plain else self.ask(text, continues=True)


def python(play):
    return lambda _, command: play(command)


def node(sdk):
    return lambda context, command: context.world.node.play({"operation": "websocket", "sdk": sdk, **command})


PYTHON = Peer("openai-python websocket", python(python_websocket.play_openai), "ResponseWsError")
NODE = Peer("openai-node websocket", node("openai"), "WebSocketError", reconnects=True)
NODE_6 = Peer("openai-node-6 websocket", node("openai-6"), "WebSocketError", reconnects=True)
AGENTS = Peer(
    "agents-python websocket", python(python_websocket.play_agents), "ResponsesWebSocketError", is_plain=False
)
PEERS = [PYTHON, NODE, NODE_6, AGENTS]
PLAIN = [peer for peer in PEERS if peer.is_plain]


class Talk:
    """What a peer shows of its rounds at `url`."""

    def __init__(self, context, peer, url, rounds, run=None, over_http=False):
        self.frames = []
        self.kinds = []
        self.errors = []
        self.rounds = 0
        self.reconnecting = []
        self.closed = None
        self.output = None
        self.messages = peer.play(
            context,
            {
                "url": url,
                "model": MODEL,
                "timeout": TIMEOUT,
                "rounds": rounds,
                "over_http": over_http,
                "default_headers": {"x-run-id": run} if run else {},
            },
        )

    def read(self, until=None):
        """Reads to the end, or until `until` says so of a frame."""
        for message in self.messages:
            if "broken" in message or "raised" in message:
                raise AssertionError(message)
            if "frame" in message:
                self.frames.append(message["frame"])
                self.kinds.append(message.get("kind"))
                if until and until(message["frame"]):
                    break
            elif "error" in message:
                self.errors.append(Raised(message["error"]))
            elif "round" in message:
                self.rounds += 1
            elif "reconnecting" in message:
                self.reconnecting.append(message["reconnecting"])
            elif "closed" in message:
                self.closed = message["closed"]
            elif "output" in message:
                self.output = message["output"]
        return self

    def leave(self):
        self.messages.close()

    def of(self, kind):
        return [frame for frame in self.frames if frame["type"] == kind]

    @property
    def text(self):
        return "".join(frame["delta"] for frame in self.of("response.output_text.delta"))

    @property
    def completed(self):
        return [frame["response"] for frame in self.of("response.completed")]


def is_completed(frame):
    return frame["type"] == "response.completed"


def answers(exchange):
    exchange.sse(whole_stream(exchange.dialect))
    exchange.end()


def in_turn(context, *scripts):
    """Plays a script for each request, in their order."""

    def script(exchange):
        scripts[len(context.upstream.seen(context.key)) - 1](exchange)

    context.play(script)


def wired(context, name):
    """A proxy in front of a gateway, which ends with the case."""
    wire = Wire(context.alone(name).url)
    context.sessions.append(wire)
    return wire


def run_id():
    return f"sdk-{time.monotonic_ns()}"


def sent(exchange):
    return json.loads(exchange.body)


@case("a response is the one that a POST streams", over=PEERS)
def same_as_post(context, peer):
    context.play(answers)
    url = context.patient.url
    rounds = [peer.ask(context.prompt)]

    posted = Talk(context, peer, url, rounds, over_http=True).read()
    talked = Talk(context, peer, url, rounds).read()

    expect.equal(talked.frames, posted.frames)
    expect.equal(talked.text, TEXT)
    (response,) = talked.completed
    expect.equal((response["usage"]["input_tokens"], response["usage"]["output_tokens"]), USAGE)
    if peer in (PYTHON, AGENTS):
        expect.equal([posted.output, talked.output], [TEXT, TEXT])
    # The types of the SDK for Python have names of their own for a socket.
    if peer is AGENTS:
        expect.equal(talked.kinds, posted.kinds)
    if peer is PYTHON:
        for frame in talked.frames:
            of_type(frame)
    first, second = map(sent, context.upstream.seen(context.key))
    expect.equal(second, first)


def called():
    """A stream that asks for the tool."""
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "poll", "status": "completed"}
    begun = {**call, "status": "in_progress", "arguments": ""}
    done = {**call, "arguments": ARGUMENTS}
    place = {"item_id": "fc_1", "output_index": 0}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        {"type": "response.function_call_arguments.delta", **place, "delta": ARGUMENTS},
        {"type": "response.function_call_arguments.done", **place, "name": "poll", "arguments": ARGUMENTS},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": {**RESPONSES.response("completed"), "output": [done]}},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events, start=2)]
    return RESPONSES.prelude() + b"".join(map(dialects.event, numbered))


def asks_for_tool(exchange):
    exchange.sse(called())
    exchange.end()


@case("a tool loop that sends only its outputs is one run, and upstream has the conversation", over=PEERS)
def tool_loop(context, peer):
    in_turn(context, asks_for_tool, answers)
    url, run = context.patient.url, run_id()
    if peer.is_plain:
        output = {"type": "function_call_output", "call_id": "call_1", "output": OUTPUT}
        rounds = [
            peer.ask(context.prompt, tools=[TOOL]),
            peer.ask([output], tools=[TOOL], previous_response_id=LAST),
        ]
    else:
        # One run of the agent, which is told to name the last response in place of what came before.
        rounds = [peer.ask(context.prompt, chain=True)]

    talked = Talk(context, peer, url, rounds, run).read()

    expect.equal(talked.errors, [])
    expect.equal(talked.text, TEXT)
    first, second = map(sent, context.upstream.seen(context.key))
    expect.equal(first["tools"], second["tools"])
    assert "previous_response_id" not in second, second
    asked, call, output = second["input"]
    expect.equal((asked["role"], asked["content"]), ("user", context.prompt))
    # What the gateway kept: an item that the caller sends has the id that its server gave it.
    kept = {"type": "function_call", "call_id": "call_1", "name": "poll", "status": "completed", "arguments": ARGUMENTS}
    expect.equal(call, kept)
    expect.equal((output["type"], output["call_id"], output["output"]), ("function_call_output", "call_1", OUTPUT))
    shown = context.patient.raw.get(f"{url}/runs/{run}").json()
    expect.equal((shown["turns"], shown["reason"]), (2, None))


@case("what was prepared without the model is continued", over=PEERS)
def prepared(context, peer):
    context.play(answers)
    url = context.patient.url
    rounds = [peer.prepare(context.prompt), peer.go_on("And bye.")]

    talked = Talk(context, peer, url, rounds).read()

    expect.equal(talked.errors, [])
    expect.equal(talked.rounds, 2)
    expect.equal(talked.text, TEXT)
    (exchange,) = context.upstream.seen(context.key)
    request = sent(exchange)
    expect.equal([item["content"] for item in request["input"]], [context.prompt, "And bye."])
    assert not {"generate", "previous_response_id"} & set(request), request


@case("two lanes answer at once, each under its name", over=PLAIN)
def two_lanes(context, peer):
    # Neither answers before upstream has both.
    both = threading.Barrier(2)

    def script(exchange):
        both.wait(PATIENCE)
        word = sent(exchange)["input"].removeprefix(context.prompt)
        exchange.sse(RESPONSES.prelude(), RESPONSES.opening(), RESPONSES.delta(word), RESPONSES.closing([word]))
        exchange.end()

    context.play(script)
    wire = wired(context, "patient")
    events = [peer.ask(context.prompt + lane, stream_id=lane)[0] for lane in ("left", "right")]

    talked = Talk(context, peer, wire.url, [events]).read()

    expect.equal(len(talked.completed), 2)
    for lane in ("left", "right"):
        frames = [frame for frame in talked.frames if frame.get("stream_id") == lane]
        expect.equal([frame["delta"] for frame in frames if "delta" in frame], [lane])
        expect.equal([is_completed(frame) for frame in frames], [False] * (len(frames) - 1) + [True])
    assert all("stream_id" in frame for frame in talked.frames), talked.frames
    expect.equal(wire.opened, ["websocket"])


def fails_then_works(context, peer, name, rounds, run=None):
    """What it hands over for the one round that fails; nothing was repeated, and the last round works: on
    the same socket, or, by the agents SDK, which drops it at an error, on a new one."""
    wire = wired(context, name)

    talked = Talk(context, peer, wire.url, rounds, run).read()

    expect.equal(talked.rounds, len(rounds))
    (error,) = talked.errors
    expect.equal(error.kind, peer.error)
    expect.equal(wire.opened, ["websocket"] if peer.is_plain else ["websocket", "websocket"])
    expect.equal(talked.reconnecting, [])
    if peer is PYTHON:
        of_type(error.error)
    return talked, error


def of_type(frame):
    """A frame has all that the SDK's type of it promises."""
    kinds = get_args(get_args(ResponsesServerEvent)[0])
    (kind,) = (kind for kind in kinds if get_args(kind.model_fields["type"].annotation) == (frame["type"],))
    # Its own parsing lets everything through.
    try:
        kind.model_validate(frame)
    except ValueError as error:
        raise AssertionError(f"{kind.__name__}: {error}") from None


def refusing(status, code, headers=None):
    error = {"type": "invalid_request_error", "code": code, "message": "not like this", "param": "input"}
    body = json.dumps({"error": error}).encode()
    return lambda exchange: exchange.json(body, status=status, headers=headers)


@case("upstream's own 400 is told as one", over=PEERS)
def own_refusal(context, peer):
    in_turn(context, refusing("400 Bad Request", "melted"), answers)
    rounds = [peer.ask(context.prompt)] * 2

    talked, error = fails_then_works(context, peer, "tried-once", rounds)

    expect.equal((error.status, error.code, error.type), (400, "melted", "invalid_request_error"))
    expect.equal(error.error["error"]["param"], "input")
    assert "not like this" in error.message, error
    expect.equal(talked.text, TEXT)
    expect.equal(len(context.upstream.seen(context.key)), 2)


@case("upstream's own 429 is told with its `retry-after`, and not waited for", over=PEERS)
def own_limit(context, peer):
    in_turn(context, refusing("429 Slow Down", "rate_limit_exceeded", {"retry-after": "70"}), answers)
    rounds = [peer.ask(context.prompt)] * 2

    talked, error = fails_then_works(context, peer, "tried-once", rounds)

    expect.equal((error.status, error.code), (429, "rate_limit_exceeded"))
    expect.equal(error.headers["retry-after"], "70")
    expect.equal(talked.text, TEXT)
    expect.equal(len(context.upstream.seen(context.key)), 2)


@case("a cap is told as a 400 that is not to be repeated: `turn_cap_reached`", over=PEERS)
def cap(context, peer):
    context.play(answers)
    run = run_id()
    # Without the model there is no turn.
    rounds = [peer.ask(context.prompt), peer.ask(context.prompt), peer.prepare(context.prompt)]

    talked, error = fails_then_works(context, peer, "turn_cap_reached", rounds, run)

    expect.named(error, "turn_cap_reached")
    expect.equal(error.status, 400)
    told = {"x-run-id": run, "x-should-retry": "false", "x-terminal-reason": "turn_cap_reached"}
    expect.equal(error.headers, told)
    expect.equal(talked.text, TEXT)
    expect.equal(len(context.upstream.seen(context.key)), 1)


@case("silence before the head is told: `step_timeout`", over=PEERS)
def stall_head(context, peer):
    in_turn(context, lambda exchange: exchange.silence(), answers)

    talked, error = stalls(context, peer)

    expect.equal(talked.text, TEXT)


@case("silence mid-stream is told: `step_timeout`", over=PEERS)
def stall_stream(context, peer):
    def script(exchange):
        exchange.sse(RESPONSES.prelude(), RESPONSES.opening(), deltas(RESPONSES))
        exchange.silence()

    in_turn(context, script, answers)

    talked, error = stalls(context, peer)

    expect.equal(talked.text, TEXT + TEXT)
    # One end for one response.
    expect.equal(talked.of("response.failed"), [])


def stalls(context, peer):
    talked, error = fails_then_works(context, peer, "scripted", [peer.ask(context.prompt)] * 2)
    expect.named(error, "step_timeout")
    expect.equal(error.status, 400)
    expect.equal(error.headers["x-terminal-reason"], "step_timeout")
    expect.equal(error.headers["x-should-retry"], "false")
    stalled, _ = context.upstream.seen(context.key)
    expect.released(stalled)
    return talked, error


@case("a response that nobody knows is told as OpenAI does", over=PLAIN)
def unknown_previous(context, peer):
    context.play(answers)
    unknown = peer.ask(context.prompt, previous_response_id="resp_gone", store=False)

    _, error = fails_then_works(context, peer, "patient", [unknown, peer.ask(context.prompt)])

    expect.equal((error.status, error.code), (400, "previous_response_not_found"))
    expect.equal(error.error["error"]["param"], "previous_response_id")
    expect.equal(len(context.upstream.seen(context.key)), 1)


@case("signs of life before the head and in the stream disturb nobody", over=PEERS)
def keep_alive(context, peer):
    head, rest = threading.Event(), threading.Event()

    def script(exchange):
        head.wait(PATIENCE)
        exchange.sse(RESPONSES.prelude(), RESPONSES.opening(), deltas(RESPONSES))
        rest.wait(PATIENCE)
        exchange.send(RESPONSES.closing(DELTAS))
        exchange.end()

    context.play(script)
    talked = Talk(context, peer, context.alone("signs-of-life").url, [peer.ask(context.prompt)])
    three_more(talked)
    expect.equal(talked.text, "")
    head.set()
    talked.read(until=lambda _: talked.text == TEXT)
    three_more(talked)
    rest.set()
    talked.read()

    expect.equal(talked.errors, [])
    expect.equal(talked.rounds, 1)
    (response,) = talked.completed
    expect.equal(response["usage"]["output_tokens"], len(DELTAS))
    if peer is AGENTS:
        expect.equal(talked.output, TEXT)


def three_more(talked):
    """Reads until three more signs of life have come."""
    wanted = len(talked.of("keepalive")) + 3
    talked.read(until=lambda _: len(talked.of("keepalive")) == wanted)
    expect.equal(len(talked.of("keepalive")), wanted)


@case("the caller leaves mid-stream: `client_disconnect`", over=PEERS)
def leave(context, peer):
    context.play(drips)
    _, gateway = context.start("patient")
    raw = context.patient.raw

    for run in (run_id(), None):
        talked = Talk(context, peer, gateway.url, [peer.ask(context.prompt)], run)
        talked.read(until=lambda frame: "delta" in frame)
        talked.leave()

        exchange = context.upstream.seen(context.key)[-1]
        expect.released(exchange)
        runs = raw.get(f"{gateway.url}/runs").json()["runs"]
        if run:
            # A named run goes on: its caller may come again.
            (shown,) = runs
            shown = attempted(raw, gateway, run)
            expect.equal(shown["attempts_of_late"][0]["reason"], "client_disconnect")
        else:
            (shown,) = (shown for shown in runs if not shown["run"].startswith("sdk-"))
            ended = raw.get(f"{gateway.url}/runs/{shown['run']}/wait").json()
            expect.equal(ended["reason"], "client_disconnect")
    expect.equal(len(context.upstream.seen(context.key)), 2)


def attempted(raw, gateway, run):
    """The run, once its attempt is over: upstream may hear of it before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        shown = raw.get(f"{gateway.url}/runs/{run}").json()
        if shown["attempts_of_late"]:
            return shown
        time.sleep(0.01)
    raise AssertionError(f"no attempt has ended: {shown}")


@case("what the gateway writes without the model is what the SDK's types promise", over=[PYTHON])
def prepared_types(context, peer):
    talked = Talk(context, peer, context.patient.url, [peer.prepare(context.prompt)]).read()

    expect.equal([frame["type"] for frame in talked.frames], ["response.created", "response.completed"])
    for frame in talked.frames:
        of_type(frame)


@case("an answer that is no stream has the events that the SDK's types promise", over=[PYTHON])
def whole_types(context, peer):
    context.play(lambda exchange: exchange.json(json.dumps(RESPONSES.whole(DELTAS)).encode()))

    talked = Talk(context, peer, context.patient.url, [peer.ask(context.prompt)]).read()

    expect.equal(talked.errors, [])
    (response,) = talked.completed
    expect.equal(response["output"][0]["content"][0]["text"], TEXT)
    for frame in talked.frames:
        of_type(frame)


@case("input for a running response comes back, and the response goes on", over=PLAIN)
def steer(context, peer):
    steered = threading.Event()

    def script(exchange):
        exchange.sse(RESPONSES.prelude(), RESPONSES.opening())
        steered.wait(PATIENCE)
        exchange.send(deltas(RESPONSES) + RESPONSES.closing(DELTAS))
        exchange.end()

    context.play(script)
    given = [{"type": "message", "role": "user", "content": "Faster."}]
    steering = {"type": "response.steer", "previous_response_id": "resp_1", "input": given}
    talked = Talk(context, peer, context.patient.url, [[*peer.ask(context.prompt), steering]])
    talked.read(until=lambda frame: frame["type"] == "response.steer.failed")
    steered.set()
    talked.read()

    expect.equal(talked.rounds, 1)
    expect.equal(talked.text, TEXT)
    (failed,) = talked.of("response.steer.failed")
    expect.equal(failed["error"]["code"], "steering_not_supported")
    expect.equal(failed.get("steer"), {"input": given, "previous_response_id": "resp_1"})
    of_type(failed)


@case("a gateway without sockets refuses the upgrade, and nobody posts instead", over=PEERS)
def refused(context, peer):
    wire = wired(context, "no-websocket")

    talked = Talk(context, peer, wire.url, [peer.ask(context.prompt)]).read()

    expect.equal(talked.frames, [])
    if peer.reconnects:
        # It takes a refusal for a lost socket, and tries as often as it was told to.
        refusal, last = talked.errors
        expect.equal((refusal.kind, refusal.message), (peer.error, "Unexpected server response: 426"))
        assert "reconnect failed after 2 attempts" in last.message, last
        expect.equal(talked.reconnecting, [1006, 1006])
        expect.equal(talked.closed, 1006)
        expect.equal(wire.opened, ["websocket"] * 3)
    else:
        (refusal,) = talked.errors
        expect.equal((refusal.kind, refusal.status), ("InvalidStatus", 426))
        expect.equal(json.loads(refusal.error)["error"]["type"], "upgrade_required")
        expect.equal(wire.opened, ["websocket"])
