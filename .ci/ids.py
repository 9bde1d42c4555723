"""Checks that each id of tests/ids.txt has a test, and writes the table of both, tests/IDS.md.

A test names its ids in a line of its own:

    /// covers: A1, T7        above a Rust test, as the last line of its doc comment
    //! covers: A1            in the doc comment of a module, for all tests in it and in its submodules
    # covers: H2              above the `@case` of a test of the SDKs; in the docstring of a file, for all its cases

tests/open.txt says why an id has no test (`H4  why`), or what its tests leave out (`H5  partly: what`).

    python3 .ci/ids.py               writes the table
    python3 .ci/ids.py --check       fails if the table is stale
    python3 .ci/ids.py --listed      reads `cargo test .. -- --list` on stdin; fails for a test that is not in it
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from test_sources import Repository, Target, read_all, targets, text_of, tracked

IDS = Path("tests/ids.txt")
OPEN = Path("tests/open.txt")
TABLE = Path("tests/IDS.md")
HEADER = """\
# The ids, and the tests that cover them

`.ci/ids.py` writes this page, from `ids.txt`, `open.txt` and the `covers:` lines of the tests. A test is
written as its target and its path in it; `*` stands for all tests of a module; `sdk` is `tests/sdk/run`.
"""


@dataclass
class Id:
    """A line of tests/ids.txt, with the heading above it."""

    title: str
    heading: str
    line: int


def lines_of(text: str) -> list[tuple[int, str, str]]:
    """Number, first word and rest of each line that has any."""
    split = ((number, *line.partition(" ")) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    return [(number, word, rest.strip()) for number, word, _, rest in split]


def read_ids(text: str) -> tuple[dict[str, Id], list[str]]:
    """The ids in their order, and what is wrong with the list."""
    ids, problems, heading = {}, [], ""
    for number, word, rest in lines_of(text):
        if word == "#":
            heading = rest
        elif word in ids:
            problems.append(f"{IDS}:{number}: {word} is listed twice")
        elif not rest or not re.fullmatch(r"[A-Z]\d+", word):
            problems.append(f"{IDS}:{number}: not an id and a title")
        else:
            ids[word] = Id(rest, heading, number)
    return ids, problems


def read_open(text: str, ids: dict[str, Id]) -> tuple[dict[str, tuple[int, str]], list[str]]:
    """Line and reason of each open id, and what is wrong with the list."""
    found, problems = {}, []
    for number, word, rest in lines_of(text):
        if word not in ids:
            problems.append(f"{OPEN}:{number}: {word} is not in {IDS}")
        elif word in found or not rest:
            problems.append(f"{OPEN}:{number}: {word} has two lines, or no reason")
        found[word] = (number, rest)
    return found, problems


def compare(ids: dict[str, Id], opened: dict[str, tuple[int, str]], covered: set[str]) -> list[str]:
    """Each id has a test, or a reason why not, or both where the tests are a part."""
    problems = []
    for name, entry in ids.items():
        number, why = opened.get(name, (0, ""))
        is_part = why.startswith("partly:")
        if name not in covered and not why:
            problems.append(f"{IDS}:{entry.line}: {name} has no test, and no line in {OPEN}")
        elif name not in covered and is_part:
            problems.append(f"{OPEN}:{number}: {name} has no test, so it is not partly open")
        elif name in covered and why and not is_part:
            problems.append(f"{OPEN}:{number}: {name} has tests, so its reason begins with `partly:`")
    return problems


# The tests of each id, as text, in order.
Covered = dict[str, dict[str, None]]


def cover(repository: Repository, ids: dict[str, Id]) -> tuple[Covered, list[str]]:
    """The covered ids, and what is wrong with the lines."""
    covered: Covered = {}
    problems: list[str] = []
    for mark in (mark for source in repository.sources.values() for mark in source.marks):
        where = f"{mark.file}:{mark.line}"
        problems += [f"{where}: {name} is not in {IDS}" for name in mark.ids if name not in ids]
        if len(set(mark.ids)) < len(mark.ids):
            problems.append(f"{where}: an id stands twice in the line")
        runs = repository.shown(mark.test) if mark.test else []
        if not runs:
            problems.append(f"{where}: not in the doc comment of a test that is run")
        for _, test in (pair for run in runs for pair in repository.tests_of(run)):
            if test.is_ignored:
                problems.append(f"{test.file}:{test.line}: {test.name} covers an id and is ignored")
        for name in mark.ids if runs else ():
            covered.setdefault(name, {}).update(dict.fromkeys(map(text_of, runs)))
    return covered, list(dict.fromkeys(problems))


def table(ids: dict[str, Id], opened: dict[str, tuple[int, str]], covered: Covered) -> str:
    lines, heading = [HEADER], None
    for name, entry in ids.items():
        if entry.heading != heading:
            heading = entry.heading
            lines += [*([] if len(lines) == 1 else [""]), f"## {heading}", "", "| id | title | tests |", "|---|---|---|"]
        cells = [f"`{text}`" for text in sorted(covered.get(name, {}))]
        if name in opened:
            cells.append(f"open: {opened[name][1].removeprefix('partly: ')}")
        for first, cell in zip([f"{name} | {entry.title}", *[" | "] * len(cells)], cells):
            lines.append(f"| {first} | {cell} |")
    return "\n".join(lines) + "\n"


def listed(lines: list[str]) -> dict[tuple[str, str], set[str]]:
    """The names of tests, by the name and the root file of their target."""
    tests: dict[tuple[str, str], set[str]] = {}
    names: set[str] = set()
    for line in lines:
        if running := re.match(r"\s*Running (?:unittests )?(\S+) \(.*?([^/]+)-[0-9a-f]+\)", line):
            names = tests.setdefault((running[2], running[1]), set())
        elif name := re.match(r"(\S+): test$", line):
            names.add(name[1])
    return tests


def unlisted(repository: Repository, listing: dict[tuple[str, str], set[str]]) -> list[str]:
    """The covering tests that Cargo does not run."""
    problems = []

    def names(target: Target) -> set[str] | None:
        """Cargo shows the root by its path in the package."""
        keys = (key for key in listing if key[0] == target.name and f"/{target.root}".endswith(f"/{key[1]}"))
        return next((listing[key] for key in keys), None)

    for mark in (mark for source in repository.sources.values() for mark in source.marks):
        for run in repository.shown(mark.test) if mark.test else []:
            if run.target is None:
                continue
            found = names(run.target)
            if found is None:
                problems.append(f"{mark.file}:{mark.line}: the target {run.target.label} is not run")
                continue
            for other, test in repository.tests_of(run):
                if other.path not in found:
                    problems.append(f"{test.file}:{test.line}: {text_of(other)} covers an id and is not run")
    return list(dict.fromkeys(problems))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the table is stale, and write nothing")
    parser.add_argument("--listed", action="store_true", help="the same, and read the list of tests on stdin")
    options = parser.parse_args()

    ids, problems = read_ids(IDS.read_text())
    opened, more = read_open(OPEN.read_text(), ids)
    problems += more
    repository = Repository(read_all(tracked()), targets())
    covered, more = cover(repository, ids)
    problems += more + compare(ids, opened, set(covered))
    if options.listed:
        listing = listed(sys.stdin.read().splitlines())
        problems += unlisted(repository, listing) if any(listing.values()) else ["no tests were listed"]

    page = table(ids, opened, covered)
    if options.check or options.listed:
        if not TABLE.exists() or TABLE.read_text() != page:
            problems.append(f"{TABLE}: stale; `python3 .ci/ids.py` writes it")
    elif not problems:
        TABLE.write_text(page)
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
