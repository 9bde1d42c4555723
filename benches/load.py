#!/usr/bin/env python3
"""Loads the gateway and a bare pass-through of the same axum and reqwest, by turns.

    python3 benches/load.py                  # builds, then 5 pairs of 4 s for each mode
    python3 benches/load.py --pairs 3 --seconds 2 --mode unary
    python3 benches/load.py --peers          # beside two other gateways: see `peers.py`
    python3 benches/load.py --store          # with turns that a store counts, beside the same without
    python3 benches/load.py --strace         # system calls per request instead of times
    python3 benches/load.py --profile dist   # as the gateway is shipped, with fat LTO

All of it runs on this machine, over loopback: an upstream that answers at once, the servers,
and `wrk`. The gateway runs as it ships: `preset = "recommended"`, its log at INFO and
its records go to pipes that are read. For each mode (`unary`: a JSON answer of 300 bytes,
`stream`: 50 chat events, each written alone) the script prints requests per second, the median
latency, and the server's processor time per request (`utime` and `stime` of /proc/PID/stat).
`per_core` is the pass-through on the gateway's allocator and with its threads; the ratios are of
`passthrough`, a plain axum server on one runtime. Before, each server must return the upstream's answer; a peer that does not is left out.

With `--store` each request is a turn of one of 1,000 runs under a cap, so that it pays the one question that a
request asks: `store` is a gateway with `[replicas]` on a `redis-server` of this machine, `gateway` the same
without it. These figures are only printed.

Ratios are medians over the pairs. On a machine with other work compare the processor times;
requests per second then measure that work as well. `cost.py` reads the figures from
`target/cost/load.json`.
"""

import argparse
import collections
import http.client
import json
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
import time

sys.dont_write_bytecode = True  # The package includes this folder as it is.
from peers import PEERS, free_port, installed

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
MODES = {"unary": "false", "stream": "true"}

CONFIG = """preset = "recommended"
[[candidates]]
model = "m"
base_url = "http://{upstream}/v1"
"""

CAPPED = """
[run]
max_turns = 1000000
"""

REPLICAS = """
[replicas]
url_env = "LOAD_REDIS_URL"
secret_env = "LOAD_REPLICA_SECRET"
"""

# A request of the next of 1,000 runs.
OF_RUNS = """local sent = 0
function request()
  sent = sent + 1
  wrk.headers["x-run-id"] = "load-" .. sent % 1000
  return wrk.format()
end
"""

BODY = '{"model":"m","stream":%s,"messages":[{"role":"user","content":"What does the fox jump over? Answer in one sentence."}]}'

SCRIPT = """wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '%s'
function done(summary, latency, requests)
  local e = summary.errors
  print(string.format("RESULT %%d %%d %%d %%d", summary.requests, summary.duration,
    latency:percentile(50), e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def programs(target, profile, is_built=False):
    """Builds the gateway and the servers beside it, and returns the folder they are in."""
    if not is_built:
        subprocess.run(["cargo", "build", "--profile", profile, "-p", "tower-agent-gateway", "--bins",
                        "--example", "load", "--example", "load_per_core"], cwd=ROOT, check=True)
    return target / ("debug" if profile == "dev" else profile)


class Server:
    """A process that listens on `address`, or prints where it does; its outputs are read."""

    def __init__(self, command, address=None, headers=None, env=None):
        self.headers, self.said = headers or {}, b""
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=os.environ | (env or {}))
        self.address = address or self.printed(command)
        pipes = (self.process.stdout, self.process.stderr)
        self.readers = [threading.Thread(target=self.drain, args=[pipe], daemon=True)
                        for pipe in pipes]
        for reader in self.readers:
            reader.start()

    def printed(self, command):
        for line in self.process.stdout:
            found = re.search(rb"listening on http://(\S+)", line)
            if found:
                return found[1].decode()
        sys.exit(f"{command[0]} does not listen: {self.process.stderr.read().decode()}")

    def drain(self, pipe):
        while part := os.read(pipe.fileno(), 1 << 16):
            self.said = part

    def times(self):
        """The processor time so far in seconds: of the program, and of the kernel for it."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return int(fields[11]) / TICK, int(fields[12]) / TICK

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def answer(server, mode):
    """The JSON values of an answer of `server`: one, or those of a stream's events."""
    connection = http.client.HTTPConnection(server.address, timeout=10)
    headers = {"content-type": "application/json"} | server.headers
    try:
        connection.request("POST", "/v1/chat/completions", BODY % MODES[mode], headers)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"status {response.status}: {text}")
    values = [text]
    if mode == "stream":
        values = re.findall("^data: ?(.*)$", text, re.M)
        if values[-1:] != ["[DONE]"]:
            raise ValueError(f"the stream does not end with [DONE]: {text[-300:]}")
        values.pop()
    return [without_nulls(json.loads(value)) for value in values]


def differs(server, upstream):
    """Why `server` does not return the answers of `upstream`; `None` if it does."""
    for mode in MODES:
        try:
            found, expected = answer(server, mode), answer(upstream, mode)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return f"{mode}: {error!r}"
        if found != expected:
            return f"{mode}: its answer is {found}, and the upstream's is {expected}"
    return None


def check(server, upstream, patience=0):
    """As `differs`, asked until the answers are equal or `patience` seconds have passed."""
    deadline = time.monotonic() + patience
    while why := differs(server, upstream):
        if ended := server.process.poll() is not None:
            for reader in server.readers:
                reader.join(1)
        if ended or time.monotonic() > deadline:
            return f"{why[:600]}; {'ended, ' * ended}it said: {server.said.decode()[-600:]}"
        time.sleep(0.2)
    return None


def load(server, script, seconds, connections):
    """Loads `server`: its requests, and per request what they took."""
    user, kernel = server.times()
    url = f"http://{server.address}/v1/chat/completions"
    headers = [f"-H{name}: {value}" for name, value in server.headers.items()]
    out = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script, *headers, url],
        check=True, capture_output=True, text=True).stdout
    after = server.times()
    requests, micros, p50, errors = map(int, re.search(r"RESULT (.*)", out)[1].split())
    if errors or not requests:
        sys.exit(f"{errors} of {requests} requests failed at {server.address}\n{out}")
    user, kernel = ((now - then) / requests * 1e6 for now, then in zip(after, (user, kernel)))
    return {
        "requests": requests,
        "per_second": requests / micros * 1e6,
        "p50": p50,
        "user": user,
        "kernel": kernel,
        "processor": user + kernel,
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


def ratios(rounds, name, key):
    return sorted(each[name][key] / each["passthrough"][key] for each in rounds)


def report(mode, rounds):
    print(f"{mode:12} {'requests/s':>11} {'p50 µs':>8} {'user µs':>8} {'kernel µs':>10} {'both':>6}")
    for name in rounds[0]:
        of = {key: statistics.median(each[name][key] for each in rounds)
              for key in rounds[0][name]}
        print(f"{name:12} {of['per_second']:11.0f} {of['p50']:8.0f} {of['user']:8.1f} "
              f"{of['kernel']:10.1f} {of['processor']:6.1f}")

    def ratio(name, key):
        found = ratios(rounds, name, key)
        return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"

    for name in rounds[0]:
        if name != "passthrough":
            print(f"  {name} / passthrough: requests per second {ratio(name, 'per_second')}, "
                  f"processor time {ratio(name, 'processor')}")
    found = sorted(each["gateway"]["per_second"] / each["per_core"]["per_second"] for each in rounds)
    print(f"  gateway / per_core: requests per second {statistics.median(found):.2f} "
          f"({found[0]:.2f} to {found[-1]:.2f})")
    print(flush=True)


def save(file, figures):
    """Writes figures for `cost.py`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(figures, indent=1) + "\n")


def write(file, mode, rounds):
    """Writes the figures of `mode` for `cost.py`, and leaves the other mode's."""
    versions = {peer.name: peer.version for peer in PEERS}
    figures = {name: {
        "version": versions.get(name),
        "per_second": statistics.median(each[name]["per_second"] for each in rounds),
        "ratio": statistics.median(ratios(rounds, name, "per_second")),
        "processor": statistics.median(each[name]["processor"] for each in rounds),
        "processor_ratio": statistics.median(ratios(rounds, name, "processor")),
    } for name in rounds[0]}
    file.parent.mkdir(parents=True, exist_ok=True)
    modes = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(modes | {mode: figures}, indent=2) + "\n")


def add_peers(servers, target, folder):
    """Starts the peers that can be installed, and keeps those that pass their check."""
    for peer in PEERS:
        try:
            home = installed(peer, target / "peers")
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{peer.name} is left out, it cannot be installed: {error}", flush=True)
            continue
        port, upstream = free_port(), servers["upstream"]
        command = peer.command(home, upstream.address, port, folder / f"{peer.name}.toml")
        server = Server(command, f"127.0.0.1:{port}", peer.headers, peer.env)
        servers[peer.name] = server
        if why := check(server, upstream, 60):
            print(f"{peer.name} is left out, {why}", flush=True)
            servers.pop(peer.name).stop()


def add_store(servers, config, program, folder):
    """Starts a `redis-server`, and a gateway of this configuration on it."""
    port = free_port()
    servers["redis"] = Server(["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)],
                              f"127.0.0.1:{port}")
    path = folder / "store.toml"
    path.write_text(config + REPLICAS)
    env = {"LOAD_REDIS_URL": f"redis://127.0.0.1:{port}", "LOAD_REPLICA_SECRET": os.urandom(16).hex()}
    for _ in range(50):
        ready = subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True)
        if ready.stdout.strip() == b"PONG":
            break
        time.sleep(0.1)
    servers["store"] = Server([*program, "--config", str(path)], env=env)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--peers", action="store_true", help="measure other gateways as well")
    parser.add_argument("--store", action="store_true",
                        help="measure a gateway whose turns a store counts as well")
    parser.add_argument("--strace", action="store_true", help="count system calls instead")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    args = parser.parse_args()
    for tool in ["wrk"] + ["strace"] * args.strace + ["redis-server", "redis-cli"] * args.store:
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: apt-get install {tool}")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = programs(target, args.profile, args.no_build)
    servers = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            ours = str(built / "examples/load")
            servers["upstream"] = upstream = Server([ours, "upstream"])
            servers["passthrough"] = Server([ours, "passthrough", upstream.address])
            servers["per_core"] = Server([str(built / "examples/load_per_core"), upstream.address])
            text = CONFIG.format(upstream=upstream.address) + CAPPED * args.store
            config = folder / "gateway.toml"
            config.write_text(text)
            program = [str(built / "tower-agent-gateway"), "--listen", "127.0.0.1:0"]
            servers["gateway"] = Server([*program, "--config", str(config)])
            if args.store:
                add_store(servers, text, program, folder)
            for name in servers.keys() - {"upstream", "redis"}:
                if why := check(servers[name], upstream):
                    sys.exit(f"the {name} fails its check: {why}")
            if args.peers:
                add_peers(servers, target, folder)
            names = [name for name in servers if name not in ("upstream", "redis")]
            for mode in args.mode or MODES:
                script = folder / f"{mode}.lua"
                script.write_text(SCRIPT % (BODY % MODES[mode]) + OF_RUNS * args.store)
                for name in names:
                    load(servers[name], script, 1, args.connections)
                if args.strace:
                    for name in names:
                        print(f"{mode}, {name}")
                        traced(servers[name], script, args.seconds, args.connections)
                    continue
                rounds = []
                for number in range(args.pairs):
                    # Each round begins with another server, so that a drift favors none.
                    first = number % len(names)
                    order = names[first:] + names[:first]
                    of = {name: load(servers[name], script, args.seconds, args.connections)
                          for name in order}
                    rounds.append({name: of[name] for name in names})
                report(mode, rounds)
                if not args.store:
                    write(target / "cost/load.json", mode, rounds)
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
