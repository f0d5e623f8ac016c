"""What all commands of the bench share: the program's name, and usage errors of one line."""

import argparse
import difflib
import math
import sys
from pathlib import Path
from typing import NoReturn

SCRIPT, MODULE = "pd-bench", "python -m benchmarks"

VALIDATOR = (
    "The validator is inference-perf of NVIDIA AI Cluster Runtime (AICR): it offers an endpoint a "
    "load with AIPerf and judges output tokens per second and the p99 of the time to first token. "
    "See https://github.com/NVIDIA/aicr"  # no hyphen: help would break it there
)
"""For the help of every command whose description mentions it."""

UNKNOWN = "unrecognized arguments: "
"""How argparse begins its message about unknown options."""


def program(command: str = "") -> str:
    """The program as called, followed by the command."""
    name = SCRIPT if Path(sys.argv[0]).stem == SCRIPT else MODULE
    return f"{name} {command}".rstrip()


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line that name the culprit and where to look."""

    status: int = 2
    """The exit status after a usage error."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with `status`."""
        text = message.removeprefix("argument ")
        if text.startswith(UNKNOWN):
            text = self._unknown(text.removeprefix(UNKNOWN))
        self.exit(self.status, f"{program()}: {text}; see {self.prog} --help\n")

    def _unknown(self, arguments: str) -> str:
        """Only the first one: the next word may be its value."""
        wrong = arguments.split(" ")[0].partition("=")[0]
        near = difflib.get_close_matches(wrong, self._option_string_actions, 1)
        return f"{wrong}: no such argument{f', did you mean {near[0]}?' if near else ''}"


def positive(text: str) -> int:
    """An argument that is a whole number above zero."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def above_0(text: str) -> float:
    """An argument that is a finite number above zero."""
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number
