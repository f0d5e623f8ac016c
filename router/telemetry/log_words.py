"""Text of log lines. Text from clients and engines is escaped, so that it can neither break nor
forge a line nor control a terminal, and each JSON line is valid."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import orjson

__all__ = ["dumps", "flat", "pairs", "time_of_day", "word"]

# Printable ASCII except space, quotes and the equals sign.
_PLAIN = re.compile(r"""[!#-<>-~]+""")


def dumps(line: dict[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits
        return orjson.dumps({key: _utf8(str(value)) for key, value in line.items()}).decode()


def time_of_day(created: float) -> str:
    """A time in UTC with milliseconds, so that the lines of replicas can be sorted together."""
    moment = datetime.fromtimestamp(created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def flat(text: str) -> str:
    """`text` without line ends and control characters, including those of Unicode."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def pairs(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={word(value)}" for key, value in fields.items() if value is not None)


def word(value: object) -> str:
    """A value as one word, quoted if needed: a client's text must not look like another field."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    if text.isalnum() and text.isascii():  # nearly always; the pattern takes ten times as long
        return text
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
