#!/usr/bin/env python3
"""Writes the table of `docs/cost.md`, and `docs/cost.svg`, from what was measured last.

    cargo bench                                # times; `memory` writes target/cost/memory.json
    cargo bench --bench memory -- 100000       # the count of streams that T9 asks for
    python3 benches/load.py --peers            # writes target/cost/load.json
    python3 benches/streams.py --streams 3000  # writes target/cost/streams.json
    python3 benches/code.py --pass-through     # writes target/cost/code.json
    python3 .ci/instructions.py | tee target/cost/instructions.txt
    cargo test --all-features --test sockets disconnects -- --nocapture \\
        | tee target/cost/disconnects.txt
    python3 benches/cost.py

Each source may be missing: its rows then say `not measured`. Without the output of
`instructions.py` the script reads its bounds, which have no peers.
"""

import argparse
import json
import os
import pathlib
import re
import sys
from dataclasses import dataclass
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- cost: begin -->", "<!-- cost: end -->"
FRAMES = 1024  # of a body, in the groups that read one
BODIES = {"T1_frame_ready", "T1b_frame_sse", "T2_frame_pending", "T14_stack_frame_pending"}
# In these groups a figure is what a case adds to `bare`.
NET = BODIES | {"T3_call_ready_one_layer", "T4_call_ready_stack", "T5_call_pending_stack"}
PLAIN = "tower_timeout tower_retry tower_http_timeout extension_insert"


@dataclass
class Row:
    """What is measured, where, and the targets: of the ratio, our figure, our instructions."""

    id: str
    what: str
    group: str
    ours: str = "tower_agent"
    peers: str = ""  # cases, whose figures are summed
    peer_name: str = ""
    ratio: float | None = None
    value: float | None = None
    instructions: int | None = None
    unit: str = "ns"


ROWS = [
    Row("T1", "frame, ready", "T1_frame_ready", "agent_stack", "tower_http",
        "tower-http `TimeoutBody`", ratio=0.20, instructions=210),
    Row("T1b", "frame, SSE content, ready", "T1b_frame_sse", peers="tower_http",
        peer_name="tower-http `TimeoutBody`", value=100),
    Row("T2", "frame, one `Pending`", "T2_frame_pending", "agent_stack", "tower_http",
        "tower-http `TimeoutBody`", ratio=0.75, instructions=860),
    Row("T3", "call, ready, one layer", "T3_call_ready_one_layer", peers="tower",
        peer_name="tower `Timeout`"),
    Row("T4", "call, ready, five layers", "T4_call_ready_stack", peers=PLAIN,
        peer_name="tower and tower-http", ratio=5, instructions=22_000),
    Row("T5", "call, one `Pending`, three limits", "T5_call_pending_stack", "agent_stack", "tower",
        "tower `Timeout`", ratio=3.5, instructions=3_200),
    Row("T6", "budget operation, two threads", "T6_budget_2_threads", peers="tower",
        peer_name="`TpsBudget`", ratio=0.25),
    Row("T6", "budget operation, one thread", "T6_budget_1_thread", peers="tower",
        peer_name="`TpsBudget`"),
    Row("T6b", "decision to repeat", "T6b_decision", "tower_agent", "tower", "`TpsBudget`", 1),
    Row("T6b", "decision to repeat, with its error key", "T6b_decision", "tower_agent_and_key",
        "tower", "`TpsBudget`", 1),
    Row("T7", "classification of an SSE event", "T1b_frame_sse", "judge", value=80),
    Row("T8", "`model` of 270 kB", "T8_model_rewrite", peers="value_round_trip",
        peer_name="`serde_json::Value`", ratio=1 / 3),
    Row("T9", "one of {streams} streams, nine layers", "memory", "bytes", value=4100, unit="B"),
    Row("T9", "bytes that stay when all streams end", "memory", "left", value=1, unit="%"),
    # 0.65 and 0.88 of the requests per second.
    Row("T10", "gateway, time per unary request", "load", "unary", "", "pass-through", 1 / 0.65),
    Row("T10", "gateway, time per stream", "load", "stream", "", "pass-through", 1 / 0.88),
    Row("T11", "client leaves, upstream is released: p50", "disconnects", "p50", value=1e6),
    Row("T11", "client leaves, upstream is released: p99", "disconnects", "p99", value=5e6),
    Row("T12", "end of a session of 10,000 runs", "T12_end_a_session",
        peers="cancellation_tokens", peer_name="`CancellationToken`", value=20e6),
    Row("T13", "a run among 100,000", "T13_a_run_among_many", "100000", "10", "among 10", 1.3),
    Row("T14", "frame, SSE content, one `Pending`, nine layers", "T14_stack_frame_pending",
        "agent_stack", "tower_http", "tower-http `TimeoutBody`", ratio=2.6),
    Row("T15", "gateway, resident bytes of an open stream", "open_streams", "gateway", "",
        "pass-through", 1.2, unit="B"),
    Row("T16", "gateway, code that a unary request executes", "code", "unary", "", "",
        value=400, unit="KB"),
]


def read(path):
    return path.read_text() if path.exists() else ""


class Figures:
    """The figures below the target folder `root`, each with the peer's; `None` where missing."""

    def __init__(self, root):
        self.criterion, cost, self.counts = root / "criterion", root / "cost", {}
        for path in (ROOT / ".ci/instructions.txt", cost / "instructions.txt"):
            for case, count in re.findall(r"^(\S+/\S+)\s+([\d,]+)", read(path), re.M):
                self.counts[case] = int(count.replace(",", ""))
        memory = json.loads(read(cost / "memory.json") or "{}")
        self.streams = f"{memory.get('streams', 100_000):,}"
        self.others = {("memory", name): (figure, None, None) for name, figure in memory.items()}
        kept = json.loads(read(cost / "streams.json") or "{}")
        if kept:
            ours, peer = kept["gateway"]["bytes"], kept["passthrough"]["bytes"]
            self.others["open_streams", "gateway"] = ours, peer, ours / peer
        code = json.loads(read(cost / "code.json") or "{}")
        if code:
            peer = code.get("per_core", {}).get("unary", {}).get("code_kb")
            self.others["code", "unary"] = code["gateway"]["unary"]["code_kb"], peer, None
        self.load = json.loads(read(cost / "load.json") or "{}")
        for mode, of in self.load.items():
            times = (1e9 / of[name]["per_second"] for name in ("gateway", "passthrough"))
            self.others["load", mode] = *times, 1 / of["gateway"]["ratio"]
        # Of each case the last round counts: the test repeats a round that fails.
        line = r"(\S+ over .*), round \d+: n=\d+ p50=(\d+)us p99=(\d+)us"
        found = re.findall(line, read(cost / "disconnects.txt"))
        cases = {case: percentiles for case, *percentiles in found}.values()
        for name, micros in zip(("p50", "p99"), zip(*cases)):
            self.others["disconnects", name] = max(map(int, micros)) * 1e3, None, None

    def median(self, group, case):
        """The nanoseconds of one call, frame or run."""
        text = read(self.criterion / group / case / "new/estimates.json")
        each = FRAMES if group in BODIES else int(case) if case.isdigit() else 1
        return json.loads(text)["median"]["point_estimate"] / each if text else None

    def sum(self, group, cases):
        net = group in NET and cases != "judge"
        bare = self.median(group, "bare") if net else 0
        times = [self.median(group, case) for case in cases.split()]
        return None if not times or None in [bare, *times] else sum(times) - bare * len(times)

    def of(self, row):
        """Our figure, the peer's, and their ratio."""
        if (row.group, row.ours) in self.others:
            return self.others[row.group, row.ours]
        ours, peer = self.sum(row.group, row.ours), self.sum(row.group, row.peers)
        known = ours is not None and peer is not None and peer > 0
        return ours, peer, ours / peer if known else None

    def what(self, row):
        return row.what.format(streams=self.streams)

    def instructions(self, row):
        """Ours and the peer's, in the first row of an id."""
        if row is next(first for first in ROWS if first.id == row.id):
            ours = "agent_stack" if row.ours == "agent_stack" else "tower_agent"
            cases = [f"{row.id}/{case}" for case in (ours, row.peers)]
            return [self.counts.get(case) for case in cases]
        return [None, None]

    def verdict(self, row):
        ours, _, ratio = self.of(row)
        count = self.instructions(row)[0]
        held = [(ratio, row.ratio), (ours, row.value), (count, row.instructions)]
        parts = [None if figure is None else figure <= most for figure, most in held if most]
        if not parts:
            return ""
        return "missed" if False in parts else "not measured" if None in parts else "met"


def amount(value, unit):
    if unit != "ns":
        return f"{value:,.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
    units = ["ns", "µs", "ms"]
    while abs(value) >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def table(figures):
    yield "| | what | ours | peer | | ratio | target | | instructions, ours / peer |"
    yield "|---|---|---:|---:|---|---:|---|---|---:|"
    for row in ROWS:
        ours, peer, ratio = figures.of(row)
        targets = [f"≤ {row.ratio:.3g} x"] if row.ratio else []
        targets += [f"≤ {amount(row.value, row.unit)}"] if row.value else []
        targets += [f"≤ {row.instructions:,} instructions"] if row.instructions else []
        counts = [f"{count:,}" for count in figures.instructions(row) if count is not None]
        verdict = figures.verdict(row)
        cells = [row.id, figures.what(row), "–" if ours is None else amount(ours, row.unit),
                 "–" if peer is None else amount(peer, row.unit), row.peer_name,
                 "–" if ratio is None else f"{ratio:.2f}", ", ".join(targets) or "–",
                 f"**{verdict}**" if verdict == "missed" else verdict, " / ".join(counts) or "–"]
        yield f"| {' | '.join(cells)} |"


def servers(figures):
    """The servers of T10: in each mode, requests per second and processor time."""
    modes = [mode for mode in ("unary", "stream") if mode in figures.load]
    names = dict.fromkeys(name for mode in modes for name in figures.load[mode])
    if not modes:
        return
    heads = [f"{mode}: {what}" for mode in modes for what in ("requests/s", "processor time")]
    yield ""
    yield f"| server of T10 | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"
    for name in names:
        found = [figures.load[mode].get(name) for mode in modes]
        versions = [of["version"] for of in found if of and of["version"]]
        cells = [" ".join([name, *versions[:1]])]
        for of in found:
            cells += [
                f"{of['per_second']:,.0f}, {of['ratio']:.2f} x",
                f"{amount(of['processor'] * 1e3, 'ns')}, {of['processor_ratio']:.2f} x",
            ] if of else ["–", "–"]
        yield f"| {' | '.join(cells)} |"


# Text has a contrast of 4 or more on white and on GitHub's dark background.
STYLE = """text { font: 12px system-ui, sans-serif; fill: #747d87 } .bold { font-weight: 600 }
.missed { fill: #d9443f } .ours { fill: #3b82d6 } .peer { fill: #8b949e; opacity: .75 }
.target { fill: #2f9e5b; opacity: .25 } line { stroke: #8b949e; opacity: .25 }"""
LEFT, SCALE, MOST, HEIGHT = 320, 100, 4, 34  # `SCALE` pixels for 1 x, of at most `MOST`


def plot(figures):
    """Two bars for each row, ours and the peer's; without a peer, the target is the second."""
    width, bottom = LEFT + MOST * SCALE + 180, 46 + HEIGHT * len(ROWS)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" role="img">'
    yield "<title>What the layers add, as a multiple of what their peers add</title>"
    yield f"<style>{STYLE}</style>"
    for kind, x, text in [
        ("ours", 10, "tower-agent"), ("peer", 120, "the peer, 1 x"), ("target", 230, "target"),
    ]:
        yield f'<rect class="{kind}" x="{x}" y="4" width="14" height="12"/>'
        yield f'<text x="{x + 20}" y="14">{text}</text>'
    for times in range(MOST + 1):
        x = LEFT + times * SCALE
        yield f'<line x1="{x}" x2="{x}" y1="38" y2="{bottom - 4}"/>'
        yield f'<text x="{x}" y="32" text-anchor="middle">{times} x</text>'

    def bar(kind, y, times, height=10):
        width = max(0, min(times, MOST)) * SCALE
        return f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{height}"/>'

    for y, row in zip(range(46, bottom, HEIGHT), ROWS):
        ours, peer, ratio = figures.of(row)
        name, target = row.peer_name, row.ratio or (peer and row.value and row.value / peer)
        if ours is not None and not name:
            peer, name, ratio, target = row.value, "target", ours / row.value, 1
        what = escape(figures.what(row).replace("`", ""))
        yield f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end"><tspan class="bold">' \
              f"{row.id}</tspan> {what}</text>"
        if ratio is None:
            yield f'<text x="{LEFT + 6}" y="{y + 15}">not measured</text>'
            continue
        yield bar("target", y - 3, target or 0, 28)
        yield bar("ours", y, ratio)
        yield bar("peer", y + 12, 1)
        end, more = LEFT + max(0, min(ratio, MOST)) * SCALE + 6, "→ " if ratio > MOST else ""
        verdict = figures.verdict(row)
        yield f'<text x="{end:.1f}" y="{y + 9}"><tspan class="bold {verdict}">{more}{ratio:.2f} x' \
              f"</tspan> {amount(ours, row.unit)}{', missed' * (verdict == 'missed')}</text>"
        beside = escape(f"{amount(peer, row.unit)}, {name}".replace("`", ""))
        yield f'<text x="{LEFT + SCALE + 6}" y="{y + 21}">{beside}</text>'
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    parser.add_argument("--target", type=pathlib.Path, default=pathlib.Path(target))
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/cost.md")
    args = parser.parse_args()
    figures = Figures(args.target)
    lines = "\n".join([BEGIN, "", *table(figures), *servers(figures), "", END])
    text, found = re.subn(f"{BEGIN}.*{END}", lambda _: lines, args.page.read_text(), flags=re.S)
    if found != 1:
        sys.exit(f"{args.page} has no place for the table: {BEGIN} and {END}")
    args.page.write_text(text)
    args.page.with_suffix(".svg").write_text("\n".join(plot(figures)) + "\n")
    for verdict in ("met", "missed", "not measured"):
        ids = dict.fromkeys(row.id for row in ROWS if figures.verdict(row) == verdict)
        print(f"{verdict}: {', '.join(ids) or 'none'}")


if __name__ == "__main__":
    main()
