"""Gateways, their upstreams and a Prometheus that scrapes them, each a process of this test."""

import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

TOKEN = "the token of this test"
# What an upload holds, and what another one announces, which do not fit into `server.max_buffered` together.
HELD, ANNOUNCED = 3 << 20, 30 << 20


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def accepts(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def wait_for(what, check, seconds=15):
    """What `check` answers once that is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit(f"waited {seconds} s in vain: {what}")


class RefusesKeys(http.server.BaseHTTPRequestHandler):
    """An upstream that does not accept the key."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        error = {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
        body = json.dumps({"error": error}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class World:
    def __init__(self, gateway, folder):
        self.gateway, self.folder = gateway, Path(folder)
        self.processes = []
        self.has_store = shutil.which("redis-server") is not None

    def __enter__(self):
        # `finally` also for SIGTERM, so that nothing outlives this process.
        signal.signal(signal.SIGTERM, lambda *_: exit(1))
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def spawn(self, *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=None):
        environment = os.environ | (env or {})
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment)
        self.processes.append(process)
        return process

    def start_gateway(self, name, *arguments, stderr, env=None):
        """The address of a gateway, and the first lines that it prints."""
        printed = self.folder / f"{name}.out"
        with printed.open("w") as stdout:
            command = (self.gateway, "--listen", "127.0.0.1:0", *arguments)
            process = self.spawn(*command, stdout=stdout, stderr=stderr, env=env)

        def listening():
            if process.poll() is not None:
                raise SystemExit(f"the gateway {name} does not start")
            return re.search(r"^listening on http://(\S+)\n", printed.read_text(), re.MULTILINE)

        return wait_for(f"the gateway {name} listens", listening).group(1), printed

    def start(self):
        keys = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RefusesKeys)
        threading.Thread(target=keys.serve_forever, daemon=True).start()

        # Its log cannot be written.
        with open("/dev/full", "w") as full:
            self.plain, printed = self.start_gateway("plain", stderr=full)
        counts = re.compile(r"^upstream counts at (\S+)/stats\n", re.MULTILINE)
        upstream = wait_for("the upstream listens", lambda: counts.search(printed.read_text())).group(1)

        simulated = ("healthy", "failing", "rate-limited", "refusing", "cut", "stall-stream", "stall-head")
        candidates = {f"sim-{name}": upstream for name in simulated}
        candidates["no-key"] = f"http://127.0.0.1:{keys.server_port}"
        config = f"""
            [run]
            max_turns = 2
            [attempt]
            step_timeout = "1s"
            [retry]
            base_delay = "0s"
            [fallback]
            cooldown = true
            [server]
            max_buffered = "32 MiB"
            [control]
            token_env = "TOKEN"
        """
        for model, url in candidates.items():
            config += f'[[candidates]]\nmodel = "{model}"\nbase_url = "{url}/v1"\n'
        env = {"TOKEN": TOKEN}
        if self.has_store:
            store = free_port()
            self.spawn("redis-server", "--port", str(store), "--save", "", "--dir", str(self.folder))
            config += '[replicas]\nurl_env = "STORE_URL"\nsecret_env = "STORE_SECRET"\n'
            env |= {"STORE_URL": f"redis://127.0.0.1:{store}", "STORE_SECRET": "a secret of this test"}
            wait_for("the store listens", lambda: accepts(store))
        (self.folder / "gateway.toml").write_text(config)
        file = str(self.folder / "gateway.toml")
        with (self.folder / "gateway.log").open("w") as log:
            self.behind, _ = self.start_gateway("behind", "--config", file, stderr=log, env=env)

        self.instances = [self.plain, self.behind]
        self.prometheus = f"127.0.0.1:{free_port()}"
        (self.folder / "token").write_text(TOKEN)
        (self.folder / "prometheus.yml").write_text(self.scrape_config())
        with (self.folder / "prometheus.log").open("w") as log:
            self.spawn(
                "prometheus",
                f"--config.file={self.folder}/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address={self.prometheus}",
                stderr=log,
            )
        wait_for("Prometheus is ready", self.is_ready)
        self.wait_for_scrape()

    def is_ready(self):
        # It answers 503 until it has read what it has stored.
        try:
            with urllib.request.urlopen(f"http://{self.prometheus}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def scrape_config(self):
        """The configuration of the README, for these gateways."""
        text = re.search(r"```yaml\n(.*?)```", Path("docs/grafana/README.md").read_text(), re.DOTALL).group(1)
        for written, here in (
            ("15s", "1s"),
            ("/etc/prometheus/tower-agent/alerts.yaml", str(Path("docs/grafana/alerts.yaml").resolve())),
            ("/etc/prometheus/tower-agent/token", f"{self.folder}/token"),
            ('["gateway-1:8787", "gateway-2:8787"]', json.dumps(self.instances)),
        ):
            if written not in text:
                raise SystemExit(f"the configuration in docs/grafana/README.md has no {written}")
            text = text.replace(written, here)
        return text

    def ask_prometheus(self, route, **parameters):
        """The data of an answer of Prometheus; of an error, its text as a `ValueError`."""
        url = f"http://{self.prometheus}/api/v1/{route}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from error

    def query(self, expr):
        return self.ask_prometheus("query", query=expr)["result"]

    def wait_for_scrape(self):
        """Waits until Prometheus has seen each gateway as it is now."""
        now = time.time()

        def seen():
            times = self.query("timestamp(agent_runs_open)")
            return {it["metric"]["instance"] for it in times if float(it["value"][1]) > now} == set(self.instances)

        wait_for("a scrape of each gateway", seen)

    def ask_gateway(self, method, path):
        headers = {"authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(f"http://{self.behind}{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def call(self, model, path="/v1/chat/completions", stream=False, leaves_after=10, run=None, address=None):
        """Reads an answer to its end, or leaves."""
        body = {"model": model, "stream": stream, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"content-type": "application/json"} | ({"x-run-id": run} if run else {})
        connection = http.client.HTTPConnection(address or self.behind, timeout=leaves_after)
        try:
            connection.request("POST", path, json.dumps(body), headers)
            connection.getresponse().read()
        except (TimeoutError, http.client.IncompleteRead):
            pass
        finally:
            connection.close()

    def refuse_an_upload(self):
        """Has a caller announce more than what is left while it holds an upload."""
        lines = ("POST /v1/chat/completions HTTP/1.1", f"host: {self.behind}", "content-type: application/json")
        head = "\r\n".join((*lines, "content-length: {}", "", ""))
        address = tuple(self.behind.split(":"))
        with socket.create_connection(address, 10) as holder, socket.create_connection(address, 10) as refused:
            holder.sendall(head.format(HELD + 1).encode() + b" " * HELD)
            wait_for("the upload is held", lambda: self.held_bytes() >= HELD)
            refused.sendall(head.format(ANNOUNCED).encode())
            answer = refused.recv(1000)
            if b"503" not in answer:
                raise SystemExit(f"an upload that does not fit is answered with {answer}")

    def held_bytes(self):
        request = urllib.request.Request(f"http://{self.behind}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(re.search(rb"^agent_upload_buffer_bytes (\d+)", answer.read(), re.MULTILINE).group(1))

    def talk(self, number):
        """Has the gateways serve, fail, fall back, rest, time out, refuse, and lose callers."""
        self.call("sim-healthy", address=self.plain, stream=True)
        for stream in (True, False):
            self.call("sim-healthy", stream=stream)
        self.call("sim-healthy", path="/v1/messages", stream=True)
        for _ in range(3):
            self.call("sim-healthy", run=f"capped-{number}")
        for model, stream, leaves_after in (
            ("sim-failing", False, 10),
            ("sim-rate-limited", False, 10),
            ("no-key", False, 10),
            ("sim-refusing", False, 10),
            ("sim-cut", True, 10),
            ("sim-stall-stream", True, 10),
            ("sim-stall-stream", True, 0.3),
            ("sim-stall-head", False, 0.3),
        ):
            self.call(model, stream=stream, leaves_after=leaves_after)
            for cooldown in self.ask_gateway("GET", "/cooldowns")["cooldowns"]:
                self.ask_gateway("POST", f"/cooldowns/{cooldown['candidate']}/clear")
        self.refuse_an_upload()
