"""The official SDKs against the gateway example: starts everything, runs the cases, counts."""

import argparse
import difflib
import itertools
import pathlib
import sys

import cases_embedded  # noqa: F401  (registers its cases)
import cases_fallback  # noqa: F401
import cases_frames  # noqa: F401
import cases_heads  # noqa: F401
import cases_limits  # noqa: F401
import cases_mock
import cases_reasons  # noqa: F401
import cases_scripted  # noqa: F401
import runner
import table
import versions
from client import Client
from gateway import Gateway
from node_sdks import Node
from python_sdks import PythonSession
from upstream import Upstream

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/sdk.md"

SCRIPTED = """\
[[candidates]]
name = "scripted"
model = "scripted-model"
base_url = "http://127.0.0.1:{port}/v1"
"""

# The limits of the embedded configuration. They are long enough for an upstream that has to wait for a
# busy machine, which is no matter of these tests.
LIMITS = """\
[attempt]
step_timeout = "2s"
first_token_timeout = "5s"
"""

# The limits of gateways in front of the scripted upstream. Those that one reason is named for let nothing
# else happen, and with `patient` nothing happens by itself.
SCRIPTED_LIMITS = {
    "scripted": LIMITS,
    "max_turn_time": '[run]\nmax_turn_time = "2s"\n',
    "timeout": '[run]\ntimeout = "2s"\n',
    "retry_budget_exceeded": "[retry]\nmax_attempts_per_candidate = 1\nper_error_key = 1\n",
    "per_dispatch_errors_exceeded": "[retry]\nmax_attempts_per_candidate = 1\nper_run = 1\n",
    "patient": "",
}

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
    """Everything that the cases share: the processes, and the scripted upstream."""

    def __init__(self, options):
        self.options = options
        self.gateways = {}
        self.mocks = []
        self.upstream = Upstream()
        self.urls = {"direct": f"http://127.0.0.1:{self.upstream.port}"}
        self.node = Node(options.node, options.node_program, options.logs / "node.log")
        self.numbers = itertools.count(1)

    def start(self, name, arguments, embedded=False):
        """Starts what cases know by its name."""
        process = Gateway(arguments, self.options.logs / f"{name}.log", embedded)
        self.gateways[name] = process
        self.urls[name] = process.url
        return process

    def start_gateway(self, name, text=None):
        """Starts a gateway with this configuration, or with an upstream of its own."""
        if text is not None:
            self._config(name).write_text(text)
        return self.start(name, self._arguments(name if text is not None else None), embedded=text is None)

    def start_mock(self, name, models):
        """Starts an aimock that plays these models."""
        fixtures = self.options.logs / f"{name}.json"
        fixtures.write_text(cases_mock.fixtures(models))
        program = self.options.node_program.parent / "node_modules/@copilotkit/aimock/dist/cli.js"
        arguments = [self.options.node, program, "--port", "0", "--fixtures", fixtures]
        mock = Gateway(arguments, self.options.logs / f"{name}.log")
        self.mocks.append(mock)
        return mock

    def start_another(self, name):
        """A gateway of the same configuration, for one case; the case stops it."""
        log = self.options.logs / f"{name}-{next(self.numbers)}.log"
        return Gateway(self._arguments(name), log)

    def _arguments(self, name):
        config = ["--config", self._config(name)] if name else []
        return [self.options.gateway, "--listen", "127.0.0.1:0", *config]

    def _config(self, name):
        return self.options.logs / f"{name}.toml"

    def stop(self):
        """Stops what was started, by name with the status that it ended with."""
        self.node.stop()
        for mock in self.mocks:
            # How it ends is not our matter, and it waits for those that it keeps waiting.
            mock.process.kill()
        return {name: gateway.stop() for name, gateway in self.gateways.items()}


class Context:
    """What one case works with: clients of its SDK, by the name of what they talk to. `embedded` brings
    its upstream along, `scripted` has one that plays what a case tells it to, and `direct` is that
    upstream without a gateway; `patient` is as `scripted`, without a limit; `reasons` ends its runs for a reason. Others are in `SCRIPTED_LIMITS`
    and `ALONE`."""

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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=pathlib.Path, required=True)
    parser.add_argument("--reasons", type=pathlib.Path, required=True, help="the server of cases_reasons.py")
    parser.add_argument("--node", type=pathlib.Path, required=True)
    parser.add_argument("--node-program", type=pathlib.Path, required=True)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("--table", type=pathlib.Path, help="write what was measured, if all cases are run and pass")
    parser.add_argument("words", nargs="*", help="run only cases whose names contain one of these")
    options = parser.parse_args()
    if options.table and options.words:
        parser.error("--table needs all cases")

    options.logs.mkdir(parents=True, exist_ok=True)
    world = World(options)
    try:
        world.start("reasons", [options.reasons])
        embedded = world.start_gateway("embedded")
        for name, limits in SCRIPTED_LIMITS.items():
            world.start_gateway(name, limits + SCRIPTED.format(port=world.upstream.port))
        for name, models in ALONE.items():
            candidates = [CANDIDATE.format(model=model, upstream=embedded.upstream) for model in models]
            world.start_gateway(name, "\n".join([LIMITS, *candidates]))
        healthy = CANDIDATE.format(model=cases_mock.HEALTHY, upstream=world.start_mock("aimock", [cases_mock.HEALTHY]).url)
        faulty = world.start_mock("faulty aimock", cases_mock.FAULTS)
        faults = {name: CANDIDATE.format(model=name, upstream=faulty.url) for name in cases_mock.FAULTS}
        world.start_gateway("mock", "\n".join([LIMITS, healthy, *faults.values()]))
        for name, candidate in faults.items():
            world.start_gateway(name, LIMITS + candidate)
        cases = runner.chosen(options.words)
        tally, outcomes = runner.run(lambda key, caller: Context(world, key, caller), cases)
    finally:
        statuses = world.stop()

    for name, status in statuses.items():
        tally.check(status == 0, f"{name} ends cleanly on SIGTERM (status {status})")
    if not options.words and not tally.failed:
        page = table.page(cases, outcomes, versions.measured(options.node, options.node_program.parent))
        if options.table:
            options.table.write_text(page)
        check_table(tally, page)
    if tally.skipped:
        print(f"{tally.skipped} skipped, as said above")
    if tally.failed:
        print(f"what the processes wrote to stderr is in {options.logs}")
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


def check_table(tally, page):
    """The page that is committed says what was measured."""
    committed = PAGE.read_text() if PAGE.exists() else ""
    tally.check(page == committed, f"{PAGE.relative_to(ROOT)} says what was measured")
    lines = [text.splitlines(keepends=True) for text in (committed, page)]
    sys.stdout.writelines(difflib.unified_diff(*lines, "committed", "measured", n=0))


if __name__ == "__main__":
    main()
