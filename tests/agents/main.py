"""Runs the agents against the gateway, as their users have them, in front of a scripted model."""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from model import Model

# Long enough for a loaded machine; an agent that repeats a refused call takes longer.
PATIENCE = 120


class Gateway:
    """The gateway in front of a model, with these limits."""

    def __init__(self, program, model, limits):
        self.folder = tempfile.TemporaryDirectory()
        config = Path(self.folder.name, "gateway.toml")
        config.write_text(
            f'{limits}\n[[candidates]]\nmodel = "m"\nbase_url = "{model.url}/v1"\n'
        )
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

    def __init__(self, home, url):
        self.home, self.url = home, url
        self.said = []
        self.env = {"PATH": os.environ["PATH"], "HOME": home, "NO_PROXY": "127.0.0.1"}

    def start(self, words, resumes=False):
        return subprocess.Popen(
            self.command(words, resumes),
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def turn(self, words, resumes=False):
        """One turn of the user; answers what the agent prints."""
        self.said.append((words, resumes))
        process = self.start(words, resumes)
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
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

    def __init__(self, home, url, modules, node):
        super().__init__(home, url)
        self.program = [node, f"{modules}/@openai/codex/bin/codex.js"]
        self.env |= {"CODEX_HOME": home, "DUMMY_KEY": "dummy"}

    def settings(self):
        provider = f'{{name="gateway",base_url="{self.url}/v1",env_key="DUMMY_KEY",wire_api="responses"}}'
        return ["model_provider=gateway", f"model_providers.gateway={provider}"]

    def command(self, words, resumes):
        resume = ["resume", "--last"] if resumes else []
        settings = [word for setting in [*self.settings(), "model=gpt-5"] for word in ("-c", setting)]
        flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return [*self.program, "exec", *resume, *flags, *settings, words]


class CodexByUrl(Codex):
    """Codex with its own provider at another URL, where it opens a WebSocket first."""

    name = "codex by openai_base_url"

    def __init__(self, home, url, modules, node):
        super().__init__(home, url, modules, node)
        Path(home, "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-dummy"}))

    def settings(self):
        return [f'openai_base_url="{self.url}/v1"']


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
        until = time.monotonic() + PATIENCE
        while not any(run.get("paused") for run in gateway.runs()):
            assert process.poll() is None, process.stdout.read()[-1500:]
            assert time.monotonic() < until, gateway.runs()
            time.sleep(0.02)
        assert len(model.turns()) == 3, len(model.turns())
        held = gateway.runs()[0]["run"]
        gateway.operate("extend", held, "--turns", "10")
        printed, _ = process.communicate(timeout=PATIENCE)
        assert "It is done." in printed, printed[-1500:]
        # In the same run, without a request that was refused, or sent twice.
        runs = [(run["run"], run["turns"], run["reason"]) for run in gateway.runs()]
        assert runs == [(held, 6, None)], runs
        assert len(model.turns()) == 6, len(model.turns())


def an_abort_of_the_session_stops_the_agent(world):
    with world.of(calls=100000) as (model, gateway, agent):
        process = agent.start("count for ever")
        while len(model.turns()) < 3:
            assert process.poll() is None, process.stdout.read()[-1500:]
            time.sleep(0.02)
        session = gateway.runs()[0]["session"]
        gateway.ask(f"/sessions/{session}/abort", "POST")
        before = len(model.turns())
        printed, _ = process.communicate(timeout=PATIENCE)
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


def it_sends_its_requests_by_post_at_once(world):
    with world.of(calls=2) as (model, gateway, agent):
        printed = agent.turn("count to two")
        assert "Reconnecting" not in printed, printed[-3000:]
        assert "It is done." in printed, printed[-1500:]
        assert [run["turns"] for run in gateway.runs()] == [3], gateway.runs()


CASES = [
    a_user_turn_is_a_run,
    the_fourth_call_is_refused_and_the_agent_stops,
    held_at_its_cap_the_agent_goes_on_once_the_run_is_extended,
    an_abort_of_the_session_stops_the_agent,
    a_sub_agent_is_a_child,
]


class World:
    """Makes a model, a gateway and an agent for each case."""

    def __init__(self, kind, options):
        self.kind, self.options = kind, options

    def of(self, calls, limits=""):
        return Case(self, calls, limits)

    def keep(self, agent, model, name):
        """Writes what the agent sends as a fixture, without what anybody said in it.

        The agent says the same to a model once more: the gateway takes headers away and adds some.
        """
        if self.options.fixtures:
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
            path = Path(self.options.fixtures, f"{agent.name}-{name}.json")
            path.write_text(json.dumps(sent, indent=1) + "\n")


class Case:
    def __init__(self, world, calls, limits):
        self.world = world
        self.model = Model(calls)
        self.gateway = Gateway(world.options.gateway, self.model, limits)
        self.home = tempfile.mkdtemp()

    def __enter__(self):
        options = self.world.options
        agent = self.world.kind(self.home, self.gateway.url, options.modules, options.node)
        return self.model, self.gateway, agent

    def __exit__(self, *_):
        self.gateway.__exit__()
        self.model.server.shutdown()
        shutil.rmtree(self.home, ignore_errors=True)


def fixture(path, headers, body):
    """A request by which a replay recognises the agent: no prompt, nothing of this machine."""
    kept = re.compile(r"x-(codex-turn|claude|session|parent-session)|session-id|thread-id|x-app|content-type|anthropic-version", re.I)
    headers = {name.lower(): anonymous(value) for name, value in headers.items() if kept.match(name)}
    names = ("model", "stream", "prompt_cache_key", "metadata", "messages", "input")
    tools = [tool_name(tool) for tool in body.get("tools", [])]
    body = {name: without_words(body[name]) if name in ("messages", "input") else body[name] for name in names if name in body}
    if "user_id" in (body.get("metadata") or {}):
        body["metadata"] = {"user_id": anonymous(body["metadata"]["user_id"])}
    if tools:
        body["tools"] = tools
    return {"path": path, "headers": headers, "body": body}


def tool_name(tool):
    """A declaration of a tool, without what it is for."""
    name = {name: tool[name] for name in ("type", "name") if name in tool}
    function = {"function": {"name": tool["function"]["name"]}} if "function" in tool else {}
    return {**name, **function}


def anonymous(text):
    """The same JSON in a text; the ids of an installation are zeros."""
    number = re.compile(r'("(?:device_id|installation_id)":")([^"]*)')
    return number.sub(lambda found: found[1] + re.sub(r"\w", "0", found[2]), text)


def without_words(value):
    """The same JSON; a text keeps its first word, or the tags around it."""
    if isinstance(value, list):
        return [without_words(item) for item in value]
    if isinstance(value, dict):
        short = ("text", "content", "output", "arguments")
        return {
            name: shortened(item) if name in short and isinstance(item, str) else without_words(item)
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
    kinds = [(ClaudeCode, CASES), (Codex, CASES), (OpenCode, CASES)]
    kinds.append((CodexByUrl, [it_sends_its_requests_by_post_at_once]))
    for kind, cases in kinds:
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
