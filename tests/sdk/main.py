"""The official SDKs against the gateway example: starts everything, runs the cases, counts."""

import argparse
import pathlib
import sys

import cases_embedded  # noqa: F401  (registers its cases)
import cases_fallback  # noqa: F401
import cases_frames  # noqa: F401
import cases_heads  # noqa: F401
import cases_scripted  # noqa: F401
import runner
from client import Client
from gateway import Gateway
from node_sdks import Node
from python_sdks import PythonSession
from upstream import Upstream

CONFIG = """\
[attempt]
step_timeout = "1s"
first_token_timeout = "2s"

[[candidates]]
name = "scripted"
model = "scripted-model"
base_url = "http://127.0.0.1:{port}/v1"
"""

# The limits of the embedded configuration.
LIMITS = """\
[attempt]
step_timeout = "2s"
first_token_timeout = "5s"
"""

CANDIDATE = """\
[[candidates]]
model = "{model}"
base_url = "{upstream}/v1"
"""

# Gateways in front of the simulated upstream of the embedded one: nobody stands in for what fails here.
ALONE = {
    "stall-head": ["sim-stall-head"],
    "stall-stream": ["sim-stall-stream"],
    "ping": ["sim-ping"],
    "cut": ["sim-cut"],
    "failing": ["sim-failing", "sim-overloaded"],
    "overloaded": ["sim-failing", "sim-overloaded-stream"],
}


class World:
    """Everything that the cases share: addresses by name, the scripted upstream, and Node."""

    def __init__(self, urls, upstream, node):
        self.urls = urls
        self.upstream = upstream
        self.node = node


class Context:
    """What one case works with: clients of its SDK, by the name of what they talk to. `embedded` brings
    its upstream along, `scripted` has one that plays what a case tells it to, and `direct` is that
    upstream without a gateway; others are in `ALONE`."""

    def __init__(self, world, key, caller):
        self.world = world
        self.key = key
        self.prompt = f"{key} Say hello."
        self.upstream = world.upstream
        self.caller = caller
        self.outcome = None
        self.clients = {}
        self.sessions = []

    def alone(self, name):
        if name not in self.clients:
            url = self.world.urls[name]
            sdk = self.caller and self.caller.sdk
            self.clients[name] = Client(sdk, url, self._play(sdk, url), self._record)
        return self.clients[name]

    def _play(self, sdk, url):
        if sdk is None or sdk.runtime == "node":
            return self.world.node.play
        session = PythonSession(url)
        self.sessions.append(session)
        return session.play

    def _record(self, outcome):
        self.outcome = outcome

    @property
    def embedded(self):
        return self.alone("embedded")

    @property
    def scripted(self):
        return self.alone("scripted")

    @property
    def direct(self):
        return self.alone("direct")

    def play(self, script):
        self.upstream.play(self.key, script)

    def close(self):
        for closing in [*self.clients.values(), *self.sessions]:
            closing.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=pathlib.Path, required=True)
    parser.add_argument("--node", type=pathlib.Path, required=True)
    parser.add_argument("--node-program", type=pathlib.Path, required=True)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("words", nargs="*", help="run only cases whose names contain one of these")
    options = parser.parse_args()

    options.logs.mkdir(parents=True, exist_ok=True)
    upstream = Upstream()
    node = Node(options.node, options.node_program, options.logs / "node.log")
    embedded = Gateway(options.gateway, options.logs / "embedded.log")
    gateways = {"embedded": embedded}
    configs = {"scripted": CONFIG.format(port=upstream.port)}
    for name, models in ALONE.items():
        candidates = [CANDIDATE.format(model=model, upstream=embedded.upstream) for model in models]
        configs[name] = "\n".join([LIMITS, *candidates])
    try:
        for name, text in configs.items():
            config = options.logs / f"{name}.toml"
            config.write_text(text)
            gateways[name] = Gateway(options.gateway, options.logs / f"{name}.log", config)
        urls = {name: gateway.url for name, gateway in gateways.items()}
        urls["direct"] = f"http://127.0.0.1:{upstream.port}"
        world = World(urls, upstream, node)
        tally, _ = runner.run(lambda key, caller: Context(world, key, caller), runner.chosen(options.words))
    finally:
        statuses = {name: gateway.stop() for name, gateway in gateways.items()}
        node.stop()

    for name, status in statuses.items():
        tally.check(status == 0, f"{name} gateway ends cleanly on SIGTERM (status {status})")
    if tally.skipped:
        print(f"{tally.skipped} skipped, as said above")
    if tally.failed:
        print(f"what the processes wrote to stderr is in {options.logs}")
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
