"""A caller: the official SDKs with their defaults, and a count of what they send."""

import anthropic
import httpx2
import openai

import dialects

# What a caller can catch. Anthropic's SDK lets the client's own errors through mid-stream.
SDK_ERRORS = (openai.OpenAIError, anthropic.AnthropicError, httpx2.HTTPError)

# A bound on silence towards the caller, so that a broken gateway fails a case instead of hanging it.
TIMEOUT = 30


class Client:
    """Both SDKs against one gateway. The number of retries stays at its default: one would be seen."""

    def __init__(self, url):
        self.url = url
        self.sent = 0
        self.openai = openai.OpenAI(
            base_url=f"{url}/v1", api_key="sk-test", timeout=TIMEOUT, http_client=self._http(openai.DefaultHttpxClient)
        )
        self.anthropic = anthropic.Anthropic(
            base_url=url, api_key="sk-test", timeout=TIMEOUT, http_client=self._http(anthropic.DefaultHttpxClient)
        )
        self.raw = self._http(httpx2.Client)

    def _http(self, kind):
        # Called for each request on the wire, so also for each retry.
        return kind(event_hooks={"request": [self._count]}, trust_env=False, timeout=TIMEOUT)

    def _count(self, _request):
        self.sent += 1

    def close(self):
        self.openai.close()
        self.anthropic.close()
        self.raw.close()

    def ask(self, dialect, model, prompt, **options):
        """A unary call: text and (input, output) tokens."""
        return dialect.read(dialect.create(self, **dialect.request(model, prompt), **options))

    def open(self, dialect, model, prompt, **options):
        """A streaming call whose head has arrived."""
        return dialect.create(self, **dialect.request(model, prompt, stream=True), **options)

    def stream(self, dialect, model, prompt, seen=None, until=None):
        """Reads a stream to its end, or until it has shown `until` deltas; what came is in `seen`."""
        seen = dialects.Seen() if seen is None else seen
        stream = self.open(dialect, model, prompt)
        seen.run_id = stream.response.headers.get("x-run-id")
        for event in stream:
            dialect.see(event, seen)
            if until and len(seen.deltas) >= until:
                break
        return seen if until is None else stream
