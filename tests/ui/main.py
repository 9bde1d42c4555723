"""Runs the cases of check.py and reports.py; see `run`."""

import shutil
import sys
import traceback

from playwright.sync_api import expect, sync_playwright

import check
import reports
from support import PATIENCE


def main():
    binary, *rest = sys.argv[1:]
    is_full = "--full" in rest
    wanted = [it for it in rest if it != "--full"]
    failed = []
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox of its own.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        world = check.World(binary, browser, is_full)
        all_cases = [*check.CASES, *reports.CASES]
        names = {case: f"{case.__module__}.{case.__name__}" for case in all_cases}
        cases = [it for it in all_cases if not wanted or any(name in names[it] for name in wanted)]
        if not cases:
            sys.exit(f"no case has a name with one of {wanted}")
        for case in cases:
            print(f"  {names[case]}", flush=True)
            try:
                world.clean()
                case(world)
            except Exception:
                traceback.print_exc(limit=-3)
                failed.append(names[case])
        world.gateway.stop()
        world.simulator.stop()
        browser.close()
    for name in failed:
        print(f"failed: {name}")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


main()
