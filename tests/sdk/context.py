"""What one case works with."""

from client import Client
from python_sdks import PythonSession


class Context:
    """Clients of the case's SDK, by the name of what they talk to: `embedded` brings its upstream along,
    `scripted` has one that plays what a case tells it to, `patient` is the same without a limit, and
    `direct` is that upstream without a gateway. `mock` has one that others wrote, and `reasons` ends its
    runs for a reason. `alone` knows all of `world.py`."""

    def __init__(self, world, key, caller):
        self.world = world
        self.key = key
        self.prompt = f"{key} Say hello."
        self.upstream = world.upstream
        self.caller = caller
        self.outcome = None
        self.clients = {}
        self.sessions = []
        self.started = []

    def alone(self, name):
        if name not in self.clients:
            self.clients[name] = self._client(self.world.urls[name])
        return self.clients[name]

    def start(self, name):
        """A client of a gateway that is the case's own, to be ended by it."""
        gateway = self.world.start_another(name)
        self.started.append(gateway)
        client = self._client(gateway.url)
        self.clients[gateway] = client
        return client, gateway

    def in_front(self, text, environment):
        """The same of a gateway of this configuration, and the address of the upstream that it has for
        itself."""
        simulated = self.world.start_simulated()
        self.started.append(simulated)
        gateway = self.world.start_in_front(simulated.upstream, text, environment)
        self.started.append(gateway)
        client = self._client(gateway.url)
        self.clients[gateway] = client
        return client, gateway, simulated.upstream

    def restart(self, client):
        """The client's calls are those of another process from now on."""
        client.play = self.world.second(self.caller.sdk.runtime).play

    def _client(self, url):
        sdk = self.caller and self.caller.sdk
        play = self.world.node.play
        if sdk and sdk.runtime == "python":
            session = PythonSession(url)
            self.sessions.append(session)
            play = session.play
        return Client(sdk, url, play, self._record)

    def _record(self, outcome):
        self.outcome = outcome

    @property
    def embedded(self):
        return self.alone("embedded")

    @property
    def scripted(self):
        return self.alone("scripted")

    @property
    def patient(self):
        return self.alone("patient")

    @property
    def direct(self):
        return self.alone("direct")

    @property
    def mock(self):
        return self.alone("mock")

    @property
    def reasons(self):
        return self.alone("reasons")

    def play(self, script):
        self.upstream.play(self.key, script)

    def close(self):
        for closing in [*self.clients.values(), *self.sessions]:
            closing.close()
        for gateway in self.started:
            gateway.stop()
