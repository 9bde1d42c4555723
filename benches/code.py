#!/usr/bin/env python3
"""Counts the instructions of a request in the gateway, and the code that it executes.

    python3 benches/code.py                   # builds, then a unary request and a stream
    python3 benches/code.py --most-code 400   # fails if a unary request executes more KB of code
    python3 benches/code.py --pass-through    # the pass-through of `load.py` as well

Needs valgrind. 300 requests run one after the other on four connections under callgrind, behind a hundred that are
not counted. The code is the size of all 64-byte lines, of the program and of its libraries, from which at
least half of the requests executed an instruction: what does not fit into a core's caches is fetched anew for each
request.
"""

import argparse
import collections
import http.client
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # The package includes this folder as it is.
from load import BODY, CONFIG, MODES, ROOT, Server, programs, save

REQUESTS = 300
LINE = 64
HEADERS = {"content-type": "application/json"}


class Counted(Server):
    """A server under callgrind."""

    def __init__(self, command, folder):
        self.profile = folder / "callgrind.out"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-instr=yes",
                    f"--callgrind-out-file={self.profile}"]
        super().__init__([*valgrind, *command])

    def control(self, option):
        command = ["callgrind_control", *option.split(), str(self.process.pid)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def asked(connections, body, times):
    for number in range(times):
        connection = connections[number % len(connections)]
        connection.request("POST", "/v1/chat/completions", body, HEADERS)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {text[:300]}")


def costs(profile):
    """How many instructions each address of each object took."""
    names, found = {}, collections.Counter()
    place, address, is_call = None, 0, False
    for line in profile.read_text().splitlines():
        if line[:1] in "0123456789+-*" and line:
            fields = line.split()
            if fields[0][0] in "+-":
                address += int(fields[0], 0)
            elif fields[0] != "*":
                address = int(fields[0], 0)
            # The line behind `calls=` has what the callee took.
            if not is_call and len(fields) > 2:
                found[place, address] += int(fields[2])
            is_call = False
            continue
        kind, _, value = line.partition("=")
        if kind in ("ob", "cob"):
            number, _, name = value.partition(" ")
            # A name stands behind its number once, and then the number alone.
            if name:
                names[number] = name
            if kind == "ob":
                place = names[number]
        is_call = is_call or kind == "calls"
    return found


def measured(command, folder):
    """Per mode, the instructions of a request and the bytes of its code."""
    figures = {}
    for mode, streams in MODES.items():
        server = Counted(command, folder)
        try:
            body = BODY % streams
            connections = [http.client.HTTPConnection(server.address, timeout=60) for _ in range(4)]
            asked(connections, body, 60)
            server.control("-i on")
            asked(connections, body, 40)
            server.control("-z")
            asked(connections, body, REQUESTS)
            time.sleep(0.3)
            server.control("-d")
        finally:
            server.stop()
        found = costs(pathlib.Path(f"{server.profile}.1"))
        lines = {(place, address // LINE) for (place, address), count in found.items()
                 if count >= REQUESTS / 2}
        figures[mode] = sum(found.values()) / REQUESTS, len(lines) * LINE
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="release")
    parser.add_argument("--most-code", type=float, help="fail above so many KB for a unary request")
    parser.add_argument("--pass-through", action="store_true")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    args = parser.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = programs(target, args.profile, args.no_build)
    upstream = Server([str(built / "examples/load"), "upstream"])
    try:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            config = folder / "gateway.toml"
            config.write_text(CONFIG.format(upstream=upstream.address) + "[server]\nthreads = 1\n")
            programs_of = {"gateway": [str(built / "tower-agent-gateway"), "--listen", "127.0.0.1:0",
                                       "--config", str(config)]}
            if args.pass_through:
                programs_of["per_core"] = [str(built / "examples/load_per_core"), upstream.address]
            most, found = None, {}
            for name, command in programs_of.items():
                for mode, (instructions, code) in measured(command, folder).items():
                    print(f"{name:8} {mode:6} {instructions:9,.0f} instructions, "
                          f"{code / 1024:4.0f} KB of code", flush=True)
                    of_mode = {"instructions": instructions, "code_kb": code / 1024}
                    found.setdefault(name, {})[mode] = of_mode
                    if (name, mode) == ("gateway", "unary"):
                        most = code / 1024
    finally:
        upstream.stop()
    save(target / "cost/code.json", found)
    if args.most_code and most > args.most_code:
        sys.exit(f"a unary request executes {most:.0f} KB of code: {args.most_code:.0f} is the bound")


if __name__ == "__main__":
    main()
