"""Clients' results compared with the router's log."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Ended", "missing", "unlike"]

LOGGED = {
    "right": {"ok"},
    "error": {"error"},
    "error event": {"broken", "error"},
    "broken": {"broken"},
}
"""The outcomes that a request's line may have, by how it ended at its client. Who left may have
done so before or after anything else happened."""


class Ended(NamedTuple):
    """A request that ended at its client."""

    end: str
    status: int
    """Of the answer, or of the error that a stream ended with; 0 if the client had none."""
    is_logged: bool
    """Whether the router must have written its line: where not, it has none or one."""


def missing(ended: Mapping[str, Ended], lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Requests that have no line in the log and must have one; both are by request id."""
    written = {line["id"] for line in lines}
    return [name for name, each in ended.items() if each.is_logged and name not in written]


def unlike(ended: Mapping[str, Ended], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Differences between the log's lines and the clients' results."""
    counts = Counter(line["id"] for line in lines)
    wrong = [f"no line of {name}, {ended[name]}" for name in missing(ended, lines)]
    wrong += [f"{count} lines of {name}" for name, count in counts.items() if count > 1]
    for line in lines:
        seen = ended.get(line["id"])
        if seen is None:
            wrong.append(f"nobody asked {line}")
        elif not _fits(seen, line):
            wrong.append(f"{seen}, and the log says {line}")
    return wrong


def _fits(seen: Ended, line: Mapping[str, Any]) -> bool:
    outcomes = LOGGED.get(seen.end.removesuffix(" and closed"))
    # An answer that broke had the engine's status; an error behind an early head has its own.
    status = 200 if line["outcome"] == "broken" else seen.status
    return outcomes is None or (line["outcome"] in outcomes and line["status"] == status)
