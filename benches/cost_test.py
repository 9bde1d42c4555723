"""Checks cost.py, on folders with made-up figures."""

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

sys.dont_write_bytecode = True  # The package includes this folder as it is.
from cost import BEGIN, END, FRAMES, ROWS

PLACE = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
COUNTS = """\
T1/agent_stack            100   bound      346
T1/tower_http             747   bound        -
T4/tower_agent         22,001   bound    41222
"""
DISCONNECTS = """\
test disconnects::a ... Waiting over Http1, Axum to Reqwest, round 1: n=200 p50=900us p99=9000us max=9001us (bare sockets: n=7 p50=1us p99=2us max=3us; waited: n=9 p50=1us p99=2us max=3us)
Waiting over Http1, Axum to Reqwest, round 2: n=200 p50=300us p99=800us max=801us (bare sockets: n=7 p50=1us p99=2us max=3us; waited: n=9 p50=1us p99=2us max=3us)
Flowing over Http1, Axum to Reqwest, no pump, round 1: n=200 p50=250us p99=5001us max=6000us (bare sockets: n=7 p50=1us p99=2us max=3us; waited: n=9 p50=1us p99=2us max=3us)
"""


def estimate(target, group, **cases):
    for case, nanoseconds in cases.items():
        folder = target / "criterion" / group / case.strip("_") / "new"
        folder.mkdir(parents=True)
        median = {"point_estimate": nanoseconds, "standard_error": 1.0}
        (folder / "estimates.json").write_text(json.dumps({"median": median}))


def served(per_second, ratio, processor, processor_ratio, version=None):
    return {"version": version, "per_second": per_second, "ratio": ratio,
            "processor": processor, "processor_ratio": processor_ratio}


def written(target, text=PLACE):
    """The cells of each row of the table, by row, and the texts of the plot."""
    page = target / "page.md"
    page.write_text(text)
    script = [sys.executable, str(Path(__file__).with_name("cost.py"))]
    arguments = ["--target", str(target), "--page", str(page)]
    done = subprocess.run([*script, *arguments], capture_output=True, text=True)
    if done.returncode:
        return done.stderr
    text = page.read_text()
    assert text.startswith(f"before\n\n{BEGIN}\n") and text.endswith(f"\n{END}\n\nafter\n"), text
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:3] == "| T"]
    plot = xml.etree.ElementTree.parse(page.with_suffix(".svg")).iter("{http://www.w3.org/2000/svg}text")
    texts = ["".join(shape.itertext()) for shape in plot]
    assert len(cells) == len(ROWS) == sum(shape[:1] == "T" for shape in texts), texts
    return cells, texts


with tempfile.TemporaryDirectory() as folder:
    target = Path(folder)
    cells, texts = written(target)
    assert "server of T10" not in (target / "page.md").read_text()
    # Only the bounds of the instructions are there.
    assert all(row[2] == "–" and row[7].strip("*") in ("not measured", "missed", "") for row in cells)
    assert texts.count("not measured") == len(ROWS), texts

    estimate(target, "T1_frame_ready", bare=2 * FRAMES, agent_stack=22 * FRAMES, tower_http=102 * FRAMES)
    estimate(target, "T1b_frame_sse", tower_agent=50 * FRAMES, judge=80.5 * FRAMES)
    estimate(target, "T3_call_ready_one_layer", bare=20, tower_agent=110, tower=60, tower_http=9)
    estimate(target, "T4_call_ready_stack", bare=10, tower_agent=250, tower_timeout=30,
             tower_retry=30, tower_http_timeout=30, extension_insert=30)
    estimate(target, "T6_budget_2_threads", tower_agent=178, tower=946)
    estimate(target, "T12_end_a_session", tower_agent=11.6e6, cancellation_tokens=1.2e6)
    estimate(target, "T13_a_run_among_many", _10=30_000, _100000=400_000_000)
    estimate(target, "T14_stack_frame_pending", bare=0, agent_stack=5, tower_http=0)
    cost = target / "cost"
    cost.mkdir()
    (cost / "instructions.txt").write_text(COUNTS)
    (cost / "memory.json").write_text('{"streams": 100000, "bytes": 4100.4, "left": 0.4}')
    (cost / "load.json").write_text(json.dumps({"unary": {
        "passthrough": served(10000, 1, 90, 1),
        "gateway": served(8000, 0.8, 180.4, 2),
        "smg": served(4000, 0.4, 1350, 15, "1.13.0"),
    }, "stream": {
        "passthrough": served(500, 1, 900, 1),
        "gateway": served(400, 0.8, 900, 1),
        "liter-llm": served(100, 0.2, 4500, 5, "2.4.4"),
    }}))
    (cost / "streams.json").write_text('{"gateway": {"bytes": 51000}, "passthrough": {"bytes": 42500}}')
    (cost / "code.json").write_text(json.dumps({
        "gateway": {"unary": {"code_kb": 401}}, "per_core": {"unary": {"code_kb": 171}}}))
    (cost / "disconnects.txt").write_text(DISCONNECTS)
    cells, texts = written(target)
    found = {}
    for id, _, ours, peer, _, ratio, _, verdict, counts in cells:
        found.setdefault(id, []).append((ours, peer, ratio, verdict, counts))
    expected = {
        "T1": [("20 ns", "100 ns", "0.20", "met", "100 / 747")],
        "T3": [("90 ns", "40 ns", "2.25", "")],
        # The ratio holds, the instructions do not.
        "T4": [("240 ns", "80 ns", "3.00", "**missed**", "22,001")],
        "T7": [("80.5 ns", "–", "–", "**missed**")],
        "T9": [("4,100 B", "–", "–", "**missed**", "–"), ("0.4 %", "–", "–", "met", "–")],
        "T10": [("125 µs", "100 µs", "1.25", "met", "–"), ("2.5 ms", "2 ms", "1.25", "**missed**", "–")],
        "T11": [("300 µs", "–", "–", "met", "–"), ("5 ms", "–", "–", "**missed**", "–")],
        "T12": [("11.6 ms", "1.2 ms", "9.67", "met", "–")],
        "T13": [("4 µs", "3 µs", "1.33", "**missed**", "–")],
        "T15": [("51,000 B", "42,500 B", "1.20", "met", "–")],
        "T16": [("401 KB", "171 KB", "–", "**missed**", "–")],
    }
    for id, rows in expected.items():
        assert [row[:len(want)] for row, want in zip(found[id], rows)] == rows, (id, found[id])
    page = (target / "page.md").read_text()
    for line in (
        "| server of T10 | unary: requests/s | unary: processor time "
        "| stream: requests/s | stream: processor time |",
        "| passthrough | 10,000, 1.00 x | 90 µs, 1.00 x | 500, 1.00 x | 900 µs, 1.00 x |",
        "| gateway | 8,000, 0.80 x | 180 µs, 2.00 x | 400, 0.80 x | 900 µs, 1.00 x |",
        # A mode may be measured without a peer.
        "| smg 1.13.0 | 4,000, 0.40 x | 1.35 ms, 15.00 x | – | – |",
        "| liter-llm 2.4.4 | – | – | 100, 0.20 x | 4.5 ms, 5.00 x |",
    ):
        assert line in page.splitlines(), (line, page)
    # Without `bare`, and beside a peer that adds nothing, there is no figure and no ratio.
    assert found["T1b"][0][:4] == ("–", "–", "–", "not measured"), found["T1b"]
    assert found["T14"][0][2:4] == ("–", "not measured"), found["T14"]
    for text in ("0.20 x 20 ns", "→ 9.67 x 11.6 ms", "2.25 x 90 ns", "4,100 B, target"):
        assert text in texts, (text, texts)

    assert "has no place for the table" in written(target, "nothing\n")
