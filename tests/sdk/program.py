"""A process that plays calls with official SDKs."""

import itertools
import json
import queue
import subprocess
import threading

# Longer than any case is silent for, than the SDKs' own patience, which is told to the program, and than a
# busy machine takes to start it.
PATIENCE = 120


class Program:
    """A running node/main.mjs, which plays many calls at once, or python_main.py, which plays one by one."""

    def __init__(self, arguments, log):
        self.ids = itertools.count(1)
        self.calls = {}
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            list(map(str, arguments)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True
        )
        threading.Thread(target=self._read, daemon=True).start()

    def play(self, command):
        """Yields a message for whatever the SDK shows; leaving the generator leaves the call."""
        number = next(self.ids)
        messages = queue.SimpleQueue()
        with self.lock:
            self.calls[number] = messages
        self._write({"id": number, **command})
        try:
            while "over" not in (message := self._next(messages)):
                yield message
            number = None
        finally:
            if number is not None:
                self._write({"leave": number})

    def _next(self, messages):
        try:
            return messages.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the SDK has shown nothing for {PATIENCE} s") from None

    def _write(self, message):
        with self.lock:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self.lock:
                messages = self.calls[message["id"]]
            messages.put(message)
        with self.lock:
            calls = list(self.calls.values())
        for messages in calls:
            messages.put({"broken": "the program that plays calls has ended"})

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
