"""Checks .ci/ids.py, by samples with one fault of each kind."""

from pathlib import Path

from ids import IDS, OPEN, compare, cover, listed, read_ids, read_open, table, unlisted
from test_sources import Repository, Target, read_other, read_python, read_rust

RUST_SAMPLE = """\
//! covers: A1

use super::*;

mod below;

/// Why.
/// covers: A2, A3
#[tokio::test(
    start_paused = true,
)]
async fn runs() {}

/// covers: A4
fn helper() {}

// covers: A5
#[test]
fn plain() {}

mod inner {
    //! covers: A6
    #[test]
    #[ignore]
    fn late() {}
}
"""
PYTHON_SAMPLE = '''\
"""Cases.

covers: H1
"""

# covers: H2
@case("one")
def one(context): ...

# covers: H3
def helper(): ...
'''
LISTED_SAMPLE = """\
     Running tests/all/main.rs (target/debug/deps/all-0123456789abcdef)
runs: test
plain: test
     Running tests/exit.rs (target/debug/deps/exit-0123456789abcdef)
"""


def main() -> None:
    root, below, cases = Path("tests/all/main.rs"), Path("tests/all/below.rs"), Path("tests/sdk/cases.py")
    program, alone = Path("tests/sdk/main.py"), Path("tests/exit.rs")
    sources = {
        root: read_rust(root, RUST_SAMPLE),
        below: read_rust(below, "/// covers: A7\n#[test]\nfn deep() {}\n"),
        alone: read_rust(alone, "//! covers: A8\n\nfn main() {}\n"),
        cases: read_python(cases, PYTHON_SAMPLE),
        program: read_python(program, "import cases\n"),
        Path("a.mjs"): read_other(Path("a.mjs"), "// covers: A9\n"),
    }
    repository = Repository(sources, [Target("all", "all", root), Target("exit", "exit", alone)])
    names = [f"A{number}" for number in range(1, 9)] + ["B1", "H1", "H2", "H3"]
    ids, problems = read_ids("# A: first\n" + "".join(f"{name}  title of {name}\n" for name in names) + "A1  again\nbad\n")
    assert problems == [f"{IDS}:14: A1 is listed twice", f"{IDS}:15: not an id and a title"], problems

    covered, problems = cover(repository, ids)
    assert {name: list(tests) for name, tests in covered.items()} == {
        "A1": ["all *"],
        "A2": ["all runs"],
        "A3": ["all runs"],
        "A6": ["all inner::*"],
        "A7": ["all below::deep"],
        "A8": ["exit"],
        "H1": ["sdk cases::*"],
        "H2": ["sdk cases::one"],
    }, covered
    no_test = "not in the doc comment of a test that is run"
    assert sorted(problems) == [
        f"a.mjs:1: A9 is not in {IDS}",
        f"a.mjs:1: {no_test}",
        f"tests/all/main.rs:14: {no_test}",
        f"tests/all/main.rs:17: {no_test}",
        "tests/all/main.rs:25: late covers an id and is ignored",
        f"tests/sdk/cases.py:10: {no_test}",
    ], sorted(problems)

    opened, problems = read_open("B1  partly: nothing\nA1  not yet\nA2  partly: more\nZ9  why\nH2\n", ids)
    assert problems == [f"{OPEN}:4: Z9 is not in {IDS}", f"{OPEN}:5: H2 has two lines, or no reason"], problems
    problems = compare(ids, opened, set(covered))
    assert problems == [
        f"{OPEN}:2: A1 has tests, so its reason begins with `partly:`",
        f"{IDS}:5: A4 has no test, and no line in {OPEN}",
        f"{IDS}:6: A5 has no test, and no line in {OPEN}",
        f"{OPEN}:1: B1 has no test, so it is not partly open",
        f"{IDS}:13: H3 has no test, and no line in {OPEN}",
    ], problems
    page = table(ids, opened, covered)
    assert "| A2 | title of A2 | `all runs` |\n|  |  | open: more |\n| A3 |" in page, page

    problems = unlisted(repository, listed(LISTED_SAMPLE.splitlines()))
    assert sorted(problems) == [
        "tests/all/below.rs:3: all below::deep covers an id and is not run",
        "tests/all/main.rs:25: all inner::late covers an id and is not run",
    ], problems


main()
