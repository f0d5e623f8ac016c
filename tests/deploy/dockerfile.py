"""Reads a Dockerfile into stages of instructions: as much of the format as ours uses."""

import json
import re
import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """One instruction; `text` is all behind its name, on one line."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of its text, flags included."""
        return shlex.split(self.text)

    @property
    def exec_form(self) -> list[str]:
        """The words of its JSON array. Raises ValueError for the shell form, which is no JSON."""
        words: list[str] = json.loads(self.text)
        return words


Stage = list[Instruction]


def read(text: str) -> list[Stage]:
    """The stages, each beginning with its FROM; lines before the first FROM are skipped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(lines))
    stages: list[Stage] = []
    for line in filter(str.strip, whole.splitlines()):
        name, _, rest = line.strip().partition(" ")
        if name.upper() == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(Instruction(name.upper(), rest.strip()))
    return stages


def name_of(stage: Stage) -> str:
    """How its FROM calls a stage."""
    return stage[0].words[-1]
