"""The table of settings in docs/settings.md: python -m router.commands.settings_table [--write]."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic.fields import FieldInfo

from router.settings import ENV_PREFIX, Settings, flag, is_advanced, is_reloadable

__all__ = ["BEGIN", "END", "block", "default_text", "main", "table", "with_table"]

BEGIN, END = "<!-- settings -->", "<!-- /settings -->"


def default_text(field: FieldInfo) -> str:
    """A setting's default as a user would write it; empty if there is none."""
    if field.default in (None, (), {}):
        return ""
    if isinstance(field.default, tuple):
        return ",".join(map(str, field.default))
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


ADVANCED = """
### Advanced
The defaults suit nearly all routers; the description says when one does not.

"""


def table() -> str:
    """Two tables in Markdown, one line per setting: the usual and the advanced ones."""
    advanced = [name for name in Settings.model_fields if is_advanced(name)]
    usual = [name for name in Settings.model_fields if name not in advanced]
    return _lines(usual) + ADVANCED + _lines(advanced)


def _lines(names: Iterable[str]) -> str:
    lines = ["| flag | environment | default | reload | meaning |", "|---|---|---|---|---|"]
    for name in names:
        field = Settings.model_fields[name]
        default = default_text(field) and f"`{default_text(field)}`"
        meaning = (field.description or "").replace("|", "\\|")
        names = f"`{flag(name)}` | `{ENV_PREFIX}{name.upper()}`"
        reload = "yes" if is_reloadable(name) else ""
        lines.append(f"| {names} | {default} | {reload} | {meaning} |")
    return "\n".join(lines) + "\n"


def block(document: str) -> str:
    """The text between the markers of a document. Raises ValueError if they are missing."""
    _, found, rest = document.partition(f"{BEGIN}\n")
    inside, ended, _ = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"it has no lines {BEGIN} and {END}")
    return inside


def with_table(document: str) -> str:
    """The document with the table between its markers."""
    return document.replace(f"{BEGIN}\n{block(document)}{END}", f"{BEGIN}\n{table()}{END}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write it into a document. Returns 2 if that fails."""
    parser = argparse.ArgumentParser(prog="settings_table", description=__doc__)
    parser.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=Path("docs/settings.md"),
        metavar="FILE",
        help=f"put it between {BEGIN} and {END} in FILE (default docs/settings.md)",
    )
    path: Path | None = parser.parse_args(arguments).write
    if path is None:
        sys.stdout.write(table())
        return 0
    try:
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"settings_table: --write {path}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
