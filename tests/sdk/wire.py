"""A proxy that counts what a client opens: the only witness that an SDK opened no second connection."""

import re
import socket
import threading
import urllib.parse

REQUEST = re.compile(rb"(?s)^(\w+) \S+ HTTP/1\.1\r\n(.*?)\r\n\r\n")


class Wire:
    """Passes bytes on to `url`. `opened` has, for each connection, the method of its first request, or
    `websocket` for an upgrade; a connection that asks for nothing is not there."""

    def __init__(self, url):
        target = urllib.parse.urlsplit(url)
        self.target = (target.hostname, target.port)
        self.opened = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        # A thread that waits in `accept` holds the socket open; this wakes it.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            gateway = socket.create_connection(self.target)
            for one in (client, gateway):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pass, args=(client, gateway, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(gateway, client, False), daemon=True).start()

    def _pass(self, source, sink, is_request):
        head = b""
        try:
            while data := source.recv(65536):
                if is_request and head is not None:
                    head += data
                    if found := REQUEST.match(head):
                        self.opened.append(kind(*found.groups()))
                        head = None
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # Either side is gone, and so is the other.
            for one in (source, sink):
                one.close()


def kind(method, headers):
    return "websocket" if re.search(rb"(?i)^upgrade: *websocket", headers, re.M) else method.decode()
