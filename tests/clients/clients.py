"""`python -m tests.clients.clients --write`: runs all clients and writes docs/clients.md's table.

Each client has a program in programs/, which needs the client's environment in .clients/ and the
URL of a router.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.running import pools

__all__ = ["CASES", "CLIENTS", "DOCUMENT", "Client", "Outcome", "row", "run"]

DOCUMENT = ROOT / "docs/clients.md"
PINS = ROOT / "requirements/clients"
ENVIRONMENTS = ROOT / ".clients"
PROGRAMS = Path(__file__).parent / "programs"

SECONDS = 280.0
"""Deadline for a program on a busy machine, of which some import for a minute."""

CASES = (
    *("chat", "stream", "completions", "tools", "structured output", "responses", "messages"),
    *("count tokens", "embeddings", "rerank", "audio", "wrong model", "abort"),
)
"""The table's columns."""


@dataclass(frozen=True)
class Client:
    """One client."""

    name: str
    """In the table."""
    package: str
    program: str
    environment: str

    @property
    def is_for_node(self) -> bool:
        """Whether Node runs it, and not Python."""
        return self.program.endswith(".mjs")

    @cached_property
    def version(self) -> str:
        """The pinned version."""
        if self.is_for_node:
            pins = json.loads((PINS / "node/package.json").read_text(encoding="utf-8"))
            return str(pins["dependencies"][self.package])
        pins = (PINS / f"{self.environment}.txt").read_text(encoding="utf-8")
        found = re.search(rf"^{self.package}==(\S+)", pins, re.MULTILINE)
        assert found, f"{self.package} is not pinned"
        return found[1]

    @property
    def missing(self) -> str | None:
        """What its program lacks."""
        if self.is_for_node and shutil.which("npm") is None:
            return "npm"
        stamp = ENVIRONMENTS / self.environment / ".installed"
        return None if stamp.exists() else f"{stamp}: make test-clients"


CLIENTS = (
    Client("openai, Python", "openai", "openai_client.py", "openai"),
    Client("openai, Node", "openai", "openai_client.mjs", "node"),
    Client("anthropic, Python", "anthropic", "anthropic_client.py", "anthropic"),
    Client("anthropic, Node", "@anthropic-ai/sdk", "anthropic_client.mjs", "node"),
    Client("Vercel AI SDK", "@ai-sdk/openai-compatible", "ai_sdk_client.mjs", "node"),
    Client("LangChain", "langchain-openai", "langchain_client.py", "langchain"),
    Client("LlamaIndex", "llama-index-llms-openai-like", "llama_index_client.py", "llama-index"),
    Client("LiteLLM", "litellm", "litellm_client.py", "litellm"),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: str
    ok: bool
    detail: str


def run(client: Client, url: str) -> list[Outcome]:
    """The outcomes of a client's program. Raises CalledProcessError if it fails as a whole."""
    folder = ENVIRONMENTS / client.environment
    command = [str(folder / "bin/python"), str(PROGRAMS / client.program)]
    if client.is_for_node:  # which looks for packages where the program is
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, folder)
        command = ["node", str(folder / client.program)]
    done = subprocess.run(
        [*command, url], stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS
    )
    lines = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return [Outcome(**json.loads(line)) for line in lines]


def row(client: Client, outcomes: list[Outcome]) -> str:
    """A line of the table."""
    found = {outcome.case: "yes" if outcome.ok else "no" for outcome in outcomes}
    cells = (f"{client.name} {client.version}", *(found.get(case, "") for case in CASES))
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def main(arguments: list[str] | None = None) -> int:
    """Run all clients. Status 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.clients", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args(arguments)
    with pools() as started:
        rows = [row(client, run(client, started.router)) for client in CLIENTS]
    head = (f"| client | {' | '.join(CASES)} |", "|---" * (len(CASES) + 1) + "|")
    table = "\n".join((*head, *rows))
    print(table)
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(re.sub(r"(?m)^\| client .*(\n\|.*)+", lambda _: table, text))
    return int("| no " in table)


if __name__ == "__main__":
    sys.exit(main())
