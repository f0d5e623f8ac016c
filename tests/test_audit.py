"""The audit fails only for a vulnerability, and reports what it could not check."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit import audit

LOCK = Path("dev.txt")
GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "1", "vulns": [{"id": "CVE-1"}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


def _says(status: int, dependencies: list[dict[str, Any]] | None, error: str = "") -> Any:
    out = "" if dependencies is None else json.dumps({"dependencies": dependencies, "fixes": []})
    code = f"import sys; sys.stdout.write({out!r}); sys.stderr.write({error!r}); sys.exit({status})"
    return sys.executable, "-c", code


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (_says(0, [GOOD, UNKNOWN]), 0, "no known vulnerabilities; 1 of 2 could not be audited"),
        (_says(1, [GOOD, BAD], "Found 1"), 1, "b 1: CVE-1"),
        (_says(0, [UNKNOWN]), 0, "skipped: the package index knows nothing"),
        (_says(1, None, "requests.exceptions.ConnectionError: x"), 0, "cannot be reached"),
        (_says(1, None, "pip_audit._service.interface.ServiceError"), 0, "cannot be reached"),
        (_says(1, None, "No module named pip_audit"), 0, "not installed"),
        (_says(1, None, "error: a bad lock file"), 1, "a bad lock file"),
    ],
)
def test_only_a_vulnerability_fails(command: tuple[str, ...], status: int, text: str) -> None:
    found, told = audit(LOCK, command)
    assert (found, text in told) == (status, True), told
