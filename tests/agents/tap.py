"""A tap between an agent and the gateway: it hands all bytes on, and keeps those of the agent."""

import json
import socket
import threading


class Tap:
    """Listens for an agent in front of the gateway at `url`."""

    def __init__(self, url):
        host, port = url.removeprefix("http://").split(":")
        self.gateway = (host, int(port))
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                agent, _ = self.listener.accept()
            except OSError:
                return
            try:
                gateway = socket.create_connection(self.gateway)
            except OSError:
                agent.close()
                continue
            for end in (agent, gateway):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection()
            self.connections.append(connection)
            for source, sink, kept in ((agent, gateway, connection.sent), (gateway, agent, connection.got)):
                threading.Thread(target=relay, args=(source, sink, kept), daemon=True).start()

    def posts(self):
        """How many requests came as a POST of their own."""
        return sum(connection.sent.count(b"POST /v1/responses HTTP/1.1\r\n") for connection in self.connections)

    def upgrades(self):
        """The connections that asked for a WebSocket, in order."""
        asks = b"GET /v1/responses HTTP/1.1\r\n"
        return [connection for connection in self.connections if connection.sent.startswith(asks)]

    def asked(self):
        """How many answers of a model the agent asked for, over either transport."""
        events = [event for connection in self.upgrades() for event in connection.events()]
        return self.posts() + sum(event.get("generate") is not False for event in events)

    def got(self):
        """What the agent got, over all connections."""
        return b"".join(bytes(connection.got) for connection in self.connections)

    def close(self):
        self.listener.close()


class Connection:
    """What an agent sent over a connection, and what it got."""

    def __init__(self):
        self.sent, self.got = bytearray(), bytearray()

    def status(self):
        """The status of the first answer."""
        return int(self.got.split(maxsplit=2)[1])

    def headers(self):
        """The headers of the first request."""
        head = bytes(self.sent).split(b"\r\n\r\n")[0].decode()
        return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])

    def events(self):
        """The events behind an upgrade; the gateway takes no compression, so each is a text as it is."""
        frames = bytes(self.sent).split(b"\r\n\r\n", 1)[1]
        events = []
        while len(frames) >= 6:
            size, at = frames[1] & 127, 2
            if size > 125:
                at += 2 if size == 126 else 8
                size = int.from_bytes(frames[2:at])
            mask, data = frames[at : at + 4], frames[at + 4 : at + 4 + size]
            if len(data) < size:
                break
            if frames[0] == 0x81:
                key = int.from_bytes((mask * (size // 4 + 1))[:size])
                events.append(json.loads((int.from_bytes(data) ^ key).to_bytes(size)))
            frames = frames[at + 4 + size :]
        return events


def relay(source, sink, kept):
    """Hands on what comes, and then that nothing more comes."""
    try:
        while data := source.recv(65536):
            kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone: so is the other.
        for end in (source, sink):
            end.close()
