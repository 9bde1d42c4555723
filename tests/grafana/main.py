"""Asks a Prometheus that scrapes gateways everything that docs/grafana asks."""

import copy
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import promql
import rules
from world import World

DOCS = Path("docs/grafana")
# What has no series here, and why. Such a metric has to be one of the gateway's sources.
WITHOUT_A_STORE = "redis-server is missing, and a gateway without [replicas] has no store"
ALLOWED = {
    "agent_store_up": WITHOUT_A_STORE,
    "agent_store_lag_seconds": WITHOUT_A_STORE,
    "agent_store_wait_seconds_bucket": WITHOUT_A_STORE,
    "agent_store_wait_seconds_count": WITHOUT_A_STORE,
    "agent_store_dropped_total": WITHOUT_A_STORE,
}
RANGE = "1m"


def sources():
    """The texts of the gateway's sources, without tests."""
    texts = []
    for root in ("src", "crates"):
        for file in Path(root).rglob("*.rs"):
            if "tests" not in file.parts and file.stem != "tests":
                texts.append(file.read_text())
    return "\n".join(texts)


class Checks:
    """The checks of queries against what Prometheus has scraped."""

    def __init__(self, world):
        self.world = world
        self.allowed = {} if world.has_store else ALLOWED
        self.sources = sources()
        names = world.ask_prometheus("label/__name__/values")
        self.names = {it for it in names if it.startswith(("agent_", "gen_ai_"))} | {"up"}
        self.series = {}

    def is_allowed(self, name):
        return name in self.allowed and f'"{re.sub("_(bucket|count|sum)$", "", name)}"' in self.sources

    def has_series(self, selector):
        if selector not in self.series:
            self.series[selector] = bool(self.world.query(selector))
        return self.series[selector]

    def of_query(self, where, query, variables=None, needs_series=True):
        """What is wrong with a query."""
        filled = fill(query, variables or {})
        # That of `label_replace` is a number.
        if re.search(r"\$\D", filled):
            return [f"{where}: a variable is left: {filled}"]
        try:
            found = self.world.query(filled)
        except ValueError as error:
            return [f"{where}: {error}: {filled}"]
        wrong = []
        selected = promql.selectors(query)
        if not selected:
            wrong.append(f"{where}: selects nothing: {query}")
        for selector in selected:
            if selector.name not in self.names and not self.is_allowed(selector.name):
                wrong.append(f"{where}: the gateway has no metric {selector.name}")
            elif not self.is_allowed(selector.name) and not self.has_series(fill(str(selector), variables or {})):
                wrong.append(f"{where}: no series fits {selector}")
            for label, word in selector.words():
                if f'"{word}"' not in self.sources and label != "job":
                    wrong.append(f"{where}: the gateway has no value {word} of {label}")
        is_empty = not any(math.isfinite(float(series["value"][1])) for series in found)
        if needs_series and is_empty and not any(self.is_allowed(it.name) for it in selected):
            wrong.append(f"{where}: nothing comes of {filled}")
        return wrong


def fill(query, variables):
    """The query with the values of Grafana's variables."""
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda it: variables.get(it[1] or it[2], it[0]), query)


def variables_of(dashboard, checks):
    """The values that the dashboard begins with, and what is wrong with its variables."""
    variables = {"__rate_interval": RANGE, "__range": RANGE}
    wrong = []
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        if variable["type"] == "datasource":
            continue
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        match = fill(asked[1], variables)
        wrong += checks.of_query(f"variable {name}", asked[1], variables)
        values = checks.world.ask_prometheus(f"label/{asked[2]}/values", **{"match[]": match})
        if not values:
            wrong.append(f"variable {name}: no value of {asked[2]} in {match}")
        # As Grafana writes "All", with the backslashes of a text in PromQL.
        escaped = (re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\\\1", value) for value in values)
        variables[name] = variable.get("allValue") or f"({'|'.join(escaped)})"
    return variables, wrong


def panels_of(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] not in ("row", "text")]


def problems_of_dashboard(dashboard, checks):
    variables, wrong = variables_of(dashboard, checks)
    for panel in panels_of(dashboard):
        for target in panel["targets"]:
            wrong += checks.of_query(f'panel "{panel["title"]}"', target["expr"], variables)
    return wrong


def problems_of_shape(dashboard):
    """What Grafana would not refuse, but show badly."""
    wrong = []
    for what in ("id", "title"):
        all_of_it = [panel[what] for panel in dashboard["panels"]]
        wrong += [f"two panels have the {what} {it}" for it in set(all_of_it) if all_of_it.count(it) > 1]
    places = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if own & places or at["x"] + at["w"] > 24:
            wrong.append(f"panel {panel['title']} has no place of its own")
        places |= own
    for panel in panels_of(dashboard):
        if not panel["description"] or not panel["fieldConfig"]["defaults"]["unit"]:
            wrong.append(f"panel {panel['title']} has no description or no unit")
        for holder in (panel, *panel["targets"]):
            if holder["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
                wrong.append(f"panel {panel['title']} has a datasource of its own")
    return wrong


def problems_of_rules(loaded, checks):
    wrong = []
    for rule in loaded:
        where = f"alert {rule['name']}"
        if rule["health"] != "ok":
            wrong.append(f"{where}: {rule['health']}: {rule.get('lastError')}")
        wrong += checks.of_query(where, rule["query"], needs_series=False)
        if set(rule["annotations"]) != {"summary", "runbook"}:
            wrong.append(f"{where}: has other annotations")
        if rule["labels"].get("severity") not in ("critical", "warning"):
            wrong.append(f"{where}: has another severity")
        if "`tower-agent-gateway " not in rule["annotations"]["runbook"]:
            wrong.append(f"{where}: the runbook has no command")
    return wrong


class Commands:
    """The command line of the gateway, by its own help."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.helps = {}

    def help(self, *command):
        if command not in self.helps:
            done = subprocess.run([self.gateway, *command, "--help"], capture_output=True, text=True)
            self.helps[command] = done.stdout if done.returncode == 0 else ""
        return self.helps[command]

    def problems(self, where, text):
        """The commands and routes of a text that the gateway does not have."""
        wrong = []
        for line in re.findall(r"`tower-agent-gateway ([^`]+)`", text):
            words = line.split()
            command = [] if words[0].startswith("-") else [words[0]]
            told = self.help(*command)
            for flag, value in re.findall(r"(--[\w-]+)(?: ([a-z]\w*))?", line):
                row = re.search(rf"^ *{flag}\b.*$", told, re.MULTILINE)
                possible = re.search(r"\[possible values: (.*?)\]", row[0] if row else "")
                if not row or possible and value not in possible[1].split(", "):
                    wrong.append(f"{where}: the gateway does not take `{line}`")
            if not told:
                wrong.append(f"{where}: the gateway has no command `{line}`")
        manual = Path("docs/gateway.md").read_text()
        for route in re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]+)`", text):
            if f"`{route}`" not in manual:
                wrong.append(f"{where}: docs/gateway.md has no `{route}`")
        return wrong


def problems_of_texts(dashboard, loaded, gateway):
    commands = Commands(gateway)
    titles = [panel["title"] for panel in dashboard["panels"]]
    readme = (DOCS / "README.md").read_text()
    wrong = commands.problems("README.md", readme)
    for panel in dashboard["panels"]:
        text = panel.get("description", "") + panel.get("options", {}).get("content", "")
        wrong += commands.problems(f'panel "{panel["title"]}"', text)
    for rule in loaded:
        wrong += commands.problems(f"alert {rule['name']}", rule["annotations"]["runbook"])
        named = re.findall(r'panel\s+"([^"]+)"', rule["annotations"]["runbook"])
        wrong += [f"alert {rule['name']}: there is no panel {title}" for title in named if title not in titles]
        if f"| `{rule['name']}` |" not in readme:
            wrong.append(f"README.md has no row of {rule['name']}")
    return wrong


def problems_of_alerts(world):
    """Whether what this world gives cause for is told, in whole sentences."""
    alerts = world.ask_prometheus("alerts")["alerts"]
    told = {alert["labels"]["alertname"] for alert in alerts}
    here = {"CandidateRefuses", "LinesDropped", "UploadsRefused"}
    wrong = [f"{name} does not fire here" for name in here - told]
    if "GatewayDown" in told or "StoreLost" in told:
        wrong.append(f"these gateways are well: {told}")
    for alert in alerts:
        for text in alert["annotations"].values():
            if "<error" in text or "no value" in text or "{{" in text:
                wrong.append(f"an alert says {text}")
    return wrong


def unnoticed_mutations(dashboard, loaded, checks, gateway):
    """Mistakes in the dashboard and the alerts that the checks above let pass."""

    def panel(old, new):
        text = json.dumps(dashboard)
        changed = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
        if changed == text:
            raise SystemExit(f"nothing to change: {old}")
        return problems_of_dashboard(json.loads(changed), checks)

    def alert(old, new):
        changed = copy.deepcopy(loaded)
        for rule in changed:
            rule["query"] = rule["query"].replace(old, new)
        if changed == loaded:
            raise SystemExit(f"nothing to change: {old}")
        return problems_of_rules(changed, checks)

    def says(command):
        return Commands(gateway).problems("a text", f"`tower-agent-gateway {command}`")

    cases = (
        (panel("count(agent_runs_open", "count(agent_runs_opened"), "no metric agent_runs_opened"),
        # With `or vector(0)` behind it, there is a series all the same.
        (panel("sum(rate(agent_fallbacks_total", "sum(rate(agent_bogus_total"), "no metric agent_bogus_total"),
        (panel('gen_ai_operation_name="chat"', 'operation="chat"'), "no series fits"),
        (panel("idle_circuit_open", "idle_circuit_opened"), "no value idle_circuit_opened"),
        (panel("60 * sum(rate(", "60 * sum((rate("), "parse error"),
        (panel("$candidate", "$model"), "a variable is left"),
        (panel("label_values(agent_runs_open,", "label_values(agent_gone,"), "no metric agent_gone"),
        (alert("agent_attempts_total", "agent_tries_total"), "no metric agent_tries_total"),
        (alert('reason="step_timeout"', 'reason="timeout_of_step"'), "no value timeout_of_step"),
        (alert('job="tower-agent-gateway"', 'job="gateway"'), "no series fits"),
        (says("runz"), "no command"),
        (says("runs --ordered spent"), "does not take"),
        (says("runs --sort cost"), "does not take"),
    )
    for found, expected in cases:
        if not any(expected in it for it in found):
            yield f"a mistake is not noticed by {expected!r}: {found}"


def main(gateway):
    started = time.monotonic()
    dashboard = json.loads((DOCS / "dashboard.json").read_text())
    wrong = problems_of_shape(dashboard)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as beside, World(gateway, folder) as world:
        loaded = world.ask_prometheus("rules", type="alert")["groups"][0]["rules"]
        played = beside.submit(rules.problems, loaded, folder)
        # A counter begins with its first count, and has a rate from its second one on.
        for number in range(2):
            world.talk(number)
            world.wait_for_scrape()
        checks = Checks(world)
        loaded = world.ask_prometheus("rules", type="alert")["groups"][0]["rules"]
        wrong += problems_of_dashboard(dashboard, checks)
        wrong += problems_of_rules(loaded, checks)
        wrong += problems_of_texts(dashboard, loaded, gateway)
        wrong += problems_of_alerts(world)
        wrong += played.result()
        if not wrong:
            wrong += unnoticed_mutations(dashboard, loaded, checks, gateway)
        if wrong:
            print((Path(folder) / "gateway.log").read_text()[-3000:])
    for name, why in checks.allowed.items():
        print(f"not seen: {name}: {why}")
    panels = panels_of(dashboard)
    queries = sum(len(panel["targets"]) for panel in panels)
    took = time.monotonic() - started
    print("\n".join(wrong) or f"{queries} queries of {len(panels)} panels, and {len(loaded)} alerts, in {took:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
