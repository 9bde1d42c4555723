"""Plays calls with the official SDKs for Python; what it yields is what node/main.mjs writes."""

import json
import ssl
from contextlib import closing

import anthropic
import httpx2
import openai

import python_loops

# What a caller can catch. Anthropic's SDK lets the client's own errors through mid-stream, either lets
# those of its JSON, and OpenAI's accumulating streams raise a bare error at what they did not expect.
SDK_ERRORS = (openai.OpenAIError, anthropic.AnthropicError, httpx2.HTTPError, json.JSONDecodeError, RuntimeError)


# Not used, and long in the making.
TLS = ssl.create_default_context()


class PythonSession:
    """Both SDKs against one address. Other settings than the timeout stay at their defaults."""

    def __init__(self, url):
        self.url = url
        self.sent = 0
        self.clients = {}

    def close(self):
        for client in self.clients.values():
            client.close()

    def play(self, command):
        """Yields a message for whatever the SDK shows; leaving the generator leaves the call."""
        before = self.sent
        try:
            yield from getattr(self, f"_{command['operation']}")(command)
        except SDK_ERRORS as error:
            yield {"sent": self.sent - before}
            yield {"raised": describe(error)}
        else:
            yield {"sent": self.sent - before}

    def _client(self, command):
        name = command["sdk"]
        if name not in self.clients:
            self.clients[name] = self._make(name)
        options = {"timeout": command["timeout"]}
        if "maxRetries" in command["options"]:
            options["max_retries"] = command["options"]["maxRetries"]
        return self.clients[name].with_options(**options)

    def _make(self, name, key="sk-test", **options):
        kind, http, root = {
            "openai": (openai.OpenAI, openai.DefaultHttpxClient, "/v1"),
            "anthropic": (anthropic.Anthropic, anthropic.DefaultHttpxClient, ""),
        }[name]
        # Called for each request on the wire, so also for each retry.
        counted = http(event_hooks={"request": [self._count]}, trust_env=False, verify=TLS)
        return kind(base_url=self.url + root, api_key=key, http_client=counted, **options)

    def _count(self, _request):
        self.sent += 1

    def _ask(self, command):
        speak = SPEAK[command["dialect"]]
        yield {"value": speak.read(speak.create(self._client(command), **arguments(command)))}

    def _stream(self, command):
        before = self.sent
        speak = SPEAK[command["dialect"]]()
        with closing(speak.create(self._client(command), **arguments(command))) as stream:
            yield {"sent": self.sent - before}
            yield {"head": dict(stream.response.headers)}
            for event in stream:
                yield from speak.see(event)

    def _accumulate(self, command):
        speak = SPEAK[command["dialect"]]
        yield {"value": speak.accumulate(self._client(command), **arguments(command))}

    def _models(self, command):
        yield {"value": [[model.object, model.id] for model in self._client(command).models.list().data]}

    def _embeddings(self, command):
        answer = self._client(command).embeddings.create(**command["request"])
        yield {"value": [[item.embedding for item in answer.data], answer.usage.total_tokens]}

    def _count_tokens(self, command):
        yield {"value": self._client(command).messages.count_tokens(**command["request"]).input_tokens}

    def _poll(self, command):
        # As users do it: whose run it is, is said once. Nobody else uses its connections, or counts with it.
        own = PythonSession(self.url)
        options = {name: command[name] for name in ("max_retries", "default_headers") if command[name] is not None}
        with own._make(command["sdk"], command["key"], timeout=command["timeout"], **options) as client:
            before = 0
            for answer in python_loops.poll(client, command, SDK_ERRORS):
                told = {"refused": describe(answer)} if isinstance(answer, SDK_ERRORS) else {"asked": answer}
                yield {**told, "requests": own.sent - before}
                before = own.sent
        yield {"history": command["history"]}


def arguments(command):
    return {**command["request"], "extra_headers": command["options"].get("headers")}


def describe(error):
    """An exception, told in the words of the SDKs for Node."""
    response = getattr(error, "response", None)
    body = getattr(error, "body", None)
    kind = getattr(error, "type", None)
    if isinstance(error, anthropic.APIError) and isinstance(body, dict):
        kind = (body.get("error") or {}).get("type")
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "status": getattr(error, "status_code", None),
        "code": getattr(error, "code", None),
        "type": kind,
        "headers": dict(response.headers) if response is not None else None,
        "error": body,
    }


class Chat:
    @staticmethod
    def create(client, **request):
        return client.chat.completions.create(**request)

    @staticmethod
    def read(answer):
        return [answer.choices[0].message.content, [answer.usage.prompt_tokens, answer.usage.completion_tokens]]

    def see(self, chunk):
        for choice in chunk.choices or ():
            if choice.delta.content:
                yield {"delta": choice.delta.content}
        if chunk.usage:
            yield {"usage": [chunk.usage.prompt_tokens, chunk.usage.completion_tokens]}

    @classmethod
    def accumulate(cls, client, **request):
        with client.chat.completions.stream(stream_options={"include_usage": True}, **request) as stream:
            return cls.read(stream.get_final_completion())


class Responses:
    @staticmethod
    def create(client, **request):
        return client.responses.create(**request)

    @staticmethod
    def read(answer):
        return [answer.output_text, [answer.usage.input_tokens, answer.usage.output_tokens]]

    def see(self, event):
        yield {"event": event.type}
        if event.type == "response.output_text.delta":
            yield {"delta": event.delta}
        elif event.type == "response.completed":
            yield {"usage": [event.response.usage.input_tokens, event.response.usage.output_tokens]}

    @classmethod
    def accumulate(cls, client, **request):
        with client.responses.stream(**request) as stream:
            return cls.read(stream.get_final_response())


class Messages:
    @staticmethod
    def create(client, **request):
        return client.messages.create(**request)

    @staticmethod
    def read(answer):
        return [answer.content[0].text, [answer.usage.input_tokens, answer.usage.output_tokens]]

    def see(self, event):
        yield {"event": event.type}
        if event.type == "message_start":
            self.input = event.message.usage.input_tokens
        elif event.type == "content_block_delta":
            yield {"delta": event.delta.text}
        elif event.type == "message_delta":
            yield {"usage": [self.input, event.usage.output_tokens]}

    @classmethod
    def accumulate(cls, client, **request):
        with client.messages.stream(**request) as stream:
            return cls.read(stream.get_final_message())


SPEAK = {"chat": Chat, "responses": Responses, "messages": Messages}
