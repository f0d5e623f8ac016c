"""The tables of docs/migrate.md, made of those that `pd-router migrate` reads:
python -m tests.docs.migrate_tables --write."""

import re
import sys
from collections.abc import Mapping

from router.commands.migrate import OTHERS
from router.commands.migrate.rows import Other, Row
from tests.docs.blocks import ROOT

__all__ = ["DOCUMENT", "written"]

DOCUMENT = ROOT / "docs/migrate.md"

_TABLE = re.compile(r"(<!-- migrate: (\S+) -->\n)(.*?)(<!-- /migrate -->)", re.DOTALL)


def written(document: str) -> str:
    """The document with a table between the markers of each router."""
    return _TABLE.sub(lambda found: f"{found[1]}{_table(OTHERS[found[2]])}{found[4]}", document)


def _table(other: Other) -> str:
    head = f"Of {other.source}:\n\n| {other.name} | pd-router | remarks |\n|---|---|---|\n"
    given = ", ".join(f"`{name}: {value}`" for name, value in other.defaults.items())
    tail = f"\nDefaults that are written: {given}.\n" if given else ""
    shown: dict[int, str] = {}
    return head + "".join(_line(row, shown) for row in other.rows) + tail


def _line(row: Row, shown: dict[int, str]) -> str:
    names = ", ".join(f"`{name}`" for name in row.theirs.split())
    ours = f"`{row.ours}`" if row.ours else "none" if row.is_needed else "not needed"
    note = re.sub(r"docs/(\S+?\.md)", r"[\1](\1)", row.note)
    remarks = " ".join(part for part in (_choices(row, shown), note) if part)
    return f"| {names} | {ours} | {remarks} |\n"


def _choices(row: Row, shown: dict[int, str]) -> str:
    """What the words of a choice become; said once in a table."""
    if not isinstance(row.reading, Mapping):
        return ""
    if (before := shown.setdefault(id(row.reading), row.theirs)) != row.theirs:
        return f"As for `{before}`."
    theirs: dict[object, list[str]] = {}
    for word, value in row.reading.items():
        theirs.setdefault(value, []).append(f"`{word}`" if word else "")
    said = [f"{', '.join(words)}: `{ours}`." for ours, words in theirs.items()]
    return " ".join(said).removeprefix(": ")


if __name__ == "__main__":
    text = written(DOCUMENT.read_text(encoding="utf-8"))
    if "--write" in sys.argv:
        DOCUMENT.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
