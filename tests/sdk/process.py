"""A server that a test run starts: a gateway, the server of the reasons, a mock."""

import json
import os
import re
import subprocess
import threading
import time

LISTENING = re.compile(r"listening on (http://\S+)")
UPSTREAM = re.compile(r"upstream counts at (http://\S+)/stats")


class Process:
    """It listens at `url`; `upstream` is what an embedded gateway brought along."""

    def __init__(self, arguments, log, embedded=False, environment=None):
        self.log = log
        self.url = None
        self.upstream = None
        self.embedded = embedded
        self.ready = threading.Event()
        self.lines = []
        self.process = subprocess.Popen(
            list(map(str, arguments)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env={**os.environ, **(environment or {})},
        )
        # Reads to the end: a full pipe would stop the gateway.
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.ready.wait(60) or not self.url:
            self.process.kill()
            raise SystemExit(f"{arguments[0]} did not say where it listens; its stderr:\n{log.read_text()}")

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = LISTENING.search(line)
            if found and not self.url:
                self.url = found.group(1)
            brought = UPSTREAM.search(line)
            if brought and not self.upstream:
                self.upstream = brought.group(1)
            if self.url and (self.upstream or not self.embedded):
                self.ready.set()
        self.ready.set()

    def stop(self, limit=30):
        """Sends SIGTERM; the exit status, or None if it had to be killed."""
        self.process.terminate()
        end = time.monotonic() + limit
        while self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if self.process.poll() is None:
            self.process.kill()
            return None
        return self.process.returncode

    def records(self):
        """Stops it; what it has written to stdout as lines of JSON."""
        self.stop()
        self.reader.join(5)
        return [json.loads(line) for line in self.lines if line.startswith("{")]
