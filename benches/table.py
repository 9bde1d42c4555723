#!/usr/bin/env python3
"""Prints the table of the README from the last `cargo bench`.

    cargo bench --bench frames --bench layers && python3 benches/table.py
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
]
COLUMNS = ["bare", "tower_agent", "tower", "tower_http"]


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


if __name__ == "__main__":
    main()
