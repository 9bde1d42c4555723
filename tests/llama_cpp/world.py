"""The processes of a check, and a caller of the gateway."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

LOOPBACK = "127.0.0.1"


def free_port():
    with socket.create_server((LOOPBACK, 0)) as listener:
        return listener.getsockname()[1]


def candidate(port, **keys):
    """The table of a candidate on this port."""
    keys = {"model": "local", "base_url": f"http://{LOOPBACK}:{port}/v1", **keys}
    return "".join(["[[candidates]]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())])


class Process:
    """A process with its log in a file; it ends with the block."""

    def __init__(self, command, log, **options):
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, **options)

    def send(self, number):
        self.process.send_signal(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.send(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Llama(Process):
    """A llama.cpp server: `context` tokens for each of its two slots."""

    def __init__(self, world, model="tiny", context=4096, port=None, wait=True, options=()):
        self.port = port or free_port()
        command = [
            world.server, "-m", f"{world.folder}/{model}.gguf", "--host", LOOPBACK, "--port", str(self.port),
            "-c", str(2 * context), "-np", "2", "-t", "2", "--no-webui", *options,
        ]  # fmt: skip
        libraries = {"LD_LIBRARY_PATH": os.path.dirname(world.server)}
        super().__init__(command, f"{world.folder}/llama-{self.port}.log", env={**os.environ, **libraries})
        while wait and self.health() != 200:
            time.sleep(0.05)

    def health(self):
        """The status of `/health`; `None` while the server does not listen."""
        assert self.process.poll() is None, "the server has ended: see its log"
        try:
            return Caller(self.port).ask("GET", "/health").status
        except OSError:
            return None

    def candidate(self, **keys):
        return candidate(self.port, **keys)


class LateClose:
    """A server in front of `llama` that closes a connection 40 ms after llama.cpp did.

    A llama.cpp server that is short of processors closes so late; a request that comes meanwhile is lost.
    """

    def __init__(self, llama):
        self.llama = llama
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def candidate(self):
        return candidate(self.port)

    def accept(self):
        while True:
            near = self.listener.accept()[0]
            far = socket.create_connection((LOOPBACK, self.llama.port))
            threading.Thread(target=self.copy, args=(near, far), daemon=True).start()
            threading.Thread(target=self.copy, args=(far, near, 0.04), daemon=True).start()

    @staticmethod
    def copy(source, sink, delay=0):
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                sink.sendall(part)
        time.sleep(delay)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Gateway(Process):
    """A gateway with a configuration, and a caller of it."""

    def __init__(self, world, *tables):
        config = f"{world.folder}/gateway.toml"
        with open(config, "w") as file:
            file.write("\n".join(tables))
        self.log = f"{world.folder}/gateway.log"
        super().__init__([world.gateway, "--config", config, "--listen", f"{LOOPBACK}:0"], self.log)
        while not (head := self.logged().partition("\n"))[1]:
            assert self.process.poll() is None, head
            time.sleep(0.02)
        self.port = int(head[0].rpartition(":")[2])

    def logged(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def call(self, words="Hello there", run=None, path="chat/completions", then=None, **body):
        """Sends a call, and reads its answer; `then` is called once, after the first bytes of a stream's text."""
        if path == "responses":
            body = {"input": words, "max_output_tokens": 8, **body}
        else:
            body = {"messages": [{"role": "user", "content": words}], "max_tokens": 8, **body}
        body.setdefault("model", "local")
        headers = {"x-run-id": run} if run else {}
        return Caller(self.port).ask("POST", f"/v1/{path}", body, headers, then)

    def spent(self, run):
        return Caller(self.port).ask("GET", f"/runs/{run}").json()["spent"]


class Answer:
    """An answer with all of its body, and how many seconds it took."""

    def __init__(self, response, body, seconds):
        self.status = response.status
        self.headers = response.headers
        self.body = body
        self.seconds = seconds

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The JSON of each event of a stream, and the text of one that is none, such as `[DONE]`."""
        data = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(event) if event.startswith("{") else event for event in data]

    def error(self):
        """The error of the answer, or of a stream's last event."""
        said = self.events()[-1] if self.headers["content-type"] == "text/event-stream" else self.json()
        return said["error"] if isinstance(said, dict) else None

    @property
    def attempt(self):
        return int(self.headers["x-attempt"] or 0)

    def whole(self):
        return self.status == 200 and self.body.rstrip().endswith(b"[DONE]")


class Caller:
    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, headers=(), then=None):
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        began = time.monotonic()
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"content-type": "application/json", **dict(headers)})
        response = connection.getresponse()
        said = b""
        while part := response.read1():
            said += part
            if then and b'"content":"' in said:
                then()
                then = None
        connection.close()
        assert then is None or response.status != 200, "the stream ended before it had content"
        return Answer(response, said, time.monotonic() - began)
