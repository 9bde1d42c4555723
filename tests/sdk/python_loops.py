"""The loop of an agent as it is written with the official SDKs for Python; node/loops.mjs is the same for Node."""

import json

RESULT = "still running"
ABOUT = "Tells how far a job is."
PARAMETERS = {
    "type": "object",
    "properties": {"job": {"type": "string"}},
    "required": ["job"],
    "additionalProperties": False,
}


class Chat:
    tools = [{"type": "function", "function": {"name": "poll", "description": ABOUT, "parameters": PARAMETERS}}]
    history = "messages"
    more = {}

    @staticmethod
    def ask(client, stream, request):
        if stream:
            with client.chat.completions.stream(**request) as answer:
                message = answer.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**request).choices[0].message
        calls = message.tool_calls
        asked = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in calls
        ]
        results = [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]
        return (
            [(call.function.name, json.loads(call.function.arguments)) for call in calls],
            [{"role": "assistant", "content": message.content, "tool_calls": asked}, *results],
        )


class Responses:
    tools = [{"type": "function", "name": "poll", "description": ABOUT, "parameters": PARAMETERS, "strict": False}]
    history = "input"
    more = {"store": False}

    @staticmethod
    def ask(client, stream, request):
        if stream:
            with client.responses.stream(**request) as answer:
                response = answer.get_final_response()
        else:
            response = client.responses.create(**request)
        calls = [item for item in response.output if item.type == "function_call"]
        asked = [
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            for call in calls
        ]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls]
        return [(call.name, json.loads(call.arguments)) for call in calls], asked + results


class Messages:
    tools = [{"name": "poll", "description": ABOUT, "input_schema": PARAMETERS}]
    history = "messages"
    more = {"max_tokens": 64}

    @staticmethod
    def ask(client, stream, request):
        if stream:
            with client.messages.stream(**request) as answer:
                message = answer.get_final_message()
        else:
            message = client.messages.create(**request)
        calls = [block for block in message.content if block.type == "tool_use"]
        asked = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input} for call in calls]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
        return (
            [(call.name, call.input) for call in calls],
            [{"role": "assistant", "content": asked}, {"role": "user", "content": results}],
        )


LOOPS = {"chat": Chat, "responses": Responses, "messages": Messages}


def poll(client, command, errors):
    """Asks, runs the tools that the answer asks for, and brings the results, again and again; what was
    refused is asked again. Yields the tools that each answer asked for, or its error, which is one of
    `errors`. The history of `command` grows."""
    loop = LOOPS[command["dialect"]]
    models = command["models"]
    for turn in range(command["calls"]):
        request = {
            "model": models[turn % len(models)],
            "tools": loop.tools,
            loop.history: command["history"],
            **loop.more,
            "extra_headers": command["headers"],
            "extra_body": command["body"],
        }
        try:
            asked, new = loop.ask(client, command["stream"], request)
        except errors as error:
            yield error
        else:
            command["history"] += new
            yield asked
