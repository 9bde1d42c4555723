"""An upstream whose every byte, pause and close is chosen by the case that talks to it.

Cases run side by side, so each puts its key, `[case-N]`, into its prompt; the upstream finds it in
the request's body and plays that case's script.
"""

import re
import select
import socket
import struct
import threading
import time

import dialects

KEY = re.compile(rb"\[case-\d+\]")
# Longer than any case may take: a script that waits this long has failed elsewhere already.
PATIENCE = 45


class Upstream:
    def __init__(self):
        self.scripts = {}
        self.exchanges = {}
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def play(self, key, script):
        """Answers each request that holds `key` with `script(exchange)`."""
        with self.lock:
            self.scripts[key] = script
            self.exchanges[key] = []

    def seen(self, key):
        """The requests of a case so far."""
        with self.lock:
            return list(self.exchanges[key])

    def wait(self, key, limit=PATIENCE):
        """The first request of a case, as soon as it is there."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if exchanges := self.seen(key):
                return exchanges[0]
            time.sleep(0.01)
        raise AssertionError(f"no request reached upstream within {limit} s")

    def _accept(self):
        while True:
            connection, _ = self.listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        exchange = Exchange(connection)
        try:
            if not exchange.read_request():
                return
            key = KEY.search(exchange.body)
            with self.lock:
                script = self.scripts.get(key and key.group().decode())
                if script:
                    self.exchanges[key.group().decode()].append(exchange)
            if script:
                script(exchange)
            else:
                exchange.json(b'{"error":{"message":"no such case"}}', status="400 Bad Request")
        except OSError:
            # The gateway closed while the script was writing.
            exchange.closed.set()
        finally:
            connection.close()


class Exchange:
    """One request and what the script does about it. `closed`: the gateway has let go. `shown`: the case
    says that its caller has all that was sent so far."""

    def __init__(self, connection):
        self.connection = connection
        self.closed = threading.Event()
        self.shown = threading.Event()
        self.head = b""
        self.body = b""
        self.dialect = None

    def read_request(self):
        data = b""
        while b"\r\n\r\n" not in data:
            received = self.connection.recv(65536)
            if not received:
                return False
            data += received
        self.head, _, self.body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?im)^content-length:\s*(\d+)", self.head)
        while not self._whole(length):
            received = self.connection.recv(65536)
            if not received:
                return False
            self.body += received
        self.dialect = dialects.of_path(self.head.split(b" ")[1].decode())
        return True

    def _whole(self, length):
        if length:
            return len(self.body) >= int(length.group(1))
        return self.body.endswith(b"0\r\n\r\n")

    def json(self, body, status="200 OK", length=None, headers=None):
        """A unary answer; `length` promises another size than is sent."""
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}"
            f"content-length: {len(body) if length is None else length}\r\nconnection: close\r\n\r\n"
        )
        self.connection.sendall(head.encode() + body)

    def sse(self, *events, content_type="text/event-stream"):
        """The head of a stream and its first events."""
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
            "transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        self.connection.sendall(head.encode())
        for data in events:
            self.send(data)

    def send(self, data):
        # An empty chunk would be the last one.
        if data:
            self.connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end(self):
        """A clean end of the transport."""
        self.connection.sendall(b"0\r\n\r\n")

    def reset(self):
        """A TCP reset, once what was sent is `shown`: a reset may overtake it."""
        self.shown.wait(PATIENCE)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def silence(self, limit=PATIENCE):
        """Sends nothing until the gateway lets go."""
        readable, _, _ = select.select([self.connection], [], [], limit)
        if readable:
            self._gone()
        return self.closed.is_set()

    def drip(self, data, every):
        """Sends `data` again and again until the gateway lets go."""
        end = time.monotonic() + PATIENCE
        while not self.closed.is_set() and time.monotonic() < end:
            self.send(data)
            self.silence(every)

    def _gone(self):
        try:
            gone = not self.connection.recv(65536)
        except OSError:
            gone = True
        if gone:
            self.closed.set()
