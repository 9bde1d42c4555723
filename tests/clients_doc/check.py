"""Runs the blocks of docs/clients.md, and checks the configurations and the links of the manuals."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DOCS = Path("docs")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"chat-\d+\.turn-\d+")
LINK = re.compile(r"\]\(([^)\s:]+)\)")
LIMIT = 150


def blocks(page, languages):
    """The blocks of these languages, each with a name: its page, and the heading above it."""
    text = page.read_text()
    heads = [(it.start(), it.group(1)) for it in re.finditer(r"^#+ (.+)$", text, re.MULTILINE)]
    for found in BLOCK.finditer(text):
        if found.group(1) in languages:
            head = [name for start, name in heads if start < found.start()][-1]
            yield f"{page}: {head}", found.group(1), found.group(2)


def last_lines(process):
    return (process.stdout + process.stderr).strip()[-1500:]


class Programs:
    """Runs programs against a gateway in front of its simulated upstream."""

    def __init__(self, arguments):
        self.folder = Path(arguments.folder).resolve()
        self.node = Path(arguments.node).resolve()
        self.gateway = subprocess.Popen(
            [arguments.gateway, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        line = self.gateway.stdout.readline().strip()
        self.url = line.removeprefix("listening on ")
        assert self.url != line, f"the gateway says {line!r}"

    def command(self, language, code, file):
        """How a block is run. LlamaIndex has an environment of its own."""
        if language == "js":
            # Node looks for packages beside the program.
            file = self.folder / "node" / file.with_suffix(".mjs").name
            command = [self.node, file]
        else:
            venv = "llama-index" if "llama_index" in code else "venv"
            command = [self.folder / venv / "bin" / "python", file]
        file.write_text(code)
        return command

    def check(self, language, code):
        """What is wrong with a block; None if the gateway knows its run."""
        run = RUN.search(code)
        if not run:
            return "the block names no run"
        with tempfile.TemporaryDirectory() as home:
            suffix = "mjs" if language == "js" else "py"
            command = self.command(language, code, Path(home, f"{run.group()}.{suffix}"))
            environment = {
                # No settings, keys or traces of the machine.
                "PATH": f"{self.node.parent}:{os.environ['PATH']}", "HOME": home,
                "OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "none",
                "ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": "none",
                "OPENAI_AGENTS_DISABLE_TRACING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            }
            try:
                done = subprocess.run(
                    list(map(str, command)), cwd=home, env=environment, capture_output=True, text=True,
                    timeout=LIMIT, stdin=subprocess.DEVNULL,
                )
            except subprocess.TimeoutExpired:
                return f"it took longer than {LIMIT} s"
        if done.returncode:
            return f"exit status {done.returncode}: {last_lines(done)}"
        try:
            with urllib.request.urlopen(f"{self.url}/runs/{run.group()}", timeout=10) as answer:
                seen = json.load(answer)
        except urllib.error.HTTPError as error:
            return f"GET /runs/{run.group()} is a {error.code}; the program said: {last_lines(done)}"
        # A block makes one call, an agent with a tool two. More would be repeats, and fewer calls without the id.
        turns = 2 if "tools=" in code else 1
        return None if seen["turns"] == turns else f"{seen['turns']} turns in place of {turns}"

    def stop(self):
        self.gateway.terminate()
        self.gateway.wait(20)


def check_configuration(gateway, text):
    """What `--check` says against a configuration, with any value for its variables; None if nothing."""
    names = re.findall(r"^\[agents\.(\w+)\]", text, re.MULTILINE) or ["someone"]
    known = {
        "REDIS_URL": "redis://127.0.0.1:6379",
        "WEBHOOK_SECRET": "whsec_" + "A" * 32,
        **dict.fromkeys(("AGENT_KEYS", "GATEWAY_KEYS"), ",".join(f"{it}:key-of-{it}" for it in names)),
    }
    variables = re.findall(r'_env = "(\w+)"', text)
    variables = {name: known.get(name, f"{name.lower()}-0123456789") for name in variables}
    if "[[candidates]]" not in text:
        text += '\n[[candidates]]\nmodel = "m"\nbase_url = "http://127.0.0.1:8000/v1"\n'
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [gateway, "--check", file.name], env=os.environ | variables, capture_output=True, text=True
        )
    # A warning is no mistake, but nothing to copy either.
    return None if done.returncode == 0 and not done.stderr.strip() else last_lines(done)


def anchors(page):
    """The anchors that the headings of a page have on GitHub."""
    text = BLOCK.sub("", page.read_text())
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def check_links(page):
    """The links of a page that lead nowhere; None if all do."""
    lost = []
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page.resolve()
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            lost.append(link)
    return f"links that lead nowhere: {lost}" if lost else None


def check_list():
    """The pages that the list of the manuals leaves out; None if it has all."""
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    missing = [str(page) for page in sorted(DOCS.rglob("*.md")) if page.resolve() not in listed]
    missing.remove(str(DOCS / "README.md"))
    return f"not listed: {missing}" if missing else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--folder", help="where the clients are installed; without it no program is run")
    parser.add_argument("--node", help="the Node that runs the JavaScript blocks")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    chosen = lambda name: not arguments.words or any(word in name for word in arguments.words)
    programs = Programs(arguments) if arguments.folder else None
    checks = []
    if programs:
        for name, language, code in blocks(DOCS / "clients.md", {"python", "js"}):
            checks.append((name, lambda language=language, code=code: programs.check(language, code)))
    for page in [DOCS / "providers.md", *sorted((DOCS / "tasks").glob("*.md"))]:
        for number, (name, _, text) in enumerate(blocks(page, {"toml"}), 1):
            name = f"{name} (TOML {number})"
            checks.append((name, lambda text=text: check_configuration(arguments.gateway, text)))
    for page in sorted(DOCS.rglob("*.md")):
        checks.append((f"{page}: links", lambda page=page: check_links(page)))
    checks.append(("docs/README.md: lists every manual", check_list))
    checks = [(name, check) for name, check in checks if chosen(name)]
    try:
        # Most of a program's time is its imports.
        with ThreadPoolExecutor(2) as pool:
            found = [(name, pool.submit(check)) for name, check in checks]
            wrong = 0
            for name, outcome in found:
                outcome = outcome.result()
                print(f"{'FAILED' if outcome else 'ok'}  {name}" + (f"\n    {outcome}" if outcome else ""))
                wrong += bool(outcome)
    finally:
        if programs:
            programs.stop()
    print(f"{len(checks) - wrong} passed, {wrong} failed")
    sys.exit(bool(wrong) or not checks)


if __name__ == "__main__":
    main()
