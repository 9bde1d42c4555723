"""Plays sockets with the SDKs for Python: OpenAI's own, and its agents SDK. node/websocket.mjs is the same for
Node.

A command has `rounds`. The events of a round are sent at once, and read until each has come to its end; the next
round follows on the same socket. Each message is a `frame` that the SDK shows, an `error` that it hands over, a
`reconnecting`, or a `round` that is over; leaving the generator leaves the socket.
"""

import asyncio
import logging
import queue
import threading
import traceback

import agents
import openai
import websockets.exceptions
from agents.models.interface import ModelTracing

from python_sdks import TLS

# An end of a response, or of what asks for none.
ENDS = ("response.completed", "response.failed", "response.incomplete", "response.steer.failed", "error")
# In place of an id: that of the last response of this socket.
LAST = "$last"
PATIENCE = 120

agents.set_tracing_disabled(True)
# It writes down each error that it raises.
logging.getLogger("openai.agents").setLevel(logging.CRITICAL)


def play_openai(command):
    options = {name: command[name] for name in ("timeout", "default_headers")}
    http = openai.DefaultHttpxClient(trust_env=False, verify=TLS)
    with openai.OpenAI(base_url=f"{command['url']}/v1", api_key="sk-test", http_client=http, **options) as client:
        try:
            yield from (post if command["over_http"] else talk)(client, command["rounds"])
        except websockets.exceptions.WebSocketException as error:
            yield {"error": refusal(error)}


def post(client, rounds):
    """The same by POST, to compare with."""
    for event in (event for events in rounds for event in events):
        with client.responses.create(**without_type(event), stream=True) as stream:
            for told in stream:
                yield frame(told)
                if told.type == "response.completed":
                    yield {"output": told.response.output_text}
        yield {"round": True}


def talk(client, rounds):
    lost = []
    # What it takes for the SDK to reconnect at all.
    with client.responses.connect(on_reconnecting=lost.append) as connection:
        last = None
        for events in rounds:
            for event in events:
                method = getattr(connection.response, event["type"].removeprefix("response."))
                method(**with_last(without_type(event), last))
            open_ends = len(events)
            while open_ends:
                told = connection.recv()
                yield {"error": handed(told)} if told.type == "error" else frame(told)
                if told.type == "response.completed":
                    last = told.response.id
                    yield {"output": told.response.output_text}
                open_ends -= told.type in ENDS
            yield {"round": True}
    yield from ({"reconnecting": event.close_code} for event in lost)


def without_type(event):
    return {name: value for name, value in event.items() if name != "type"}


def with_last(event, last):
    if event.get("previous_response_id") != LAST:
        return event
    return {**event, "previous_response_id": last}


def frame(event):
    return {"frame": event.to_dict(mode="json"), "kind": type(event).__name__}


def handed(event):
    """An error event, in the words of the SDK for Node."""
    error = event.error
    return {
        "kind": type(event).__name__,
        "message": error.message,
        "status": event.status,
        "code": error.code,
        "type": error.type,
        "headers": error.headers,
        "error": event.to_dict(mode="json"),
    }


def refusal(error):
    """What the library for WebSockets raises, through either SDK."""
    response = getattr(error, "response", None)
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "status": response and response.status_code,
        "code": None,
        "type": None,
        "headers": response and dict(response.headers),
        "error": response and response.body.decode(),
    }


def play_agents(command):
    """Rounds are runs of one agent; `prepare` has its input made ready without the model."""
    messages = queue.SimpleQueue()
    running = threading.Event()
    here = []

    async def work():
        here.extend([asyncio.get_running_loop(), asyncio.current_task()])
        running.set()
        await converse(command, messages.put)

    def play():
        try:
            # To its end, a cancelled one also: what the SDK began in the background is cancelled with it.
            asyncio.run(work())
        except asyncio.CancelledError:
            pass
        except Exception:
            messages.put({"broken": traceback.format_exc()})
        messages.put({"over": True})

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        while "over" not in (message := messages.get(timeout=PATIENCE)):
            yield message
        here.clear()
    finally:
        running.wait(PATIENCE)
        if here:
            loop, task = here
            loop.call_soon_threadsafe(task.cancel)
        thread.join(PATIENCE)


async def converse(command, tell):
    options = {name: command[name] for name in ("timeout", "default_headers")}
    http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=TLS)
    client = openai.AsyncOpenAI(base_url=f"{command['url']}/v1", api_key="sk-test", http_client=http, **options)
    provider = agents.OpenAIProvider(openai_client=client, use_responses_websocket=not command["over_http"])
    settings = agents.RunConfig(model_provider=provider)
    agent = agents.Agent(name="agent", model=command["model"], tools=[poll])
    last = None
    try:
        for step in command["rounds"]:
            try:
                if step.get("prepare"):
                    last = await prepare(provider.get_model(command["model"]), step["input"])
                else:
                    given = {"previous_response_id": last} if step.get("continues") else {}
                    chain = step.get("chain", False)
                    run = agents.Runner.run_streamed(
                        agent, step["input"], run_config=settings, auto_previous_response_id=chain, **given
                    )
                    async for event in run.stream_events():
                        if event.type == "raw_response_event":
                            tell(frame(event.data))
                    last = run.last_response_id
                    tell({"output": run.final_output})
            except agents.models.openai_responses.ResponsesWebSocketError as error:
                tell({"error": raised(error)})
            except websockets.exceptions.WebSocketException as error:
                tell({"error": refusal(error)})
            tell({"round": True})
    finally:
        await provider.aclose()
        await client.close()


@agents.function_tool
def poll(job: str) -> str:
    """Tells how far a job is."""
    return f"{job} is still running"


async def prepare(model, text):
    """The runner has no word for it."""
    response = await model.get_response(
        system_instructions=None,
        input=text,
        model_settings=agents.ModelSettings(extra_body={"generate": False}),
        tools=[],
        output_schema=None,
        handoffs=[],
        tracing=ModelTracing.DISABLED,
        previous_response_id=None,
        conversation_id=None,
        prompt=None,
    )
    return response.response_id


def raised(error):
    return {
        "kind": type(error).__name__,
        "message": error.error_message,
        "status": error.payload.get("status"),
        "code": error.code,
        "type": error.error_type,
        "headers": error.payload["error"].get("headers"),
        "error": error.payload,
    }
