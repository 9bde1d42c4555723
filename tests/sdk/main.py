"""The official SDKs against the gateway example: starts everything, runs the cases, counts."""

import argparse
import pathlib
import sys

import cases_embedded  # noqa: F401  (registers its cases)
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


class Context:
    """What one case works with. `embedded` and `scripted` are callers of the two gateways."""

    def __init__(self, key, embedded, scripted, upstream):
        self.key = key
        self.prompt = f"{key} Say hello."
        self.upstream = upstream
        self.embedded = Client(embedded.url)
        self.scripted = Client(scripted.url)

    def play(self, script):
        self.upstream.play(self.key, script)

    def close(self):
        self.embedded.close()
        self.scripted.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=pathlib.Path, required=True)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("words", nargs="*", help="run only cases whose names contain one of these")
    options = parser.parse_args()

    options.logs.mkdir(parents=True, exist_ok=True)
    upstream = Upstream()
    config = options.logs / "gateway.toml"
    config.write_text(CONFIG.format(port=upstream.port))
    gateways = {"embedded": Gateway(options.gateway, options.logs / "embedded.log")}
    try:
        gateways["scripted"] = Gateway(options.gateway, options.logs / "scripted.log", config)
        passed, failed = runner.run(lambda key: Context(key, **gateways, upstream=upstream), options.words)
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
