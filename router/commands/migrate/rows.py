"""A row of a table: a name of another router's configuration, and what becomes of it here."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

__all__ = [
    "Other",
    "Row",
    "aliases",
    "by_itself",
    "each",
    "engine_url",
    "first",
    "labels",
    "last",
    "lost",
    "mebibytes",
    "nginx_bytes",
    "nginx_seconds",
    "only",
    "room",
    "to",
]

Words = Sequence[str]
Reading = Callable[[Words], Any] | Mapping[str, Any]
"""A setting's value by the words behind a name; None: they mean nothing here. A mapping reads the
last word, "" if there is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """`theirs`: the names, separated by blanks; * stands for any text. `ours`: the setting; None:
    there is none. `is_needed`: whether something is missing without a setting."""

    theirs: str
    ours: str | None
    reading: Reading
    note: str
    is_needed: bool = True

    def matches(self, name: str) -> bool:
        """Whether this row is about the name."""
        return any(fnmatchcase(name, pattern) for pattern in self.theirs.split())

    def read(self, words: Words) -> Any:
        """The value for our setting; None: there is none."""
        if isinstance(self.reading, Mapping):
            return self.reading.get(words[-1] if words else "")
        return self.reading(words) if words else None


@dataclass(frozen=True, slots=True)
class Other:
    """Another router. `defaults`: our settings for what its users leave out."""

    name: str
    source: str
    """The version and the documents that the rows are of."""
    rows: tuple[Row, ...]
    defaults: Mapping[str, Any]

    def about(self, name: str) -> list[Row]:
        """The rows about a name, one for each setting that it becomes."""
        return [row for row in self.rows if row.matches(name)]


def _number(word: str) -> Any:
    if re.fullmatch(r"\d+", word):
        return int(word)
    return float(word) if re.fullmatch(r"\d+\.\d+", word) else word


def last(words: Words) -> Any:
    """The last word; a number if it is one."""
    return _number(words[-1])


def to(theirs: str, ours: str, reading: Reading = last, note: str = "") -> Row:
    """A row for names that become a setting."""
    return Row(theirs, ours, reading, note)


def by_itself(theirs: str, note: str) -> Row:
    """A row for names that need no setting: `note` says why."""
    return Row(theirs, None, last, note, is_needed=False)


def lost(theirs: str, note: str) -> Row:
    """A row for names without a counterpart: `note` says why, or what to do."""
    return Row(theirs, None, last, note)


# Readings.


def each(words: Words) -> list[str]:
    """All words; of comma lists all parts."""
    return [part for word in words for part in word.split(",") if part]


def first(words: Words) -> list[str]:
    """The first word: an engine, with something else behind it."""
    return [words[0]]


def only(words: Words) -> Any:
    """The word, if it is the only one."""
    return _number(words[0]) if len(words) == 1 else None


def labels(words: Words) -> str:
    """Labels as one selector."""
    return ",".join(words)


def aliases(words: Words) -> list[str]:
    """Aliases: NAME:MODEL or NAME=MODEL."""
    return [text if "=" in text else text.replace(":", "=", 1) for text in each(words)]


def engine_url(words: Words) -> list[str]:
    """An engine's URL without the version of the API."""
    return [re.sub(r"/v1/?$", "", words[-1])]


DEFAULT_ROOM = 256 << 20


def room(words: Words) -> int | None:
    """Room for one body of this size, if the default has none."""
    size = int(words[-1])
    return size if size > DEFAULT_ROOM else None


def mebibytes(words: Words) -> int:
    """MiB as bytes."""
    return int(float(words[-1]) * (1 << 20))


def nginx_seconds(words: Words) -> float:
    """nginx's time: `90`, `90s`, `1m`, `1h 30m`, `500ms`."""
    units = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    return sum(
        float(number) * units[unit]
        for word in words
        for number, unit in re.findall(r"(\d+)(ms|s|m|h|d|)", word)
    )


def nginx_bytes(words: Words) -> int:
    """nginx's size: `1024`, `8k`, `64m`, `1g`."""
    found = re.fullmatch(r"(\d+)([kmg]?)", words[-1].lower())
    if found is None:
        raise ValueError(f"{words[-1]} is no size")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]
