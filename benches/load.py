#!/usr/bin/env python3
"""Loads the gateway and a bare pass-through of the same axum and reqwest, in alternating pairs.

    python3 benches/load.py                  # builds, then 5 pairs of 4 s for each mode
    python3 benches/load.py --pairs 3 --seconds 2 --mode unary
    python3 benches/load.py --strace         # system calls per request instead of times

All of it runs on this machine, over loopback: an upstream that answers at once, the two
servers, and `wrk`. The gateway runs as it ships: `preset = "recommended"`, its log at INFO and
its records go to pipes that are read. For each mode (`unary`: a JSON answer of 300 bytes,
`stream`: 50 chat events, each written alone) the script prints requests per second, the median
latency, and the server's processor time per request (`utime` and `stime` of /proc/PID/stat).

Ratios are medians over the pairs. On a machine with other work compare the processor times;
requests per second then measure that work as well. `cost.py` reads the requests per second
from `target/cost/load.json`.
"""

import argparse
import collections
import json
import operator
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
MODES = {"unary": "false", "stream": "true"}

CONFIG = """preset = "recommended"
[[candidates]]
model = "m"
base_url = "http://{upstream}/v1"
"""

SCRIPT = """wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"model":"m","stream":%s,"messages":[{"role":"user","content":"What does the fox jump over? Answer in one sentence."}]}'
function done(summary, latency, requests)
  local e = summary.errors
  print(string.format("RESULT %%d %%d %%d %%d", summary.requests, summary.duration,
    latency:percentile(50), e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class Server:
    """A process that prints the address on which it listens; its outputs are read."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in self.process.stdout:
            found = re.search(rb"listening on http://(\S+)", line)
            if found:
                self.address = found[1].decode()
                break
        else:
            sys.exit(f"{command[0]} does not listen: {self.process.stderr.read().decode()}")
        for pipe in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self.drain, args=[pipe], daemon=True).start()

    @staticmethod
    def drain(pipe):
        while os.read(pipe.fileno(), 1 << 16):
            pass

    def times(self):
        """The processor time so far in seconds: of the program, and of the kernel for it."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return int(fields[11]) / TICK, int(fields[12]) / TICK

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def load(server, script, seconds, connections):
    """Loads `server`: its requests, and per request what they took."""
    user, kernel = server.times()
    url = f"http://{server.address}/v1/chat/completions"
    out = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script, url],
        check=True, capture_output=True, text=True).stdout
    after = server.times()
    requests, micros, p50, errors = map(int, re.search(r"RESULT (.*)", out)[1].split())
    if errors or not requests:
        sys.exit(f"{errors} of {requests} requests failed\n{out}")
    return {
        "requests": requests,
        "per_second": requests / micros * 1e6,
        "p50": p50,
        "user": (after[0] - user) / requests * 1e6,
        "kernel": (after[1] - kernel) / requests * 1e6,
    }


def traced(server, script, seconds, connections):
    """Prints the system calls of `server` per request."""
    with tempfile.NamedTemporaryFile() as counts:
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", counts.name, "-p", str(server.process.pid)],
            stderr=subprocess.PIPE)
        tracer.stderr.readline()  # It has attached.
        requests = load(server, script, seconds, connections)["requests"]
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
        calls = collections.Counter()
        for line in counts.read().decode().splitlines():
            found = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
            if found and found[2] != "total":
                calls[found[2]] += int(found[1])
    text = ", ".join(f"{name} {count / requests:.2f}" for name, count in calls.most_common(8))
    print(f"    {sum(calls.values()) / requests:.2f} a request: {text}", flush=True)


def report(mode, pairs):
    print(f"{mode:12} {'requests/s':>11} {'p50 µs':>8} {'user µs':>8} {'kernel µs':>10} {'both':>6}")
    for name in ("passthrough", "gateway"):
        of = {key: statistics.median(pair[name][key] for pair in pairs) for key in pairs[0][name]}
        both = statistics.median(pair[name]["user"] + pair[name]["kernel"] for pair in pairs)
        print(f"{name:12} {of['per_second']:11.0f} {of['p50']:8.0f} {of['user']:8.1f} "
              f"{of['kernel']:10.1f} {both:6.1f}")

    def ratio(value):
        ratios = sorted(value(pair["gateway"]) / value(pair["passthrough"]) for pair in pairs)
        return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"

    print(f"  gateway / passthrough: requests per second {ratio(lambda it: it['per_second'])}, "
          f"processor time {ratio(lambda it: it['user'] + it['kernel'])}\n", flush=True)


def write(file, mode, pairs):
    """Writes the requests per second of `mode` for `cost.py`, and leaves the other mode's."""
    per_second = {name: [pair[name]["per_second"] for pair in pairs] for name in pairs[0]}
    figures = {name: statistics.median(each) for name, each in per_second.items()}
    ratios = map(operator.truediv, per_second["gateway"], per_second["passthrough"])
    figures["ratio"] = statistics.median(ratios)
    file.parent.mkdir(parents=True, exist_ok=True)
    modes = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(modes | {mode: figures}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--strace", action="store_true", help="count system calls instead")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    args = parser.parse_args()
    for tool in ["wrk"] + ["strace"] * args.strace:
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: apt-get install {tool}")
    if not args.no_build:
        subprocess.run(["cargo", "build", "--release", "-p", "tower-agent-gateway",
                        "--bins", "--example", "load"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = target / "release"
    servers = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            peers = str(built / "examples/load")
            servers["upstream"] = upstream = Server([peers, "upstream"])
            servers["passthrough"] = Server([peers, "passthrough", upstream.address])
            config = folder / "gateway.toml"
            config.write_text(CONFIG.format(upstream=upstream.address))
            servers["gateway"] = Server([str(built / "tower-agent-gateway"), "--config",
                                         str(config), "--listen", "127.0.0.1:0"])
            for mode in args.mode or MODES:
                script = folder / f"{mode}.lua"
                script.write_text(SCRIPT % MODES[mode])
                both = ["passthrough", "gateway"]
                for name in both:
                    load(servers[name], script, 1, args.connections)
                if args.strace:
                    for name in both:
                        print(f"{mode}, {name}")
                        traced(servers[name], script, args.seconds, args.connections)
                    continue
                # The order within the pairs alternates, so that a drift favours neither.
                pairs = [{name: load(servers[name], script, args.seconds, args.connections)
                          for name in (both if number % 2 == 0 else reversed(both))}
                         for number in range(args.pairs)]
                report(mode, pairs)
                write(target / "cost/load.json", mode, pairs)
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
