"""Runs kubectl, and explains its failures to the user of the gate."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

# Time-out of a call, for a distant API server. Longer waits are polled.
TIMEOUT_S = 60.0


class ClusterTrouble(Exception):
    """The cluster cannot be used; the text has the remedy. This is no verdict."""


class Kubectl:
    """Runs kubectl. Every method raises ClusterTrouble."""

    def __init__(self, context: str | None = None, program: str = "kubectl") -> None:
        found = shutil.which(program)
        if found is None:
            raise ClusterTrouble(f"there is no {program}: install it, 1.30 or newer")
        self._command = [found, *(["--context", context] if context else [])]

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Run it with `given` as standard input; its output."""
        done = self._done(arguments, given)
        if done.returncode != 0:
            raise ClusterTrouble(explained(arguments, done.stderr or done.stdout))
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Its output as a JSON document."""
        return json.loads(self.run(*arguments, "--output=json"))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The items of the list that `get` prints."""
        found: list[dict[str, Any]] = self.json("get", *arguments)["items"]
        return found

    def forbidden(self, wanted: Iterable[Sequence[str]]) -> list[str]:
        """The rights (verb, resource, options) that the user lacks."""
        missing = []
        for right in wanted:
            # Its exit status is 1 for "no" and for errors.
            done = self._done(("auth", "can-i", *right), None)
            answer = done.stdout.strip()
            if not answer.startswith(("yes", "no")):
                raise ClusterTrouble(explained(("auth",), done.stderr))
            if answer.startswith("no"):
                missing.append(" ".join(right[:2]))
        return missing

    def _done(
        self, arguments: Sequence[str], given: str | None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self._command, *arguments],
                input=given,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClusterTrouble(
                f"kubectl {arguments[0]} had no answer within {TIMEOUT_S:.0f} s: is the API server "
                "reachable from here?"
            ) from None


UNREACHABLE = ("refused", "no such host", "i/o timeout", "Unable to connect", "no route to host")
UNCONFIGURED = ("no configuration has been provided", "current-context", "localhost:8080")
UNKNOWN_USER = ("Unauthorized", "must be logged in", "credentials", "expired")


def explained(arguments: Sequence[str], said: str) -> str:
    """The error for a failed call, with advice."""
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no message"
    text = f"kubectl {arguments[0]}: {last}"
    if any(mark in said for mark in UNCONFIGURED):
        return f"{text} (name a cluster: kubectl config use-context, or --context)"
    if any(mark in said for mark in UNREACHABLE):
        return f"{text} (the cluster does not answer: VPN, or kubectl config current-context)"
    if any(mark in said for mark in UNKNOWN_USER):
        return f"{text} (log in to the cluster again)"
    if "forbidden" in said.lower():
        return f"{text} (ask for the right: docs/gate.md, On a cluster)"
    return text
