"""The official SDKs against the gateway example: starts everything, runs the cases, counts."""

import argparse
import pathlib
import sys

import cases_embedded  # noqa: F401  (registers its cases)
import cases_fallback  # noqa: F401
import cases_scripted  # noqa: F401
import runner
from client import Client
from gateway import Gateway
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


class Context:
    """What one case works with: callers of the gateways, by name. `embedded` brings its upstream along,
    `scripted` has one that plays what a case tells it to; the others are in `ALONE`."""

    def __init__(self, key, gateways, upstream):
        self.key = key
        self.prompt = f"{key} Say hello."
        self.upstream = upstream
        self.gateways = gateways
        self.clients = {}

    def alone(self, name):
        # An SDK's client takes long to make, and a case needs one or two.
        if name not in self.clients:
            self.clients[name] = Client(self.gateways[name].url)
        return self.clients[name]

    @property
    def embedded(self):
        return self.alone("embedded")

    @property
    def scripted(self):
        return self.alone("scripted")

    def play(self, script):
        self.upstream.play(self.key, script)

    def close(self):
        for client in self.clients.values():
            client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=pathlib.Path, required=True)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("words", nargs="*", help="run only cases whose names contain one of these")
    options = parser.parse_args()

    options.logs.mkdir(parents=True, exist_ok=True)
    upstream = Upstream()
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
        passed, failed = runner.run(lambda key: Context(key, gateways, upstream), options.words)
    finally:
        statuses = {name: gateway.stop() for name, gateway in gateways.items()}

    for name, status in statuses.items():
        clean = status == 0
        passed, failed = passed + clean, failed + (not clean)
        print(f"{'ok' if clean else 'FAILED':6}          {name} gateway ends cleanly on SIGTERM (status {status})")
    if failed:
        print(f"the gateways' stderr is in {options.logs}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
