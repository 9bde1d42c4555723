#!/usr/bin/env python3
"""Prints the tables of `docs/measurements.md` from the last `cargo bench`.

    cargo bench && python3 benches/table.py
"""

import json
import pathlib
import sys

FRAMES = 1024  # of a body, in the groups that read one
GROUPS = [
    ("T1_frame_ready", FRAMES, "frame, ready"),
    ("T1b_frame_sse", FRAMES, "frame, SSE content, ready"),
    ("T2_frame_pending", FRAMES, "frame, one `Pending` each"),
    ("T3_call_ready_one_layer", 1, "call, ready, one layer"),
    ("T5_call_pending_stack", 1, "call, one `Pending`, three layers"),
    ("T14_stack_frame_pending", FRAMES, "frame, SSE content, one `Pending` each, nine layers"),
]
COLUMNS = ["bare", "tower_agent", "tower", "tower_http"]

# Ours, what stands beside it, and what that is.
STACK = "T4_call_ready_stack"
PAIRS = [
    ("five layers around a ready call", STACK, ["tower_agent"],
     ["tower_timeout", "tower_retry", "tower_http_timeout", "extension_insert"],
     "tower `Timeout` and `Retry`, tower-http `Timeout`, one extension"),
    ("budget, one thread", "T6_budget_1_thread", ["tower_agent"], ["tower"], "`TpsBudget`"),
    ("budget, two threads", "T6_budget_2_threads", ["tower_agent"], ["tower"], "`TpsBudget`"),
    ("a whole decision", "T6b_decision", ["tower_agent"], ["tower"], "one `TpsBudget` operation"),
    ("`model` of 270 kB", "T8_model_rewrite", ["tower_agent"], ["value_round_trip"],
     "through `serde_json::Value`"),
    ("a session of 10,000 runs ended", "T12_end_a_session", ["tower_agent"],
     ["cancellation_tokens"], "as many children of one `CancellationToken`, two wait for each"),
]

# One run's share, whether there are few or many.
AMONG_MANY = "T13_a_run_among_many"


def nanoseconds(root, group, function):
    path = root / group / function / "new" / "estimates.json"
    if not path.exists():
        return None
    return json.loads(path.read_text())["median"]["point_estimate"]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/criterion")
    print("| ns per | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    for group, per, name in GROUPS:
        times = (nanoseconds(root, group, column) for column in COLUMNS)
        cells = ("–" if time is None else f"{time / per:.0f}" for time in times)
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()
    print("| ns | tower_agent | beside it | ratio | |")
    print("|---|---:|---:|---:|---|")
    for name, group, ours, others, what in PAIRS:
        # Of a stack each layer's share is what it adds to the bare call.
        bare = nanoseconds(root, group, "bare") or 0
        added = lambda names: [nanoseconds(root, group, name) for name in names]
        ours, others = added(ours), added(others)
        if None in ours + others:
            continue
        ours, others = (sum(time - bare for time in times) for times in (ours, others))
        print(f"| {name} | {ours:.0f} | {others:.0f} | {ours / others:.2f} | {what} |")
    print()
    print("| runs | ns each | of that among 10 |")
    print("|---:|---:|---:|")
    among = [(10**n, nanoseconds(root, AMONG_MANY, str(10**n))) for n in range(1, 6)]
    each = [(runs, time / runs) for runs, time in among if time is not None]
    for runs, time in each:
        print(f"| {runs:,} | {time:.0f} | {time / each[0][1]:.2f} |")


if __name__ == "__main__":
    main()
