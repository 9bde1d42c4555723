"""Whether alerts_test.yaml would notice a rule that is wrong."""

import json
import re
import subprocess
from pathlib import Path

TESTS = Path("tests/grafana/alerts_test.yaml")
BOUND = re.compile(r"(?<= )(?:>=|>|==) \d[\d.]*")


def weaken(query, place):
    """The query with a bound that everything is within, in this place; `None` if there is none."""
    bounds = list(BOUND.finditer(query))
    if place >= len(bounds):
        return None
    bound = bounds[place]
    # Of `increase(..) > 0 or .. > 0` the second is the rule itself.
    if place > 0 and bound.group() == "> 0":
        return None
    return query[: bound.start()] + ">= 0" + query[bound.end() :]


def play(rules, change, folder):
    """What `promtool` says of the tests, if each rule has another query where `change` has one."""
    changed = []
    for rule in rules:
        query = change(rule["query"])
        changed.append({
            "alert": rule["name"], "expr": query or rule["query"], "for": f"{rule['duration']:.0f}s",
            "labels": rule["labels"], "annotations": rule["annotations"],
        })
    folder = Path(folder)
    (folder / "rules.json").write_text(json.dumps({"groups": [{"name": "changed", "rules": changed}]}))
    tests = re.sub(r"(?m)^rule_files: .*$", "rule_files: [rules.json]", TESTS.read_text())
    (folder / "tests.yaml").write_text(tests)
    done = subprocess.run(["promtool", "test", "rules", folder / "tests.yaml"], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def problems(rules, folder):
    """The alerts that the tests would not miss, or not hear too often."""
    found = []
    status, said = play(rules, lambda _: None, folder)
    if status != 0:
        found.append(f"the rules as Prometheus has them do not hold the tests: {said}")
    for what, change, says in (
        ("never fires", lambda _: "vector(0) > 1", "exp:"),
        ("always fires", lambda _: "vector(1)", "got:"),
        ("has no first bound", lambda query: weaken(query, 0), "got:"),
        ("has no second bound", lambda query: weaken(query, 1), "got:"),
    ):
        _, said = play(rules, change, folder)
        noticed = unwanted(said) if says == "got:" else wanted(said)
        for rule in rules:
            if change(rule["query"]) and rule["name"] not in noticed:
                found.append(f"no test notices a {rule['name']} that {what}")
    return found


def alerts_of(samples):
    return set(re.findall(r'alertname="(\w+)"', samples))


def differences(said):
    """Of each failed test, the alerts that it expects and those that it got."""
    for part in re.findall(r"exp: *(.*?)\n\s*got: *(.*?)(?:\n|$)", said):
        yield tuple(map(alerts_of, part))


def wanted(said):
    return {name for expected, got in differences(said) for name in expected - got}


def unwanted(said):
    return {name for expected, got in differences(said) for name in got - expected}
