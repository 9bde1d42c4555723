#!/usr/bin/env python3
"""Counts the instructions that the layers add, and holds them to `.ci/instructions.txt`.

    python3 .ci/instructions.py            # prints the table
    python3 .ci/instructions.py --check    # fails if a count is more than 3 % above its bound
    python3 .ci/instructions.py --write    # writes the counts of now as the bounds
    python3 .ci/instructions.py T3 T5      # prints those groups alone

Needs valgrind. Each case of `benches/instructions.rs` and `counting.rs` runs with two numbers; the difference of the
two counts is what the calls or frames alone cost, and the bare case is subtracted from it.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUNDS = ROOT / ".ci" / "instructions.txt"
SLACK = 1.03
OURS = ("/tower_agent", "/agent_stack")
BENCHES = ["instructions", "counting"]
# Calls; of the others bodies of 1,024 frames.
FEW = {"T3": 400, "T4": 100, "T5": 400, "count_call": 100, "sole_call": 100}


def build():
    """The programs of the benches."""
    command = ["cargo", "bench", "--no-run", "--message-format", "json"]
    command += [word for bench in BENCHES for word in ("--bench", bench)]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    made = {}
    for message in map(json.loads, lines.splitlines()):
        if message.get("executable"):
            made[message["target"]["name"]] = message["executable"]
    missing = [bench for bench in BENCHES if bench not in made]
    if missing:
        sys.exit(f"cargo names no bench {', '.join(missing)}")
    return [made[bench] for bench in BENCHES]


def counted(program, case, times):
    """How many instructions the program takes, and how many calls or frames those were."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, case]
    run = subprocess.run([*command, str(times)], check=True, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", run.stderr)[1]), int(run.stdout)


def each(program, case):
    few = FEW.get(case.split("/")[0], 2)
    (low, some), (high, more) = (counted(program, case, times) for times in (few, 3 * few))
    return (high - low) / (more - some)


def bounds():
    lines = BOUNDS.read_text().splitlines() if BOUNDS.exists() else []
    return {case: int(count) for case, count in (line.split() for line in lines)}


def main():
    given = os.environ.get("INSTRUCTIONS")
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    programs = {}
    for program in [given] if given else build():
        listed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        programs |= {line.split()[0]: program for line in listed.splitlines()}
    cases = [case for case in programs if not wanted or case.split("/")[0] in wanted]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(cases, pool.map(lambda case: each(programs[case], case), cases)))
    stored, worse = bounds(), []
    added = {}
    for case, count in counts.items():
        bare = counts[case.split("/")[0] + "/bare"]
        if count == bare and case.endswith("/bare"):
            continue
        added[case] = round(count - bare)
        bound = stored.get(case)
        print(f"{case:20} {added[case]:>8,}   bound {bound if bound is not None else '-':>8}")
        ours = case.endswith(OURS)
        if ours and (bound is None or added[case] > bound * SLACK):
            worse.append(case)
    if "--write" in sys.argv:
        ours = {case: count for case, count in added.items() if case.endswith(OURS)}
        BOUNDS.write_text("".join(f"{case} {count}\n" for case, count in ours.items()))
    elif "--check" in sys.argv and worse:
        sys.exit(f"above the bound: {', '.join(worse)}")


if __name__ == "__main__":
    main()
