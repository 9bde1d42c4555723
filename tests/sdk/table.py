"""The page that says what was measured: a table for each file of cases, a column for each SDK."""

import sys

from sdks import CALLERS

INTRODUCTION = """\
# What the official SDKs make of it

Measured by `tests/sdk/run`, which fails if this page says something else. To make it anew:

```sh
tests/sdk/run --table docs/sdk.md
```

A cell says how the SDK's last call ended: by an exception of that class, with the
status that it carries; `ends` is an answer that the SDK takes for whole, and
`left` a caller that went away. An SDK made one request unless the cell says
more. `skipped` is a known fault of the gateway, which the run's output names. A `–` is a scenario that the SDK has no
part in. Every exception of the gateway's own names its reason in its text and as
its code or type; the cases in `tests/sdk/` say what else must hold.
"""


def page(cases, outcomes, versions):
    """`outcomes` by case."""
    groups = {}
    for case in cases:
        if case.caller:
            rows = groups.setdefault(case.group, {})
            rows.setdefault(case.scenario, {})[case.caller.name] = outcomes[case]
    parts = [INTRODUCTION, versions_table(versions)]
    parts += [section(group, rows) for group, rows in sorted(groups.items())]
    return "\n".join(parts)


def versions_table(versions):
    return markdown(["name", "package", "version"], versions)


def section(group, rows):
    about = " ".join(sys.modules[group].__doc__.strip().split("\n\n")[0].split())
    columns = [caller.name for caller in CALLERS]
    body = [[scenario, *(cells.get(column, "–") for column in columns)] for scenario, cells in rows.items()]
    title = group.removeprefix("cases_").replace("_", " ").capitalize()
    return f"## {title}\n\n{about}\n\n{markdown(['scenario', *columns], body)}"


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
