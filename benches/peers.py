"""The gateways that `load.py --peers` measures beside ours, each in a folder of its version.

Each runs in its cheapest documented configuration: no retries, no health checks, no log but
warnings, no history; and with as many threads as it takes by itself. Ours keeps what the
`recommended` preset switches on.
"""

import socket
import subprocess
import sys


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Smg:
    """smg forwards to an upstream whose engine it knows, or asks for."""

    name, version = "smg", "1.13.0"
    headers, env = {}, {}

    def install(self, folder):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet",
                        "--disable-pip-version-check", f"smg=={self.version}"], check=True)

    def command(self, folder, upstream, port, _config):
        # Without retries it forwards the body as it comes, and need not parse it.
        return [str(folder / "bin/smg"), "launch", "--worker-urls", f"http://{upstream}",
                "--host", "127.0.0.1", "--port", str(port), "--policy", "passthrough",
                "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
                "--worker-startup-check-interval", "1", "--log-level", "warn",
                "--max-concurrent-requests", "0", "--history-backend", "none",
                "--disable-retries", "--disable-circuit-breaker", "--disable-health-check",
                "--disable-load-monitoring", "--disable-worker-overload-protection",
                "--disable-tokenizer-autoload"]


class LiterLlm:
    """liter-llm forwards to a provider of its own list, here at the upstream's address."""

    name, version = "liter-llm", "2.4.4"
    # It rejects a request without a key and, unless told, an upstream on a private address.
    headers, env = {"authorization": "Bearer sk-load"}, {"RUST_LOG": "warn"}
    CONFIG = """[general]
master_key = "sk-load"
max_retries = 0
[security]
outbound_policy = "off"
[[models]]
name = "m"
provider_model = "openai/m"
api_key = "sk-upstream"
base_url = "http://{upstream}/v1"
"""

    def install(self, folder):
        subprocess.run(["cargo", "install", "liter-llm-cli", "--version", self.version,
                        "--locked", "--root", str(folder)], check=True)

    def command(self, folder, upstream, port, config):
        config.write_text(self.CONFIG.format(upstream=upstream))
        return [str(folder / "bin/liter-llm"), "api", "--config", str(config),
                "--host", "127.0.0.1", "--port", str(port)]


PEERS = [Smg(), LiterLlm()]


def installed(peer, root):
    """The folder of `peer` below `root`; installs it where it is missing."""
    folder = root / f"{peer.name}-{peer.version}"
    if not (folder / "bin" / peer.name).exists():
        print(f"installing {peer.name} {peer.version} into {folder}", flush=True)
        peer.install(folder)
    return folder
