#!/usr/bin/env python3
"""Opens streams on the gateway and on two bare pass-throughs, and prints what each keeps in memory.

    python3 benches/streams.py                        # builds, then 1,000 streams on each server
    python3 benches/streams.py --streams 5000
    python3 benches/streams.py --streams 5000 --most 1.3    # fails above 1.3 times the pass-through

A stream has had its head and one event, and then nothing comes: a model that thinks. A figure is the
resident memory above that of the idle server, for each stream. The ratio is of `passthrough`, a plain
axum server on the system's allocator; `per_core` has the gateway's allocator and threads. After the last client has left the
script waits three seconds and prints what stays.
"""

import argparse
import asyncio
import os
import pathlib
import re
import resource
import sys
import tempfile

sys.dont_write_bytecode = True
from load import BODY, CONFIG, ROOT, Server, programs, save

EVENT = (b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
         b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ASK = (BODY % "true").encode()
REQUEST = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
           b"content-length: %d\r\n\r\n%s" % (len(ASK), ASK))
AT_A_TIME = 128


class Thinking(asyncio.Protocol):
    """An upstream that sends one event of each stream, and no more."""

    def connection_made(self, transport):
        self.transport, self.read = transport, b""

    def data_received(self, data):
        self.read += data
        if b"\r\n\r\n" in self.read and self.read.endswith(b"}"):
            self.read = b""
            self.transport.write(HEAD + b"%x\r\n%s\r\n" % (len(EVENT), EVENT))


class Stream(asyncio.Protocol):
    """A client that waits for the first event."""

    def __init__(self):
        self.read, self.came = b"", asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(REQUEST)

    def data_received(self, data):
        self.read += data
        if not self.came.done() and b" token" in self.read:
            self.came.set_result(None)

    def connection_lost(self, _):
        if not self.came.done():
            self.came.set_exception(ConnectionError(f"a stream ended: {self.read[:200]}"))


def resident(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


async def opened(address, streams):
    host, _, port = address.rpartition(":")
    loop, free = asyncio.get_running_loop(), asyncio.Semaphore(AT_A_TIME)

    async def one():
        async with free:
            transport, stream = await loop.create_connection(Stream, host, int(port))
            await asyncio.wait_for(stream.came, 60)
            return transport

    return await asyncio.gather(*[one() for _ in range(streams)])


async def measured(server, streams):
    # The first streams pay for what all share.
    for transport in await opened(server.address, 16):
        transport.abort()
    await asyncio.sleep(1)
    before = resident(server)
    transports = await opened(server.address, streams)
    await asyncio.sleep(1.5)
    held = resident(server) - before
    for transport in transports:
        transport.abort()
    await asyncio.sleep(3)
    return {"bytes": held / streams, "stays": max(0, resident(server) - before) / held}


async def compared(built, streams):
    listener = await asyncio.get_running_loop().create_server(Thinking, "127.0.0.1", 0, backlog=4096)
    upstream = "127.0.0.1:%d" % listener.sockets[0].getsockname()[1]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "gateway.toml")
        config.write_text(CONFIG.format(upstream=upstream))
        servers = {
            "passthrough": [str(built / "examples/load"), "passthrough", upstream],
            "per_core": [str(built / "examples/load_per_core"), upstream],
            "gateway": [str(built / "tower-agent-gateway"), "--listen", "127.0.0.1:0",
                        "--config", str(config)],
        }
        for name, command in servers.items():
            server = Server(command)
            try:
                figures[name] = await measured(server, streams)
            finally:
                server.stop()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--profile", default="release")
    parser.add_argument("--most", type=float, help="fail above this many times the pass-through's bytes")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = programs(target, args.profile, args.no_build)
    figures = asyncio.run(compared(built, args.streams))
    for name, figure in figures.items():
        print(f"{name:12} {figure['bytes'] / 1000:6.1f} KB a stream, of {args.streams}; "
              f"{figure['stays']:.0%} stay after the end of all")
    save(target / "cost/streams.json", figures)
    ratio = figures["gateway"]["bytes"] / figures["passthrough"]["bytes"]
    alike = figures["gateway"]["bytes"] / figures["per_core"]["bytes"]
    print(f"{'ratio':12} {ratio:6.2f}, of per_core {alike:.2f}")
    if args.most and ratio > args.most:
        sys.exit(f"the gateway keeps {ratio:.2f} times the pass-through's bytes: {args.most} is the bound")


if __name__ == "__main__":
    main()
