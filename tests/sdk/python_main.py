"""Plays calls with the official SDKs for Python, in a process of its own: commands and answers as node/main.mjs."""

import json
import sys

from python_sdks import PythonSession


def main():
    for line in sys.stdin:
        command = json.loads(line)
        session = PythonSession(command["url"])
        for message in session.play(command):
            tell(command, message)
        session.close()
        tell(command, {"over": True})


def tell(command, message):
    print(json.dumps({"id": command["id"], **message}), flush=True)


if __name__ == "__main__":
    main()
