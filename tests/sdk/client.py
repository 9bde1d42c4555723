"""A caller: one SDK with its defaults in front of one address, and a count of what it sends."""

from dataclasses import dataclass, field
from typing import Optional, Tuple

import httpx2

# A bound on silence towards the caller, so that a broken gateway fails a case instead of hanging it.
TIMEOUT = 30


@dataclass
class Seen:
    """What a caller got of one stream, also if it ended in an exception."""

    deltas: list = field(default_factory=list)
    events: list = field(default_factory=list)
    usage: Optional[Tuple[int, int]] = None
    headers: dict = field(default_factory=dict)

    @property
    def text(self):
        return "".join(self.deltas)

    @property
    def run_id(self):
        return self.headers.get("x-run-id")


class Raised(Exception):
    """What an SDK raised, in the same words for each of them."""

    def __init__(self, described):
        super().__init__(f"{described['kind']}: {described['message']}")
        self.kind = described["kind"]
        self.message = described["message"]
        self.status = described["status"]
        self.code = described["code"]
        self.type = described["type"]
        self.headers = described["headers"] or {}
        self.error = described["error"]


class Client:
    """`play` runs a command with the SDK and yields what it shows. The number of retries stays at its
    default unless a case says so: one would be seen. `record` is told how each call ended."""

    def __init__(self, sdk, url, play, record):
        self.sdk = sdk
        self.url = url
        self.play = play
        self.record = record
        self.sent = 0
        self.raw = httpx2.Client(trust_env=False, timeout=TIMEOUT, verify=False)

    def close(self):
        self.raw.close()

    def ask(self, dialect, model, prompt, **options):
        """A unary call: text and (input, output) tokens."""
        text, usage = self._value("ask", dialect.request(model, prompt), dialect, options)
        return text, tuple(usage)

    def accumulate(self, dialect, model, prompt, **options):
        """The same by the SDK's own accumulating stream."""
        text, usage = self._value("accumulate", dialect.request(model, prompt), dialect, options)
        return text, tuple(usage)

    def models(self):
        """(object, id) of each model."""
        return [tuple(model) for model in self._value("models")]

    def embeddings(self, model, texts):
        """The vectors, and how many tokens they took."""
        # The default differs: base64, which the SDKs read themselves.
        return self._value("embeddings", {"model": model, "input": texts})

    def count_tokens(self, model, prompt):
        return self._value("count_tokens", {"model": model, "messages": [{"role": "user", "content": prompt}]})

    def stream(self, dialect, model, prompt, seen=None, until=None, **options):
        """Reads a stream to its end, or until it has shown `until` deltas; what came is in `seen`."""
        seen = Seen() if seen is None else seen
        request = dialect.request(model, prompt, stream=True)
        stream = Stream(self, self._messages("stream", request, dialect, options), seen)
        stream.read(until)
        return seen if until is None else stream

    def _value(self, operation, request=None, dialect=None, options=None):
        value = None
        for message in self._messages(operation, request or {}, dialect, options or {}):
            value = message.get("value", value)
        return value

    def _messages(self, operation, request, dialect, options):
        # By the names that the SDKs for Node have for them.
        given = {"headers": options.get("headers"), "maxRetries": options.get("retries")}
        command = {
            "operation": operation,
            "sdk": self.sdk.key,
            "url": self.url,
            "dialect": dialect and dialect.name,
            "request": request,
            "options": {name: value for name, value in given.items() if value is not None},
            "timeout": options.get("timeout", TIMEOUT),
        }
        before, sent = self.sent, 0
        for message in self.play(command):
            if "broken" in message:
                raise AssertionError(message["broken"])
            if "sent" in message:
                sent = message["sent"]
                self.sent = before + sent
            elif "raised" in message:
                raised = Raised(message["raised"])
                self.record(Outcome(raised, sent))
                raise raised
            else:
                yield message
        self.record(Outcome(None, sent))


class Stream:
    """A call under way."""

    def __init__(self, client, messages, seen):
        self.client = client
        self.messages = messages
        self.seen = seen

    def read(self, until=None):
        for message in self.messages:
            self._see(message)
            if until and len(self.seen.deltas) >= until:
                return

    def _see(self, message):
        if "head" in message:
            self.seen.headers = message["head"]
        elif "event" in message:
            self.seen.events.append(message["event"])
        elif "delta" in message:
            self.seen.deltas.append(message["delta"])
        elif "usage" in message:
            self.seen.usage = tuple(message["usage"])

    def close(self):
        """The caller leaves."""
        self.messages.close()
        self.client.record(Outcome(None, None))


@dataclass
class Outcome:
    """How a call ended: what it raised if it did, after how many requests; none if the caller left."""

    raised: Optional[Raised]
    sent: Optional[int]

    def __str__(self):
        if self.sent is None:
            return "left"
        end = "ends" if self.raised is None else f"`{self.raised.kind}`"
        status = f" {self.raised.status}" if self.raised and self.raised.status else ""
        times = "" if self.sent == 1 else f", {self.sent} requests"
        return f"{end}{status}{times}"
