"""Starts a gateway with a receiver, and verifies each webhook by the library `standardwebhooks`."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"
OTHER = "whsec_" + "A" * 32
# What the model says in place of an answer, and what it is asked.
ANSWER, PROMPT = "an answer that nobody else may read", "a prompt that nobody else may read"
CHAT = {"choices": [{"index": 0, "message": {"content": ANSWER}, "finish_reason": "stop"}]}
# Each of these comes once, but for the end that is refused at first.
WANTED = ["gateway.frozen", "run.ended", "run.ended", "run.near_cap", "run.paused"]


class Server(BaseHTTPRequestHandler):
    """The model and the receiver of webhooks."""

    heard: queue.Queue = queue.Queue()
    ids: set = set()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/hook?key=a%2Fb":
            return self.answer(200, json.dumps(CHAT).encode())
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.heard.put((headers, body))
        # The first try of each end fails, so that a second one has to be as good.
        is_new = headers["webhook-id"] not in self.ids
        self.ids.add(headers["webhook-id"])
        fails = is_new and json.loads(body)["type"] == "run.ended"
        return self.answer(503 if fails else 204)

    def answer(self, status, body=b""):
        self.send_response(status)
        if status != 204:
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def send(url, method="POST", body=None, **headers):
    """The status of the answer to a request."""
    data = json.dumps(body).encode() if body is not None else b""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"content-type": "application/json"} | headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def operate(address):
    """Causes an event of each kind of WANTED."""
    ask = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    turn = lambda: send(f"{address}/v1/chat/completions", body=ask, x_run_id="r")
    assert [turn() for _ in range(3)] == [200, 200, 503]
    assert send(f"{address}/runs/r/abort") == 200
    assert send(f"{address}/v1/chat/completions", body=ask) == 200
    assert send(f"{address}/freeze", method="PUT") == 200


def is_verified(webhook, body, headers):
    try:
        webhook.verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


def check(headers, body):
    """Verifies one message, and that nothing else would do; returns its type."""
    message = Webhook(SECRET).verify(body, headers)
    assert message == json.loads(body), message
    assert headers["content-type"] == "application/json", headers
    assert PROMPT not in body.decode() and ANSWER not in body.decode(), body
    later = {"webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}
    for what, refused in {
        "another secret": is_verified(Webhook(OTHER), body, headers),
        "another body": is_verified(Webhook(SECRET), body + b" ", headers),
        "another id": is_verified(Webhook(SECRET), body, headers | {"webhook-id": "msg_0"}),
        "another time": is_verified(Webhook(SECRET), body, headers | later),
    }.items():
        assert not refused, f"{what} verifies"
    return message["type"]


def main(program):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    config = f"""
        [run]
        max_turns = 2
        at_cap = "pause"
        pause_wait = 0
        [[webhooks]]
        url = "{base}/hook?key=a%2Fb"
        secret_env = "HOOK"
        [[candidates]]
        model = "m"
        base_url = "{base}/v1"
    """
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        gateway = subprocess.Popen(
            [program, "--config", file.name, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"HOOK": SECRET},
        )
        try:
            line = gateway.stdout.readline().strip()
            address = line.removeprefix("listening on ")
            assert address != line, line
            operate(address)
            # Two ends that are tried twice.
            posts = [Server.heard.get(timeout=30) for _ in range(len(WANTED) + 2)]
            time.sleep(0.5)
            assert Server.heard.empty(), "there is a message too many"
        finally:
            gateway.terminate()
            log = gateway.communicate(timeout=30)[1]
    assert SECRET not in log and "a%2Fb" not in log, log
    taken = {headers["webhook-id"]: check(headers, body) for headers, body in posts}
    assert sorted(taken.values()) == WANTED, taken
    print(f"standardwebhooks verifies {len(posts)} posts of {len(taken)} messages: {', '.join(sorted(set(WANTED)))}")


if __name__ == "__main__":
    main(sys.argv[1])
