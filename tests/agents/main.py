"""Runs the agents against the gateway, as their users have them, in front of a scripted model."""

import argparse
import glob
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from model import Model, responses
from tap import Tap

# Long enough for a loaded machine; an agent that repeats a refused call takes longer.
PATIENCE = 120


class Gateway:
    """The gateway in front of models, with these limits."""

    def __init__(self, program, models, limits):
        self.folder = tempfile.TemporaryDirectory()
        config = Path(self.folder.name, "gateway.toml")
        candidates = [
            f'[[candidates]]\nname = "m-{number}"\nmodel = "m"\nbase_url = "{model.url}/v1"\n'
            for number, model in enumerate(models)
        ]
        config.write_text("\n".join([limits, *candidates]))
        self.process = subprocess.Popen(
            [program, "--config", config, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.program = program
        self.url = self.process.stdout.readline().removeprefix("listening on ").strip()

    def ask(self, path, method="GET"):
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def operate(self, *words):
        """What the command line says for an operator."""
        command = [self.program, *words, "--url", self.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def runs(self):
        """The runs of turns and sub-agents, the oldest first.

        A call that belongs to no turn, such as OpenCode's for a title, is a run with an id that the
        gateway made.
        """
        runs = self.ask("/runs")["runs"]
        return [run for run in reversed(runs) if not run["run"].startswith("run-")]

    def sessions(self):
        """The sessions of all runs."""
        return {run["session"] for run in self.ask("/runs")["runs"]}

    def sockets(self):
        """How many WebSockets are open."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            found = re.search(r"^agent_websockets_open (\d+)$", answer.read().decode(), re.M)
        return int(found[1]) if found else 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()


class Agent:
    """An agent with a home of its own."""

    # Whether sub-agents work in the session of their parent.
    shares_session = True
    # Whether it asks over a WebSocket.
    has_socket = False

    def __init__(self, home, url):
        self.home, self.url = home, url
        self.said = []
        self.process = None
        self.env = {"PATH": os.environ["PATH"], "HOME": home, "NO_PROXY": "127.0.0.1"}

    def start(self, words, resumes=False):
        self.process = subprocess.Popen(
            self.command(words, resumes),
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.process

    def turn(self, words, resumes=False):
        """One turn of the user; answers what the agent prints."""
        self.said.append((words, resumes))
        return self.end(self.start(words, resumes))

    def end(self, process):
        """Waits for the end; answers what the agent prints."""
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            raise AssertionError(f"the agent does not stop; it printed {printed[-2000:]}")
        return printed


class ClaudeCode(Agent):
    name = "claude-code"

    def __init__(self, home, url, modules, node):
        super().__init__(home, url)
        self.program = glob.glob(f"{modules}/@anthropic-ai/claude-code-*/claude")[0]
        self.env |= {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def command(self, words, resumes):
        resume = ["--continue"] if resumes else []
        return [self.program, *resume, "--print", words, "--allowedTools", "Bash,Agent"]


class Codex(Agent):
    name = "codex"
    model = ["model=gpt-5"]
    # How often it asks for what is refused for good.
    asks = 6

    def __init__(self, home, url, modules, node):
        super().__init__(home, url)
        self.program = [node, f"{modules}/@openai/codex/bin/codex.js"]
        self.env |= {"CODEX_HOME": home, "DUMMY_KEY": "dummy"}

    def settings(self):
        provider = f'{{name="gateway",base_url="{self.url}/v1",env_key="DUMMY_KEY",wire_api="responses"}}'
        return ["model_provider=gateway", f"model_providers.gateway={provider}"]

    def command(self, words, resumes):
        resume = ["resume", "--last"] if resumes else []
        settings = [word for setting in [*self.settings(), *self.model] for word in ("-c", setting)]
        flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return [*self.program, "exec", *resume, *flags, *settings, words]


class CodexByUrl(Codex):
    """Codex with its own provider at another URL, where it asks for a WebSocket first."""

    name = "codex-by-url"

    def __init__(self, home, url, modules, node):
        super().__init__(home, url, modules, node)
        Path(home, "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-dummy"}))

    def settings(self):
        return [f'openai_base_url="{self.url}/v1"']


class CodexSocket(CodexByUrl):
    """The same where it gets its WebSocket."""

    name = "codex-socket"
    has_socket = True
    asks = 1


class CodexDefault(CodexSocket):
    """The same with the model of its own choice, for which it has other tools, and sends them otherwise."""

    name = "codex-default"
    model = []

    def start_in_terminal(self, words):
        """Starts it as a user has it; answers where to type."""
        trusted = f'[projects."{self.home}"]\ntrust_level = "trusted"\n'
        Path(self.home, "config.toml").write_text(f"check_for_update_on_startup = false\n{trusted}")
        settings = [word for setting in self.settings() for word in ("-c", setting)]
        terminal, end = pty.openpty()
        self.process = subprocess.Popen(
            [*self.program, "--dangerously-bypass-approvals-and-sandbox", *settings, words],
            env={**self.env, "TERM": "xterm-256color"},
            cwd=self.home,
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        threading.Thread(target=be_a_terminal, args=(terminal,), daemon=True).start()
        return terminal


class OpenCode(Agent):
    """OpenCode with a provider that its user named."""

    name = "opencode"
    shares_session = False

    def __init__(self, home, url, modules, node):
        super().__init__(home, url)
        # The first one, by its name, is the baseline build: it runs on every x86-64.
        self.program = sorted(glob.glob(f"{modules}/opencode-*/bin/opencode"))[0]
        self.env |= {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "dummy"},
            "models": {"m": {"name": "m", "tool_call": True}},
        }
        config = {
            "$schema": "https://opencode.ai/config.json",
            "provider": {"mine": provider},
            "model": "mine/m",
            "permission": {"bash": "allow", "task": "allow"},
            "share": "disabled",
        }
        Path(home, "opencode.json").write_text(json.dumps(config))

    def command(self, words, resumes):
        resume = ["--continue"] if resumes else []
        return [self.program, "run", *resume, words]


def a_user_turn_is_a_run(world):
    with world.of(calls=2, limits="[run]\nmax_turns = 100") as (model, gateway, agent):
        agent.turn("count to two")
        agent.turn("again", resumes=True)
        turns = [run["turns"] for run in gateway.runs()]
        sessions = gateway.sessions()
        assert turns == [3, 3], gateway.runs()
        assert len(sessions) == 1 and None not in sessions, sessions
        world.keep(agent, model, "turns")


def the_fourth_call_is_refused_and_the_agent_stops(world):
    with world.of(calls=50, limits="[run]\nmax_turns = 3") as (model, gateway, agent):
        printed = agent.turn("count to fifty")
        assert len(model.turns()) == 3, (len(model.turns()), printed[-1500:])
        assert gateway.runs()[0]["reason"] == "turn_cap_reached", gateway.runs()
        model.calls = 1
        printed = agent.turn("only to one", resumes=True)
        assert "It is done." in printed, printed[-1500:]
        assert len(model.turns()) > 3, len(model.turns())


def held_at_its_cap_the_agent_goes_on_once_the_run_is_extended(world):
    limits = '[run]\nmax_turns = 3\nat_cap = "pause"\npause_wait = "60s"'
    with world.of(calls=5, limits=limits) as (model, gateway, agent):
        process = agent.start("count to five")
        wait(process, lambda: any(run.get("paused") for run in gateway.runs()))
        assert len(model.turns()) == 3, len(model.turns())
        held = gateway.runs()[0]["run"]
        gateway.operate("extend", held, "--turns", "10")
        printed = agent.end(process)
        assert "It is done." in printed, printed[-1500:]
        # In the same run, without a request that was refused, or sent twice.
        runs = [(run["run"], run["turns"], run["reason"]) for run in gateway.runs()]
        assert runs == [(held, 6, None)], runs
        assert len(model.turns()) == 6, len(model.turns())


def an_abort_of_the_session_stops_the_agent(world):
    with world.of(calls=100000) as (model, gateway, agent):
        process = agent.start("count for ever")
        wait(process, lambda: len(model.turns()) >= 3)
        session = gateway.runs()[0]["session"]
        gateway.ask(f"/sessions/{session}/abort", "POST")
        before = len(model.turns())
        printed = agent.end(process)
        sent = len(model.turns())
        # The model may not have read yet what was sent before the abort.
        assert sent <= before + 1, (before, sent, printed[-1500:])
        assert gateway.runs()[0]["reason"] == "aborted", gateway.runs()
        model.calls = 1
        printed = agent.turn("only to one", resumes=True)
        assert "It is done." in printed, printed[-1500:]
        assert len(model.turns()) > sent, (sent, len(model.turns()))


def a_sub_agent_is_a_child(world):
    with world.of(calls=1) as (model, gateway, agent):
        model.delegates = "DELEGATE"
        agent.turn("DELEGATE the count")
        main, child = gateway.runs()
        assert child["parent"] == main["run"], (main, child)
        is_shared = main["session"] == child["session"]
        assert is_shared == agent.shares_session, (main, child)
        world.keep(agent, model, "delegates")


def it_works_without_a_complaint(world):
    with world.of(calls=2) as (model, gateway, agent):
        begin = time.monotonic()
        printed = agent.turn("count to two")
        # A prewarm without an answer takes 15 s, and a transport that fails some 7.
        assert time.monotonic() - begin < 6, time.monotonic() - begin
        assert "It is done." in printed, printed[-1500:]
        assert complaints(printed) == [], printed[-3000:]
        # Nothing was asked twice, and nothing else is a run.
        assert (agent.tap.asked(), len(model.requests)) == (3, 3), (agent.tap.asked(), len(model.requests))
        runs = [run["turns"] for run in gateway.ask("/runs")["runs"]]
        assert runs == [3], runs


def it_posts_at_once_where_there_are_no_sockets(world):
    with world.of(calls=2, limits="[server]\nwebsocket = false") as (model, gateway, agent):
        printed = agent.turn("count to two")
        assert complaints(printed) == [], printed[-3000:]
        assert "It is done." in printed, printed[-1500:]
        statuses = [connection.status() for connection in agent.tap.connections]
        assert statuses == [426, 200, 200, 200], statuses
        assert [run["turns"] for run in gateway.runs()] == [3], gateway.runs()


def its_model_gets_the_whole_conversation_by_post(world):
    with world.of(calls=2) as (model, gateway, agent):
        agent.turn("count to two")
        agent.turn("again", resumes=True)
        sockets = [connection.events() for connection in agent.tap.upgrades()]
        assert [len(events) for events in sockets] == [4, 4], sockets
        for events in sockets:
            assert events[0]["generate"] is False, events[0]
            assert all(event["previous_response_id"] for event in events[1:]), events
        # No prewarm is a call, or a run.
        assert len(model.requests) == 6, len(model.requests)
        assert [run["turns"] for run in gateway.ask("/runs")["runs"]] == [3, 3], gateway.ask("/runs")
        requests = iter(model.requests)
        for events in sockets:
            whole = []
            for event in events:
                whole = [*whole, *event["input"]]
                if event.get("generate") is False:
                    continue
                _, headers, body = next(requests)
                assert kinds(body["input"]) == kinds(whole), (body["input"], whole)
                assert [item for item in body["input"] if item in event["input"]] == event["input"]
                own = {"type", "generate", "previous_response_id", "input", "model", "client_metadata"}
                same = [name for name in event if name not in own]
                assert [body.get(name) for name in same] == [event[name] for name in same], body
                assert body["stream"] is True and not {"type", "generate", "previous_response_id"} & set(body)
                turn = event["client_metadata"]["x-codex-turn-metadata"]
                assert headers["x-codex-turn-metadata"] == turn, headers
                # What the model answers is an item of the next input.
                whole.append({"type": answered(model, body)})
        # The second turn has the words of the first.
        said = json.dumps(model.requests[-1][2]["input"])
        assert "count to two" in said and "again" in said, said[-3000:]
        world.keep_events(agent, "turns")


def a_run_that_is_over_is_asked_for_no_more(world):
    with world.of(calls=50, limits="[run]\nmax_turns = 2") as (model, gateway, agent):
        begin = time.monotonic()
        printed = agent.turn("count to fifty")
        assert agent.tap.asked() == 2 + agent.asks, (agent.tap.asked(), printed[-1500:])
        assert len(model.requests) == 2, len(model.requests)
        assert "it reached its limit of 2 turns (turn_cap_reached)" in printed, printed[-1500:]
        if agent.has_socket:
            assert time.monotonic() - begin < 6, time.monotonic() - begin
            assert "Reconnecting" not in printed, printed[-1500:]


def an_abort_ends_an_answer_that_is_under_way(world):
    with world.of(calls=5) as (model, gateway, agent):
        model.holds = lambda number, body: number == 2
        process = agent.start("count to five")
        # The agent has the begin of the answer.
        wait(process, lambda: b"resp_2" in agent.tap.got())
        gateway.ask(f"/sessions/{gateway.runs()[0]['session']}/abort", "POST")
        wait(None, lambda: model.dropped == 1)
        printed = agent.end(process)
        # Of the next calls none reaches the model.
        assert len(model.requests) == 2, (len(model.requests), printed[-1500:])
        assert agent.tap.asked() == 1 + agent.asks, (agent.tap.asked(), printed[-1500:])
        assert "aborted" in printed, printed[-1500:]
        runs = [(run["turns"], run["reason"]) for run in gateway.runs()]
        assert runs == [(2, "aborted")], runs
        model.calls = 1
        assert "It is done." in agent.turn("only to one", resumes=True)


def an_abort_while_a_tool_runs_refuses_the_next_call(world):
    with world.of(calls=5) as (model, gateway, agent):
        process = start_with_tool(model, agent)
        gateway.ask(f"/sessions/{gateway.runs()[0]['session']}/abort", "POST")
        printed = agent.end(process)
        assert len(model.requests) == 1, (len(model.requests), printed[-1500:])
        assert agent.tap.asked() == 1 + agent.asks, (agent.tap.asked(), printed[-1500:])
        assert "aborted" in printed, printed[-1500:]


def a_pause_holds_the_next_call_until_it_is_lifted(world):
    with world.of(calls=1, limits=pauses("60s")) as (model, gateway, agent):
        process = start_with_tool(model, agent)
        run = gateway.runs()[0]["run"]
        gateway.operate("pause", run)
        wait(process, lambda: agent.tap.asked() == 2)
        time.sleep(0.5)
        assert len(model.requests) == 1 and process.poll() is None, len(model.requests)
        gateway.operate("resume", run)
        printed = agent.end(process)
        assert "It is done." in printed and complaints(printed) == [], printed[-1500:]
        assert agent.tap.asked() == 2, agent.tap.asked()
        assert [run["turns"] for run in gateway.runs()] == [2], gateway.runs()


def a_pause_beyond_its_wait_is_asked_for_again(world):
    with world.of(calls=1, limits=pauses("200ms")) as (model, gateway, agent):
        process = start_with_tool(model, agent)
        run = gateway.runs()[0]["run"]
        gateway.operate("pause", run)
        wait(process, lambda: agent.tap.asked() >= 3)
        assert len(model.requests) == 1, len(model.requests)
        gateway.operate("resume", run)
        printed = agent.end(process)
        assert "It is done." in printed and "Falling back" not in printed, printed[-1500:]
        assert [(run["turns"], run["reason"]) for run in gateway.runs()] == [(2, None)], gateway.runs()


def an_interrupt_by_the_user_releases_the_model(world):
    with world.of(calls=5) as (model, gateway, agent):
        model.holds = lambda number, body: number == 2
        process = agent.start("count to five")
        wait(process, lambda: b"resp_2" in agent.tap.got())
        assert gateway.sockets() == agent.has_socket, gateway.sockets()
        os.killpg(process.pid, signal.SIGINT)
        wait(None, lambda: model.dropped == 1)
        agent.end(process)
        wait(None, lambda: gateway.sockets() == 0)
        # The call ends, and not the run, as the agent may ask again.
        run = gateway.ask(f"/runs/{gateway.runs()[0]['run']}")
        ends = [attempt["reason"] for attempt in run["attempts_of_late"]]
        assert ends == ["completed", "client_disconnect"] and run["reason"] is None, run
        assert len(model.requests) == 2, len(model.requests)
        model.calls = 1
        assert "It is done." in agent.turn("only to one", resumes=True)


def a_candidate_that_fails_is_not_noticed(world):
    limits = "[retry]\nmax_attempts_per_candidate = 1"
    with world.of(calls=2, limits=limits, fails=500) as (model, gateway, agent):
        printed = agent.turn("count to two")
        assert "It is done." in printed and complaints(printed) == [], printed[-3000:]
        assert (agent.tap.asked(), len(model.requests)) == (3, 3), (agent.tap.asked(), len(model.requests))
        assert len(world.failing.requests) > 0
        assert [run["turns"] for run in gateway.runs()] == [3], gateway.runs()


def a_stall_is_cut_and_named(world):
    limits = '[run]\nstep_timeout = "1s"\n[retry]\nmax_attempts_per_candidate = 1'
    with world.of(calls=5, limits=limits) as (model, gateway, agent):
        model.holds = lambda number, body: number == 2
        printed = agent.turn("count to five")
        assert model.dropped == 1, model.dropped
        assert len(model.requests) == 2, len(model.requests)
        # By POST the answer is a 504, and asked for more often than others.
        assert not agent.has_socket or agent.tap.asked() == 2, (agent.tap.asked(), printed[-1500:])
        assert "step_timeout" in printed, printed[-1500:]
        assert [run["reason"] for run in gateway.runs()] == ["step_timeout"], gateway.runs()


def words_that_are_typed_interrupt_an_answer(world):
    with world.of(calls=1) as (model, gateway, agent):
        # Another thread of the agent asks for a title, in a format.
        model.holds = lambda number, body: "format" not in body["text"] and "and two" not in json.dumps(body)
        terminal = agent.start_in_terminal("count to one")
        wait(None, agent.tap.upgrades)
        socket = agent.tap.upgrades()[0]
        wait(None, lambda: b"response.output_text.delta" in socket.got)
        # The screen is up, and the first answer is not over by itself.
        time.sleep(1)
        for keys in (b"and two", b"\r"):
            os.write(terminal, keys)
            time.sleep(0.3)
        wait(None, lambda: model.dropped == 1)
        wait(None, lambda: any(run["turns"] == 3 for run in gateway.runs()))
        events = [event["type"] for event in socket.events()]
        create = "response.create"
        # On the same socket: the prewarm, the call that is interrupted, and two calls of the answer.
        assert events == [create, create, "response.interrupt", create, create], events
        turn = next(run["run"] for run in gateway.runs() if run["turns"] == 3)
        attempts = gateway.ask(f"/runs/{turn}")["attempts_of_late"]
        assert attempts[0]["reason"] == "client_disconnect", attempts
        said = json.dumps(model.requests[-1][2]["input"])
        assert "count to one" in said and "and two" in said, said[-3000:]
        os.close(terminal)


def be_a_terminal(terminal):
    """Reads what is printed, and answers what a program asks of its terminal."""
    answers = {
        b"\x1b[6n": b"\x1b[1;1R",
        b"\x1b[c": b"\x1b[?62;c",
        b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
        b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
        b"\x1b[?u": b"\x1b[?0u",
    }
    try:
        while printed := os.read(terminal, 65536):
            for asked, answer in answers.items():
                if asked in printed:
                    os.write(terminal, answer)
    except OSError:
        # The program has ended.
        pass


def wait(process, is_so):
    """Waits until it is so, while the process runs."""
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert process is None or process.poll() is None, process.stdout.read()[-1500:]
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.02)


def pauses(wait):
    return f'[run]\nmax_turns = 100\nat_cap = "pause"\npause_wait = "{wait}"'


def start_with_tool(model, agent):
    """Starts a turn; answers once its first tool runs, which takes a second."""
    model.command = "touch begun; sleep 1"
    process = agent.start("count to one")
    wait(process, Path(agent.home, "begun").exists)
    return process


def complaints(printed):
    """What an agent prints of failures, but for those of its home, of an unknown model, and of a 426."""
    known = ("PATH aliases", "Model metadata", "failed to connect to Responses WebSocket")
    complains = re.compile("warning|error|reconnecting|falling back", re.I)
    lines = [line for line in printed.splitlines() if complains.search(line)]
    return [line for line in lines if not any(words in line for words in known)]


def kinds(items):
    return [item["type"] for item in items]


def answered(model, body):
    """The type of the item with which the model answered."""
    number = [request[2] for request in model.requests].index(body) + 1
    return list(responses(body, model, number))[-1]["response"]["output"][0]["type"]


CASES = [
    a_user_turn_is_a_run,
    the_fourth_call_is_refused_and_the_agent_stops,
    held_at_its_cap_the_agent_goes_on_once_the_run_is_extended,
    an_abort_of_the_session_stops_the_agent,
    a_sub_agent_is_a_child,
]

# Codex by POST, and over a WebSocket.
OF_CODEX = [
    it_works_without_a_complaint,
    a_run_that_is_over_is_asked_for_no_more,
    an_abort_ends_an_answer_that_is_under_way,
    an_abort_while_a_tool_runs_refuses_the_next_call,
    a_pause_holds_the_next_call_until_it_is_lifted,
    a_pause_beyond_its_wait_is_asked_for_again,
    an_interrupt_by_the_user_releases_the_model,
    a_candidate_that_fails_is_not_noticed,
    a_stall_is_cut_and_named,
]

OF_ITS_DEFAULT_MODEL = [
    it_works_without_a_complaint,
    its_model_gets_the_whole_conversation_by_post,
    words_that_are_typed_interrupt_an_answer,
]

ALL = [
    (ClaudeCode, CASES),
    (OpenCode, CASES),
    (Codex, [*CASES, *OF_CODEX]),
    (CodexSocket, [*CASES, *OF_CODEX, its_model_gets_the_whole_conversation_by_post]),
    (CodexDefault, OF_ITS_DEFAULT_MODEL),
    (CodexByUrl, [it_posts_at_once_where_there_are_no_sockets]),
]


class World:
    """Makes a model, a gateway and an agent for each case."""

    def __init__(self, kind, options):
        self.kind, self.options = kind, options

    def of(self, calls, limits="", fails=None):
        """With `fails` a candidate that answers with this status comes before the model."""
        return Case(self, calls, limits, fails)

    def keep(self, agent, model, name):
        """Writes what the agent sends as a fixture, without what anybody said in it.

        The agent says the same to a model once more: the gateway takes headers away and adds some.
        """
        if self.options.fixtures and not self.kind.has_socket:
            direct = Model(model.calls)
            direct.delegates = model.delegates
            home = tempfile.mkdtemp()
            options = self.options
            again = self.kind(home, direct.url, options.modules, options.node)
            for words, resumes in agent.said:
                again.turn(words, resumes)
            shutil.rmtree(home, ignore_errors=True)
            direct.server.shutdown()
            sent = [fixture(*request) for request in direct.requests]
            self.write(f"{agent.name}-{name}.json", sent)

    def keep_events(self, agent, name):
        """Writes what the agent sent over WebSockets as a fixture, likewise."""
        if self.options.fixtures:
            sent = [
                socket_fixture(connection.headers(), connection.events())
                for connection in agent.tap.upgrades()
            ]
            self.write(f"{agent.name}-{name}.json", sent)

    def write(self, name, sent):
        Path(self.options.fixtures, name).write_text(json.dumps(sent, indent=1) + "\n")


class Case:
    def __init__(self, world, calls, limits, fails):
        self.world = world
        self.model = Model(calls)
        models = [self.model]
        if fails:
            world.failing = Model(calls)
            world.failing.fails = fails
            models.insert(0, world.failing)
        self.gateway = Gateway(world.options.gateway, models, limits)
        self.tap = Tap(self.gateway.url)
        self.home = tempfile.mkdtemp()

    def __enter__(self):
        options = self.world.options
        self.agent = self.world.kind(self.home, self.tap.url, options.modules, options.node)
        self.agent.tap = self.tap
        return self.model, self.gateway, self.agent

    def __exit__(self, failure, *_):
        if self.agent.process and self.agent.process.poll() is None:
            os.killpg(self.agent.process.pid, signal.SIGKILL)
        self.gateway.__exit__()
        self.tap.close()
        self.model.server.shutdown()
        shutil.rmtree(self.home, ignore_errors=True)
        if failure is None and self.world.kind.has_socket:
            statuses = [connection.status() for connection in self.tap.upgrades()]
            assert set(statuses) == {101} and self.tap.posts() == 0, (statuses, self.tap.posts())


def fixture(path, headers, body):
    """A request by which a replay recognizes the agent: no prompt, nothing of this machine."""
    kept = r"x-(codex-turn|claude|session|parent-session)|session-id|thread-id|x-app|content-type|anthropic-version"
    names = ("model", "stream", "prompt_cache_key", "metadata", "messages", "input")
    return {"path": path, "headers": kept_headers(kept, headers), "body": kept_body(names, body)}


def socket_fixture(headers, events):
    """The same of an upgrade, and of the events behind it."""
    kept = "x-codex|x-client-request-id|session-id|thread-id|openai-beta|sec-websocket-extensions"
    names = ("type", "generate", "previous_response_id", "model", "stream", "store")
    names = (*names, "prompt_cache_key", "client_metadata", "input")
    events = [kept_body(names, event) for event in events]
    return {"path": "/v1/responses", "headers": kept_headers(kept, headers), "events": events}


def kept_headers(kept, headers):
    kept = re.compile(kept, re.I)
    return {name.lower(): anonymous(value) for name, value in headers.items() if kept.match(name)}


def kept_body(names, body):
    tools = [tool_name(tool) for tool in body.get("tools", [])]
    body = {name: without_words(body[name]) if name in ("messages", "input") else body[name] for name in names if name in body}
    if "user_id" in (body.get("metadata") or {}):
        body["metadata"] = {"user_id": anonymous(body["metadata"]["user_id"])}
    if "client_metadata" in body:
        body["client_metadata"] = {
            name: zeros(value) if name == "x-codex-installation-id" else anonymous(value)
            for name, value in body["client_metadata"].items()
        }
    if tools:
        body["tools"] = tools
    return body


def tool_name(tool):
    """A declaration of a tool, without what it is for."""
    name = {name: tool[name] for name in ("type", "name") if name in tool}
    function = {"function": {"name": tool["function"]["name"]}} if "function" in tool else {}
    return {**name, **function}


def anonymous(text):
    """The same JSON in a text; the ids of an installation are zeros."""
    number = re.compile(r'("(?:device_id|installation_id)":")([^"]*)')
    return number.sub(lambda found: found[1] + zeros(found[2]), text)


def zeros(number):
    return re.sub(r"\w", "0", number)


def without_words(value):
    """The same JSON; a text keeps its first word, or the tags around it."""
    if isinstance(value, list):
        return [without_words(item) for item in value]
    if isinstance(value, dict):
        short = ("text", "content", "output", "arguments")
        return {
            name: [tool_name(tool) for tool in item]
            if name == "tools"
            else shortened(item)
            if name in short and isinstance(item, str)
            else without_words(item)
            for name, item in value.items()
        }
    return value


def shortened(text):
    element = re.fullmatch(r"\s*<([\w-]+)>.*</\1>\s*", text, re.S)
    if element:
        return f"<{element[1]}>..</{element[1]}>"
    return text if len(text) <= 60 else text.split(maxsplit=1)[0][:20] + " .."


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--modules", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--fixtures")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    # The agents run in folders of their own.
    for name in ("gateway", "modules", "node"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
    failed = 0
    for kind, cases in ALL:
        for case in cases:
            name = f"{kind.name}: {case.__name__}"
            if options.words and not any(word in name for word in options.words):
                continue
            begin = time.monotonic()
            try:
                case(World(kind, options))
                said = "ok"
            except (AssertionError, urllib.error.URLError, OSError, subprocess.SubprocessError) as error:
                said, failed = f"FAILED: {error!r}", failed + 1
            print(f"{name}: {said} ({time.monotonic() - begin:.1f} s)", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
