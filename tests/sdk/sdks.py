"""The SDKs under test, and who of them speaks which dialect."""

from dataclasses import dataclass

import dialects


@dataclass(frozen=True)
class Sdk:
    """`key` is what the program that plays its calls knows it by; `runtime` says which program that is."""

    name: str
    key: str
    runtime: str


OPENAI_PYTHON = Sdk("openai-python", "openai", "python")
OPENAI_NODE = Sdk("openai-node", "openai", "node")
# The major version before, which many still use, and which reads error events in its own way.
OPENAI_NODE_6 = Sdk("openai-node-6", "openai-6", "node")
ANTHROPIC_PYTHON = Sdk("anthropic-python", "anthropic", "python")
ANTHROPIC_NODE = Sdk("anthropic-node", "anthropic", "node")

OPENAI = [OPENAI_PYTHON, OPENAI_NODE, OPENAI_NODE_6]
ANTHROPIC = [ANTHROPIC_PYTHON, ANTHROPIC_NODE]


@dataclass(frozen=True)
class Caller:
    """An SDK that speaks one of its dialects; cases are run once for each."""

    sdk: Sdk
    dialect: object

    @property
    def name(self):
        return f"{self.sdk.name} {self.dialect.name}"


CALLERS = [
    Caller(sdk, dialect)
    for dialect in dialects.DIALECTS
    for sdk in (ANTHROPIC if dialect.name == "messages" else OPENAI)
]
# For what is not of a dialect: one caller for each SDK.
EACH_OPENAI = [caller for caller in CALLERS if caller.dialect.name == "chat"]
EACH_ANTHROPIC = [caller for caller in CALLERS if caller.dialect.name == "messages"]
