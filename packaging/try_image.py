"""Starts the program of an image in a root that has what the image has, and asks it for an upstream by name."""

import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

USER = 65534
ANSWER = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "by name"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def answer_names(server: socket.socket, asked: set) -> None:
    """Answers each question for an IPv4 address with that of this machine."""
    while True:
        question, client = server.recvfrom(512)
        name = question[12 : question.index(0, 12) + 1]
        kind = question[12 + len(name) : 14 + len(name)]
        is_ipv4 = kind == b"\0\1"
        asked.add(name)
        head = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_ipv4 else b"\0\0") + b"\0\0\0\0"
        address = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("127.0.0.1")
        server.sendto(head + name + kind + b"\0\1" + (address if is_ipv4 else b""), client)


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main() -> None:
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    asked: set = set()
    threading.Thread(target=answer_names, args=(names, asked), daemon=True).start()
    model = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()

    built = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        for path in ("etc/ssl/certs", "etc/tower-agent", "dev"):
            (root / path).mkdir(parents=True)
        shutil.copy(built / "tower-agent-gateway", root / "tower-agent-gateway")
        shutil.copy(built / "ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
        # What a container's runtime adds.
        (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        (root / "etc/tower-agent/gateway.toml").write_text(
            "[auth]\nkeys_env = 'KEYS'\n"
            f"[[candidates]]\nmodel = 'm'\nbase_url = 'http://model.example:{model.server_port}/v1'\n"
            # Needs the certificates at the start.
            "[[candidates]]\nmodel = 't'\nbase_url = 'https://model.example/v1'\n"
        )
        gateway = start(root)
        try:
            address = gateway.stdout.readline().removeprefix("listening on ").strip()
            assert address.startswith("http://127.0.0.1:"), address
            request = urllib.request.Request(
                f"{address}/v1/chat/completions",
                json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode(),
                {"content-type": "application/json", "authorization": "Bearer sk-of-a-caller"},
            )
            with urllib.request.urlopen(request, timeout=20) as answer:
                said = json.load(answer)["choices"][0]["message"]["content"]
            assert said == "by name" and b"\5model\7example\0" in asked, (said, asked)
            owner = os.stat(f"/proc/{gateway.pid}").st_uid
            assert owner == USER, owner
        finally:
            gateway.terminate()
            status = gateway.wait(20)
        assert status == 0, status
    print("the static program found its upstream by DNS, as user 65534, and ended with 0")


def start(root: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen(
        ["chroot", f"--userspec={USER}:{USER}", root, "/tower-agent-gateway", "--listen", "127.0.0.1:0"],
        env={
            "PATH": os.environ["PATH"],
            "TOWER_AGENT_CONFIG": "/etc/tower-agent/gateway.toml",
            "KEYS": "a:sk-of-a-caller",
        },
        stdout=subprocess.PIPE,
        text=True,
    )


main()
