"""A scripted model for agents: it calls a shell tool some times, then says that it is done.

It speaks Anthropic's messages, OpenAI's Responses and OpenAI's chat, as streams, and keeps each
request.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Model:
    """Answers each request of the user with `calls` calls of a shell, then with a text."""

    def __init__(self, calls):
        self.calls = calls
        # A task with this word is delegated to a sub-agent.
        self.delegates = None
        # What the shell is told to do, in place of the number of a step.
        self.command = None
        # The status of every answer, in place of an answer.
        self.fails = None
        # Whether the answer to a request is a text that stops in the middle.
        self.holds = lambda number, body: False
        # How many such answers nobody waits for any more.
        self.dropped = 0
        self.requests = []
        self.lock = threading.Lock()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                with model.lock:
                    model.requests.append((self.path, dict(self.headers.items()), body))
                    number = len(model.requests)
                if model.fails:
                    return self.send(model.fails, "application/json", b'{"error":{"message":"no"}}')
                if self.path.split("?")[0].endswith("/count_tokens"):
                    return self.send(200, "application/json", b'{"input_tokens":10}')
                if self.path.split("?")[0].endswith("/messages"):
                    return self.stream(body, number, anthropic(body, model, number))
                if self.path.split("?")[0].endswith("/responses"):
                    return self.stream(body, number, responses(body, model, number))
                if self.path.split("?")[0].endswith("/chat/completions"):
                    return self.chunks(chat(body, model, number))
                self.send(404, "application/json", b"{}")

            def do_GET(self):
                self.send(404, "application/json", b"{}")

            def stream(self, body, number, events):
                events = [
                    f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
                ]
                if model.holds(number, body):
                    return self.hold(events)
                self.send(200, "text/event-stream", b"".join(events))

            def hold(self, events):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(b"".join(events[:-2]))
                # Nothing more is sent to a model, so what can be read is the end.
                try:
                    self.rfile.read(1)
                except OSError:
                    pass
                model.dropped += 1

            def chunks(self, chunks):
                text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
                self.send(200, "text/event-stream", f"{text}data: [DONE]\n\n".encode())

            def send(self, status, kind, body):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def turns(self):
        """The requests of turns, which offer tools; a title is asked for without."""
        with self.lock:
            return [request for request in self.requests if offered(request[2])]


def offered(body):
    """The declarations of tools, which Codex sends as an item of the input for its newer models."""
    items = body.get("input") if isinstance(body.get("input"), list) else []
    added = [item["tools"] for item in items if item.get("type") == "additional_tools"]
    return sum(added, body.get("tools") or [])


def anthropic(body, model, number):
    """The events of one answer in Anthropic's dialect."""
    done = 0
    for message in body["messages"]:
        content = message["content"]
        blocks = content if isinstance(content, list) else []
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if message["role"] == "user":
            done = done + len(results) if results else 0
    tools = {tool["name"] for tool in body.get("tools", [])}
    calls_tool = done < model.calls and "Bash" in tools
    yield {
        "type": "message_start",
        "message": {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        },
    }
    if calls_tool:
        name = "Bash"
        arguments = {"command": f"echo step {number}", "description": "Prints a number"}
        if model.delegates and model.delegates in json.dumps(body["messages"]):
            name = "Agent"
            arguments = {
                "description": "count",
                "prompt": "count to one",
                "subagent_type": "general-purpose",
                "run_in_background": False,
            }
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "It is done."}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use" if calls_tool else "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    }
    yield {"type": "message_stop"}


def responses(body, model, number):
    """The events of one answer in the dialect of OpenAI's Responses."""
    results = []
    items = body["input"] if isinstance(body["input"], list) else []
    for item in items:
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            results.append(item["output"])
        # A sub-agent's end is a message of the user to Codex.
        elif item.get("role") == "user" and "<subagent_notification>" not in json.dumps(item):
            results = []
    done = len(results)
    delegates = model.delegates and model.delegates in json.dumps(items)
    tools = {tool.get("name") for tool in offered(body)}
    # In a namespace of its newer models Codex offers a shell to programs alone.
    runs_programs = "functions" in tools
    command = model.command or f"echo step {number}"
    shell = next((name for name in ("exec_command", "shell_command", "shell") if name in tools), None)
    calls_tool = not delegates and done < model.calls and not model.holds(number, body)
    if delegates and done < 2:
        # The agent is started, and then waited for, by the id in the first result.
        name, arguments = ("spawn_agent", {"message": "count to one"})
        if done == 1:
            name, arguments = ("wait_agent", {"targets": [json.loads(results[0])["agent_id"]]})
        item = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "namespace": "multi_agent_v1",
            "name": name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
    elif calls_tool and shell:
        arguments = {
            "exec_command": {"cmd": command},
            "shell_command": {"command": command},
            "shell": {"command": ["bash", "-lc", command]},
        }[shell]
        item = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": shell,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
    elif calls_tool and runs_programs:
        item = {
            "type": "custom_tool_call",
            "id": f"ctc_{number}",
            "call_id": f"call_{number}",
            "namespace": "functions",
            "name": "exec",
            "input": f"text((await tools.exec_command({json.dumps({'cmd': command})})).output)",
            "status": "completed",
        }
    else:
        text = {"type": "output_text", "text": "It is done.", "annotations": []}
        item = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "content": [text],
            "status": "completed",
        }
    answer = {"id": f"resp_{number}", "object": "response", "model": body["model"]}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }
    yield {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    if item["type"] == "message":
        delta = {"item_id": item["id"], "output_index": 0, "content_index": 0, "delta": "It is "}
        yield {"type": "response.output_text.delta", **delta}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    done = {**answer, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done}


def chat(body, model, number):
    """The chunks of one answer in the dialect of OpenAI's chat."""
    done = 0
    for message in body["messages"]:
        if message["role"] == "user":
            done = 0
        elif message["role"] == "tool":
            done += 1
    tools = {tool["function"]["name"] for tool in body.get("tools", [])}
    delegates = model.delegates and model.delegates in json.dumps(body["messages"])
    tool = None
    if delegates and "task" in tools and done < 1:
        tool = "task"
        arguments = {"description": "count", "prompt": "count to one", "subagent_type": "general"}
    elif done < model.calls and "bash" in tools and not delegates:
        tool = "bash"
        arguments = {"command": f"echo step {number}", "description": "Prints a number"}
    chunk = {"id": f"chatcmpl_{number}", "object": "chat.completion.chunk", "model": body["model"]}
    if tool:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        delta = {"role": "assistant", "tool_calls": [call]}
    else:
        delta = {"role": "assistant", "content": "It is done."}
    yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    finish = "tool_calls" if tool else "stop"
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield {**chunk, "choices": [], "usage": usage}
