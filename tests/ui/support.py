"""Gateways, their callers, a proxy that can be cut, and a browser that notes every error."""

import http.client
import json
import os
import re
import select
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

# A loaded machine may be slow; what is measured is printed.
PATIENCE = 15


class Gateway:
    """A gateway as a process, on a free port."""

    def __init__(self, binary, *args, config=None, env=None):
        self.file = None
        if config is not None:
            self.file = tempfile.NamedTemporaryFile("w", suffix=".toml")
            self.file.write(config)
            self.file.flush()
            args = (*args, "--config", self.file.name)
        self.process = subprocess.Popen(
            [binary, "--listen", "127.0.0.1:0", *args],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})},
        )
        self.lines = []
        self.address = self._line_after("listening on http://")
        self.port = int(self.address.rsplit(":", 1)[1])
        # Records of ended runs follow: an unread pipe would fill.
        threading.Thread(target=self._drain, daemon=True).start()

    def _line_after(self, prefix):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(prefix):
                return line[len(prefix):].strip()
        raise AssertionError(f"the gateway has not said {prefix!r}: {self.lines}")

    def _drain(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def upstream(self):
        """The simulated upstream of one without a configuration."""
        while True:
            for line in list(self.lines):
                if found := re.match(r"upstream counts at http://(\S+)/stats", line):
                    return found.group(1)
            time.sleep(0.02)

    def ask(self, method, path, body=None, token=None, timeout=60):
        """The status and the JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text.decode()

    def stop(self):
        self.process.kill()
        self.process.wait()


def chat(model, stream=True):
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}


class Call:
    """A caller on a socket of its own, which reads its answer to the end; without `run` it names none."""

    def __init__(self, port, key, run, model, session=None, stream=True):
        self.status = None
        self.text = ""
        self.ended = None
        self.connection = None
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        if run:
            headers["x-run-id"] = run
        if session:
            headers["x-session-id"] = session
        self.thread = threading.Thread(target=self._read, args=(port, headers, chat(model, stream)), daemon=True)
        self.thread.start()

    def _read(self, port, headers, body):
        try:
            connection = self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            self.status = answer.status
            self.text = answer.read().decode()
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            self.text = f"broken: {error}"
        self.ended = time.monotonic()

    def hang_up(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def wait(self, limit=PATIENCE):
        self.thread.join(limit)
        assert self.ended is not None, f"the call has not ended within {limit} s"
        return self


def open_runs(port, key, names, model="sim-healthy", session=None):
    """Opens a run for each name: its call is served, and the run stays open."""
    names = list(names)

    def some(part):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for name in part:
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}", "x-run-id": name}
            if session:
                headers["x-session-id"] = session
            connection.request("POST", "/v1/chat/completions", json.dumps(chat(model, False)), headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (name, answer.status)
        connection.close()

    parts = [names[at::16] for at in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(some, parts))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


class Proxy:
    """Passes connections on to a port, and cuts them all when it is told to."""

    def __init__(self, port):
        self.to = port
        self.is_open = True
        self.pairs = []
        # A connection that is being made while `cut` runs must not survive it.
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self.listener.accept()
            with self.lock:
                if not self.is_open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.to))
                self.pairs.append((client, server))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    @staticmethod
    def _pass(client, server):
        other = {client: server, server: client}
        try:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    other[ready].sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            client.close()
            server.close()

    def cut(self):
        """Closes all connections, and refuses new ones until `mend`."""
        with self.lock:
            self.is_open = False
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def mend(self):
        self.is_open = True


WATCH = """
document.addEventListener("securitypolicyviolation", (event) => {
    window.noteViolation(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""


@contextmanager
def watched(browser, allowed=(), **options):
    """A page of a fresh context; fails on each error of the page that `allowed` does not name."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    problems = []
    page.on("console", lambda it: it.type in ("error", "warning") and problems.append(f"{it.type}: {it.text}"))
    page.on("pageerror", lambda it: problems.append(f"uncaught: {it}"))
    page.expose_function("noteViolation", lambda it: problems.append(f"policy: {it}"))
    page.add_init_script(WATCH)
    yield page
    context.close()
    left = [it for it in problems if not any(re.search(part, it) for part in allowed)]
    assert not left, "\n".join(left)


def eventually(look, what, limit=PATIENCE):
    """Waits until `look` answers something; returns it, and the seconds that it took."""
    began = time.monotonic()
    while True:
        if found := look():
            return found, time.monotonic() - began
        assert time.monotonic() - began < limit, f"not within {limit} s: {what}"
        time.sleep(0.03)
