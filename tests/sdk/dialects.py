"""The three streaming APIs on the wire: what a caller asks, and what an upstream writes.

It is written out here, apart from the simulated upstream in Rust, so that the two cannot agree on
a mistake.
"""

import json

INPUT_TOKENS = 11


def event(value, named=True):
    """One server-sent event; `named` adds the `event:` line of Responses and Anthropic."""
    name = f"event: {value['type']}\n" if named else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


class Chat:
    """OpenAI chat completions."""

    name = "chat"
    operation = "chat/completions"
    life = b": ping\n\n"
    done = b"data: [DONE]\n\n"
    own_error = b'data: {"error":{"message":"upstream is melting","type":"server_error","code":"melted","param":null}}\n\n'

    def chunk(self, choices, usage=None):
        return event(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "scripted",
                "choices": choices,
                "usage": usage,
            },
            named=False,
        )

    def choice(self, delta, finish_reason=None):
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]

    def usage(self, output):
        return {"prompt_tokens": INPUT_TOKENS, "completion_tokens": output, "total_tokens": INPUT_TOKENS + output}

    def prelude(self):
        return self.chunk(self.choice({"role": "assistant", "content": ""}))

    def opening(self):
        return b""

    def delta(self, text):
        return self.chunk(self.choice({"content": text}))

    def closing(self, deltas):
        return self.unterminated(deltas) + self.done

    def unterminated(self, deltas):
        """The end of a whole answer, without the terminator of its API."""
        return self.finish() + self.chunk([], self.usage(len(deltas)))

    def finish(self):
        return self.chunk(self.choice({}, "stop"))

    def whole(self, deltas):
        message = {"role": "assistant", "content": "".join(deltas), "refusal": None}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": self.usage(len(deltas)),
        }

    def request(self, model, prompt, stream=False):
        request = {"model": model, "messages": [{"role": "user", "content": prompt}]}
        if stream:
            request.update(stream=True, stream_options={"include_usage": True})
        return request


class Responses:
    """OpenAI Responses."""

    name = "responses"
    operation = "responses"
    life = b": ping\n\n"
    own_error = (
        b"event: error\n"
        b'data: {"type":"error","error":{"type":"server_error","code":"melted","message":"upstream is melting",'
        b'"param":null},"sequence_number":9}\n\n'
    )

    def response(self, status, deltas=()):
        output = len(deltas)
        completed = status == "completed"
        item = {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "".join(deltas), "annotations": []}],
        }
        usage = {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + output,
        }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": "scripted",
            "output": [item] if completed else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage if completed else None,
        }

    def place(self, kind, number, **more):
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "sequence_number": number}
        return event({"type": f"response.{kind}", **place, **more})

    def prelude(self):
        return b"".join(
            event({"type": f"response.{kind}", "sequence_number": number, "response": self.response("in_progress")})
            for number, kind in enumerate(["created", "in_progress"])
        )

    def opening(self):
        """What those who put the answer together need before its first delta."""
        item = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        added = {"type": "response.output_item.added", "output_index": 0, "sequence_number": 2, "item": item}
        return event(added) + self.place("content_part.added", 3, part=part)

    def delta(self, text):
        return self.place("output_text.delta", 4, delta=text, logprobs=[])

    def closing(self, deltas, last="response.completed"):
        text = "".join(deltas)
        response = self.response("completed", deltas)
        return (
            self.place("output_text.done", 5, text=text, logprobs=[])
            + event({"type": "response.output_item.done", "output_index": 0, "sequence_number": 6, "item": response["output"][0]})
            + event({"type": last, "sequence_number": 7, "response": response})
        )

    def unterminated(self, deltas):
        """The end of a whole answer, as some upstreams say it in place of the terminator."""
        return self.closing(deltas, "response.done")

    def whole(self, deltas):
        return self.response("completed", deltas)

    def request(self, model, prompt, stream=False):
        request = {"model": model, "input": prompt}
        if stream:
            request.update(stream=True)
        return request


class Messages:
    """Anthropic messages."""

    name = "messages"
    operation = "messages"
    life = b'event: ping\ndata: {"type": "ping"}\n\n'
    own_error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"upstream is melting"}}\n\n'

    def message(self, content, stop_reason, output):
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": output},
        }

    def prelude(self):
        return event({"type": "message_start", "message": self.message([], None, 1)}) + event(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        )

    def opening(self):
        return b""

    def delta(self, text):
        return event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def closing(self, deltas):
        return self.unterminated(deltas) + event({"type": "message_stop"})

    def unterminated(self, deltas):
        """The end of a whole answer, without the terminator of its API."""
        return event({"type": "content_block_stop", "index": 0}) + event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": len(deltas)},
            }
        )

    def whole(self, deltas):
        return self.message([{"type": "text", "text": "".join(deltas)}], "end_turn", len(deltas))

    def request(self, model, prompt, stream=False):
        request = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}
        if stream:
            request.update(stream=True)
        return request

DIALECTS = [Chat(), Responses(), Messages()]


def of_path(path):
    """The dialect that an upstream is asked for."""
    return next(dialect for dialect in DIALECTS if path.split("?")[0].endswith("/" + dialect.operation))
