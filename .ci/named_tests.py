"""Holds that every test which tests/README.md names exists.

Reads the output of `cargo test --all-features -- --list`, both streams, on its standard input.
"""

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

README = Path("tests/README.md")
# What stands before a name there, if it is no target of its own: target, and module.
LIBRARY = "src/lib.rs"
SHORT = {
    "lib": (LIBRARY, ""),
    "core": (LIBRARY, "run::tree::tests::"),
    "sse": (LIBRARY, "llm::stream::tests::"),
    "run": (LIBRARY, "run::"),
    "stacks": (LIBRARY, "tests::stacks::"),
    "storm": ("examples/storm.rs", "tests::"),
}
TARGETS = {"layers", "sockets", "gateway", "classify", "composition", "allocations"}


def tests_of(listing):
    """The names of the tests, by target."""
    tests, target = {}, None
    for line in listing:
        if running := re.match(r"\s*Running (?:unittests )?(\S+)", line):
            target = running[1]
        elif name := re.match(r"(\S+): test$", line):
            tests.setdefault(target, []).append(name[1])
    return tests


def target_of(word, tests):
    files = (f"tests/{word}/main.rs", f"tests/{word}.rs")
    return next((file for file in files if file in tests), None)


def is_named(word, pattern, tests):
    """Whether a test matches, in a target or in the library."""
    target, module = SHORT.get(word, (target_of(word, tests) if word else LIBRARY, ""))
    names = tests.get(target, [])
    return any(fnmatchcase(name, module + pattern) for name in names)


def missing(text, tests):
    word, module = None, ""
    for token in re.findall(r"`([^`]+)`", text):
        first, _, rest = token.partition(" ")
        if re.match(r"(tests|src|examples|docs)/", token):
            found = Path(token).exists()
        elif first == "sdk":
            found = Path("tests/sdk", rest).exists()
        elif first in TARGETS or first in SHORT:
            if not rest:
                continue
            word, module = first, rest.rpartition("::")[0]
            found = is_named(word, rest, tests)
        elif token.startswith("::"):
            # Next to the one before it, or next to a module that that is in.
            parts = module.split("::")
            above = ["::".join(parts[:depth]) + token for depth in range(len(parts), 0, -1)]
            pattern = next((name for name in above if is_named(word, name, tests)), None)
            found = pattern is not None
            module = pattern.rpartition("::")[0] if found else module
        elif re.fullmatch(r"[\w*]+(::[\w*]+)+", token):
            # A test of a target, else of the library.
            first, _, rest = token.partition("::")
            word = first if target_of(first, tests) else None
            rest = rest if word else token
            module = rest.rpartition("::")[0]
            found = is_named(word, rest, tests)
        else:
            continue
        if not found:
            yield token


def main():
    tests = tests_of(sys.stdin)
    if not tests:
        sys.exit("no tests were listed")
    lines = enumerate(README.read_text().splitlines(), 1)
    gone = [f"{README}:{number}: no test {token}" for number, line in lines for token in missing(line, tests)]
    print(*gone, sep="\n")
    sys.exit(1 if gone else 0)


main()
