"""What the cases play in: gateways with their configurations, the upstreams behind them, and those who call."""

import itertools
import pathlib
import sys
import threading

import cases_mock
from process import Process
from program import Program
from upstream import Upstream

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
    "token_cap_reached": "[run]\nmax_output_tokens = 12\n",
    "run_paused": '[run]\nmax_turns = 1\nat_cap = "pause"\npause_wait = "0s"\n',
    "early": LIMITS + '[progress]\nearly_head = "100ms"\nkeep_alive = "50ms"\nnotify_after = 0\n',
    "patient": "",
    # For sockets: one turn a run, signs of life, an upstream's error that is not tried again, and none at all.
    "turn_cap_reached": "[run]\nmax_turns = 1\n",
    "signs-of-life": '[progress]\nkeep_alive = "100ms"\n',
    "tried-once": "[retry]\nmax_attempts_per_candidate = 1\n",
    "no-websocket": "[server]\nwebsocket = false\n",
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
        self.numbers = itertools.count(1)
        self.gateways = {}
        self.lent = []
        self.mocks = []
        self.upstream = Upstream()
        self.urls = {"direct": f"http://127.0.0.1:{self.upstream.port}"}
        self.node = self._program("node", "node")
        self.seconds = {}
        self.lock = threading.Lock()

    def start_all(self):
        """Starts everything that is there for all cases."""
        self.start("reasons", [self.options.reasons])
        embedded = self.start_gateway("embedded")
        for name, limits in SCRIPTED_LIMITS.items():
            self.start_gateway(name, limits + SCRIPTED.format(port=self.upstream.port))
        for name, models in ALONE.items():
            candidates = [CANDIDATE.format(model=model, upstream=embedded.upstream) for model in models]
            self.start_gateway(name, "\n".join([LIMITS, *candidates]))
        self.start_mocks()

    def start_mocks(self):
        """Starts a healthy and a faulty aimock, a gateway in front of both, and one for each fault alone."""
        healthy = self.start_mock("aimock", [cases_mock.HEALTHY])
        faulty = self.start_mock("faulty aimock", cases_mock.FAULTS)
        spare = CANDIDATE.format(model=cases_mock.HEALTHY, upstream=healthy.url)
        faults = {name: CANDIDATE.format(model=name, upstream=faulty.url) for name in cases_mock.FAULTS}
        # Listed first, the healthy one comes next after the one that is asked for.
        self.start_gateway("mock", "\n".join([LIMITS, spare, *faults.values()]))
        for name, candidate in faults.items():
            self.start_gateway(name, LIMITS + candidate)

    def start(self, name, arguments, embedded=False):
        """Starts what cases know by its name."""
        process = Process(arguments, self.options.logs / f"{name}.log", embedded)
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
        mock = Process(arguments, self.options.logs / f"{name}.log")
        self.mocks.append(mock)
        return mock

    def start_another(self, name):
        """A gateway of the same configuration, for one case; the case stops it."""
        return self._lend(name, f"{name}-{next(self.numbers)}")

    def start_simulated(self):
        """A gateway that brings an upstream along, for one case; the case stops it."""
        return self._lend(None, f"simulated-{next(self.numbers)}", embedded=True)

    def start_in_front(self, upstream, text, environment):
        """A gateway of this configuration in front of that upstream, for one case; the case stops it."""
        name = f"in-front-{next(self.numbers)}"
        self._config(name).write_text(text.format(upstream=upstream))
        return self._lend(name, name, environment=environment)

    def _lend(self, config, name, **options):
        process = Process(self._arguments(config), self.options.logs / f"{name}.log", **options)
        self.lent.append(process)
        return process

    def second(self, runtime):
        """A second process that plays calls; it takes a while to start, so there is one for all."""
        with self.lock:
            if runtime not in self.seconds:
                self.seconds[runtime] = self._program(runtime, f"second-{runtime}")
            return self.seconds[runtime]

    def _program(self, runtime, name):
        arguments = {
            "node": [self.options.node, self.options.node_program],
            "python": [sys.executable, "-B", pathlib.Path(__file__).with_name("python_main.py")],
        }[runtime]
        return Program(arguments, self.options.logs / f"{name}.log")

    def _arguments(self, name):
        config = ["--config", self._config(name)] if name else []
        return [self.options.gateway, "--listen", "127.0.0.1:0", *config]

    def _config(self, name):
        return self.options.logs / f"{name}.toml"

    def stop(self):
        """Stops what was started, by name with the status that it ended with."""
        for program in [self.node, *self.seconds.values()]:
            program.stop()
        for process in [*self.mocks, *self.lent]:
            # How a mock ends is not our matter, and it waits for those that it keeps waiting. The others
            # are gone by now, unless their case hangs.
            process.process.kill()
        return {name: gateway.stop() for name, gateway in self.gateways.items()}
