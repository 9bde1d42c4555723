"""The official SDKs against the gateway: starts everything, runs the cases, counts."""

import argparse
import difflib
import pathlib
import sys

import cases_early_head  # noqa: F401  (registers its cases)
import cases_embedded  # noqa: F401
import cases_fallback  # noqa: F401
import cases_frames  # noqa: F401
import cases_heads  # noqa: F401
import cases_limits  # noqa: F401
import cases_loop  # noqa: F401
import cases_mock  # noqa: F401
import cases_reasons  # noqa: F401
import cases_scripted  # noqa: F401
import cases_streams  # noqa: F401
import cases_websocket  # noqa: F401
import runner
import table
import versions
from context import Context
from world import World

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/sdk.md"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=pathlib.Path, required=True)
    parser.add_argument("--reasons", type=pathlib.Path, required=True, help="the server of cases_reasons.py")
    parser.add_argument("--node", type=pathlib.Path, required=True)
    parser.add_argument("--node-program", type=pathlib.Path, required=True)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("--table", type=pathlib.Path, help="write what was measured, if all cases are run and pass")
    parser.add_argument("words", nargs="*", help="run only cases whose names contain one of these")
    options = parser.parse_args()
    if options.table and options.words:
        parser.error("--table needs all cases")

    options.logs.mkdir(parents=True, exist_ok=True)
    world = World(options)
    try:
        world.start_all()
        cases = runner.chosen(options.words)
        tally, outcomes = runner.run(lambda key, caller: Context(world, key, caller), cases)
    finally:
        statuses = world.stop()

    for name, status in statuses.items():
        tally.check(status == 0, f"{name} ends cleanly on SIGTERM (status {status})")
    if not options.words and not tally.failed:
        page = table.page(cases, outcomes, versions.measured(options.node, options.node_program.parent))
        if options.table:
            options.table.write_text(page)
        check_table(tally, page)
    if tally.skipped:
        print(f"{tally.skipped} skipped, as said above")
    if tally.failed:
        print(f"what the processes wrote to stderr is in {options.logs}")
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


def check_table(tally, page):
    """The page that is committed says what was measured."""
    committed = PAGE.read_text() if PAGE.exists() else ""
    tally.check(page == committed, f"{PAGE.relative_to(ROOT)} says what was measured")
    lines = [text.splitlines(keepends=True) for text in (committed, page)]
    sys.stdout.writelines(difflib.unified_diff(*lines, "committed", "measured", n=0))


if __name__ == "__main__":
    main()
