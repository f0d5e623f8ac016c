"""`python -m tests.audit`: looks for known vulnerabilities of the pinned dependencies (pip-audit).

Without its database, as on a machine without a network, it prints a note and succeeds: CI does not
fail because of another server.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["audit"]

LOCK_FILES: Final = sorted((Path(__file__).parents[1] / "requirements").glob("*.txt"))
SECONDS: Final = 120

UNREACHABLE: Final = ("ConnectionError", "Max retries exceeded", "ServiceError", "Timeout", "Proxy")
"""pip-audit's message without its database."""


def audit(
    lock_file: Path, command: tuple[str, ...] = (sys.executable, "-m", "pip_audit")
) -> tuple[int, str]:
    """The exit status for one lock file, and the message."""
    asked = ("--requirement", str(lock_file), "--disable-pip", "--require-hashes")
    shown = ("--format", "json", "--progress-spinner", "off")
    try:
        done = subprocess.run(
            [*command, *asked, *shown], capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return 0, "skipped: the database of vulnerabilities does not answer"
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return _without_answer(done.stderr)
    return _told(dependencies)


def _without_answer(error: str) -> tuple[int, str]:
    if "No module named" in error:
        return 0, "skipped: pip-audit is not installed: pip install pip-audit"
    if any(word in error for word in UNREACHABLE):
        return 0, "skipped: the database of vulnerabilities cannot be reached"
    return 1, error


def _told(dependencies: list[dict[str, Any]]) -> tuple[int, str]:
    bad = [each for each in dependencies if each.get("vulns")]
    if bad:
        found = (f"{d['name']} {d.get('version')}: {v['id']}" for d in bad for v in d["vulns"])
        return 1, "\n".join(found)
    skipped = sum("skip_reason" in each for each in dependencies)
    if skipped == len(dependencies):
        return 0, "skipped: the package index knows nothing of vulnerabilities"
    return 0, f"no known vulnerabilities; {skipped} of {len(dependencies)} could not be audited"


def main() -> int:
    """Audit all; 1 if one has a known vulnerability."""
    worst = 0
    for lock_file in LOCK_FILES:
        status, text = audit(lock_file)
        print(f"{lock_file.name}: {text}")
        worst |= status
    return worst


if __name__ == "__main__":
    sys.exit(main())
