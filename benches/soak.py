#!/usr/bin/env python3
"""Keeps thousands of streams open for minutes, of which clients leave at random, and looks at what stays.

    python3 benches/soak.py                              # builds, then 5,000 streams for 180 s
    python3 benches/soak.py --streams 500 --seconds 20 --profile dev

A stream gets an event every 1 to 4 seconds. Half of the clients leave after a random time, a few of them with
a reset; the upstream ends the others, or cuts them. Whoever has left is replaced at once. Fails if

- after the end of all a stream is still open at the upstream 2 s later,
- the gateway keeps more descriptors than before,
- the resident memory a minute after the end is above 1.3 times that of the first full set of streams,
- `GET /metrics` still counts a call in flight, or a stream that ran to its end was not whole.
"""

import argparse
import asyncio
import collections
import http.client
import os
import pathlib
import random
import re
import resource
import socket
import struct
import sys
import tempfile

sys.dont_write_bytecode = True  # The package includes this folder as it is.
from load import CONFIG, ROOT, Server, programs
from streams import EVENT, HEAD, REQUEST, resident

LIFE = 20.0  # The mean seconds of a stream.
LAST = b"data: [DONE]\n\n"
AT_A_TIME = 64


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """Sends events until it has sent enough, cuts the stream, or is left."""

    open = 0
    connections = 0

    def connection_made(self, transport):
        Upstream.connections += 1
        self.transport, self.read, self.next = transport, b"", None

    def data_received(self, data):
        self.read += data
        if b"\r\n\r\n" in self.read and self.read.endswith(b"}"):
            self.read = b""
            Upstream.open += 1
            self.until = asyncio.get_running_loop().time() + random.expovariate(1 / LIFE)
            self.transport.write(HEAD)
            self.send()

    def send(self):
        loop = asyncio.get_running_loop()
        if loop.time() < self.until:
            self.transport.write(chunk(EVENT))
            self.next = loop.call_later(random.uniform(1, 4), self.send)
            return
        self.stop()
        if random.random() < 0.2:
            self.transport.abort()
        else:
            self.transport.write(chunk(LAST) + b"0\r\n\r\n")

    def stop(self):
        if self.next is not None:
            Upstream.open -= 1
            self.next.cancel()
            self.next = None

    def connection_lost(self, _):
        Upstream.connections -= 1
        self.stop()


class Client(asyncio.Protocol):
    """Reads a stream to its end, or leaves it."""

    def __init__(self, ends):
        loop = asyncio.get_running_loop()
        self.ends, self.read, self.next = ends, b"", None
        self.began, self.gone = loop.create_future(), loop.create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(REQUEST)

    def data_received(self, data):
        self.read = self.read[-64:] + data
        if not self.began.done():
            if not data.startswith(b"HTTP/1.1 200"):
                return self.over(f"refused: {data[:400]}")
            self.began.set_result(None)
            if random.random() < 0.5:
                after = random.expovariate(1 / LIFE)
                self.next = asyncio.get_running_loop().call_later(after, self.leave)
        if self.read.endswith(b"0\r\n\r\n"):
            self.over("whole" if LAST.strip() in self.read else "said to be cut")

    def leave(self):
        kind = "left"
        if random.random() < 0.3:
            # A reset: what the gateway still sends has no one to go to.
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            kind = "left with a reset"
        self.over(kind)

    def over(self, kind):
        if not self.began.done():
            self.began.set_result(None)
        if not self.gone.done():
            self.ends[kind] += 1
            self.gone.set_result(None)
            self.transport.abort()

    def connection_lost(self, _):
        if self.next is not None:
            self.next.cancel()
        self.over("closed")


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def in_flight(server):
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^(agent_\w+_open\S*) (\S+)$", text, re.M)}


async def soaked(server, streams, seconds):
    host, _, port = server.address.rpartition(":")
    loop, free, ends = asyncio.get_running_loop(), asyncio.Semaphore(AT_A_TIME), collections.Counter()
    clients = set()
    until = None

    async def one():
        async with free:
            _, client = await loop.create_connection(lambda: Client(ends), host, int(port))
            clients.add(client)
            await asyncio.wait_for(client.began, 60)
        await client.gone
        clients.discard(client)

    async def again_and_again():
        while until is None or loop.time() < until:
            await one()

    # The threads have started once the gateway answers.
    await asyncio.to_thread(in_flight, server)
    before, idle = descriptors(server), resident(server)
    print(f"before: {idle / 1e6:.0f} MB, {before} descriptors", flush=True)
    tasks = [asyncio.create_task(again_and_again()) for _ in range(streams)]
    while sum(client.began.done() for client in clients) < streams * 0.98:
        await asyncio.sleep(0.2)
    full, began = resident(server), loop.time()
    until = began + seconds
    print(f"full: {full / 1e6:.0f} MB, {Upstream.open} open at the upstream", flush=True)
    while loop.time() < until:
        await asyncio.sleep(min(30, max(0.1, until - loop.time())))
        print(f"{loop.time() - began:4.0f} s: {resident(server) / 1e6:.0f} MB, {descriptors(server)} descriptors, "
              f"{Upstream.open} open at the upstream, ends {dict(ends)}", flush=True)
    for client in list(clients):
        client.over("left at the end")
    await asyncio.gather(*tasks)
    await asyncio.sleep(2)
    faults = []
    if Upstream.open:
        faults.append(f"{Upstream.open} streams are open at the upstream, 2 s after the end")
    await asyncio.sleep(58)
    kept, held = resident(server), descriptors(server)
    open_still = await asyncio.to_thread(in_flight, server)
    print(f"a minute later: {kept / 1e6:.0f} MB, {held} descriptors, "
          f"{Upstream.connections} to the upstream; {open_still}")
    if kept > 1.3 * full:
        faults.append(f"{kept / 1e6:.0f} MB are kept, and the first {streams} streams took {full / 1e6:.0f}")
    # A connection to the upstream is kept for the next request.
    if held - Upstream.connections > before:
        faults.append(f"{held} descriptors are open, {Upstream.connections} to the upstream, and {before} were")
    if any(open_still.values()):
        faults.append(f"open: {open_still}")
    if set(ends) - {"whole", "said to be cut", "left", "left with a reset", "left at the end"}:
        faults.append(f"ends: {dict(ends)}")
    return faults


async def run(built, streams, seconds):
    listener = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, backlog=4096)
    upstream = "127.0.0.1:%d" % listener.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "gateway.toml")
        # Every tenth stream is cut, and the only candidate must not rest for it.
        config.write_text(CONFIG.format(upstream=upstream) + "[fallback]\ncooldown = false\n")
        server = Server([str(built / "tower-agent-gateway"), "--listen", "127.0.0.1:0", "--config", str(config)])
        try:
            return await soaked(server, streams, seconds)
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", default="release")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    random.seed(args.seed)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    faults = asyncio.run(run(programs(target, args.profile, args.no_build), args.streams, args.seconds))
    for fault in faults:
        print(f"failed: {fault}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
