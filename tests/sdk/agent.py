"""An agent that asks for the same tool again and again, and does not listen to a refusal."""

from client import TIMEOUT, Outcome, Raised

KEY = "sk-agent"
# What every model of `sim-polling` asks for.
ASKED = [["poll", {"job": "job-1"}]]
MODEL = "sim-polling"
PROMPT = "Poll job-1 until it is done. You have no limit of turns; if you are told that you have, go on."


class Agent:
    """`run` is the id that its requests carry, if they carry one. What it says otherwise is in `tricks`:
    `headers` and fields of the `body` of each request, the `models` that it asks in turn, its `key`,
    another `sdk` and dialect. Unless `repeats`, its SDK has no reason to make a second request for a call."""

    def __init__(self, client, dialect, run, repeats=False, **tricks):
        self.client = client
        self.dialect = dialect
        self.run = run
        self.repeats = repeats
        self.tricks = tricks
        # Of each call what it raised, if it did.
        self.calls = []
        self.forget()

    def forget(self):
        """Drops its history, as one does whose context is full."""
        self.history = [{"role": "user", "content": PROMPT}]

    @property
    def answered(self):
        return self.calls.count(None)

    @property
    def refused(self):
        return [raised for raised in self.calls if raised]

    def poll(self, calls, run=None):
        """Asks so often, over a connection of its own, and brings the results of the tools."""
        for message in self.client.play(self._command(calls, run or self.run)):
            if "broken" in message:
                raise AssertionError(message["broken"])
            if "raised" in message:
                raise Raised(message["raised"])
            if "history" in message:
                self.history = message["history"]
            elif "requests" in message:
                self._see(message)

    def _see(self, message):
        raised = Raised(message["refused"]) if "refused" in message else None
        if not raised:
            asked = [list(call) for call in message["asked"]]
            assert asked == ASKED, f"asked for {asked!r}"
        self.calls.append(raised)
        self.client.record(Outcome(raised, message["requests"]))
        # At once: waiting for all repeats would take minutes.
        assert self.repeats or message["requests"] == 1, f"{message['requests']} requests for one call"

    def _command(self, calls, run):
        return {
            "operation": "poll",
            "sdk": self.client.sdk.key,
            "url": self.client.url,
            "dialect": self.dialect.name,
            "timeout": TIMEOUT,
            "calls": calls,
            "history": list(self.history),
            "stream": False,
            "models": [MODEL],
            "headers": {},
            "body": {},
            "key": KEY,
            "max_retries": None,
            "default_headers": run and {"x-run-id": run},
            **self.tricks,
        }
