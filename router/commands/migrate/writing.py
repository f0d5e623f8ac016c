"""Writes the entries of another router's configuration as a YAML file of ours."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from router.commands.flags import one_line
from router.commands.migrate.readers import Entry
from router.commands.migrate.rows import Other, Row
from router.settings import Settings
from router.settings.checks import problems

__all__ = ["Migration", "migrated"]


class Migration(NamedTuple):
    """`text`: a file for --config. `lost`: a line for each name that has no counterpart. `missing`:
    a line for each setting that the file still needs."""

    text: str
    lost: list[str]
    missing: list[str]


def migrated(other: Other, entries: Iterable[Entry]) -> Migration:
    """Write the settings that the entries become. Each has a value that `serve` accepts."""
    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    lost = []
    for name, words in entries:
        rows = other.about(name)
        shown = _shown(name, words, rows)
        given = {row.ours: value for row in rows if (value := _value(row, words)) is not None}
        for setting, value in given.items():
            if setting is None:
                continue
            if problem := _problem(setting, value):
                lost.append(f"{shown}: {setting}: {problem}")
                continue
            settings[setting] = _joined(settings.get(setting), value)
            sources[setting] = shown
        if not given and (not rows or rows[0].is_needed):
            note = rows[0].note if rows else f"no name of {other.name} that is known here"
            lost.append(f"{shown}: {note}")
    for setting, value in other.defaults.items():
        if _applies(setting, settings) and setting not in settings:
            settings[setting] = value
            sources[setting] = f"{other.name}'s default"
    missing = list(problems(Settings(**settings)))
    lost = list(dict.fromkeys(lost))
    return Migration(_text(other, settings, sources, lost, missing), lost, missing)


def _shown(name: str, words: Sequence[str], rows: Sequence[Row]) -> str:
    """The name, with the words behind it if they are a choice: others may be secrets."""
    is_choice = bool(rows) and isinstance(rows[0].reading, Mapping)
    return one_line(" ".join([name, *words]) if is_choice else name)


def _value(row: Row, words: Sequence[str]) -> Any:
    if row.ours is None:
        return None
    try:
        return row.read(words)
    except ValueError:  # no number where a number belongs
        return None


def _problem(setting: str, value: Any) -> str | None:
    """Why the setting does not accept the value."""
    try:
        Settings(**{setting: value})
    except ValidationError as error:
        return str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
    return None


def _joined(before: Any, value: Any) -> Any:
    """Lists are continued, other values replaced, as by argparse."""
    if isinstance(value, list):
        return list(dict.fromkeys([*(before or ()), *value]))
    return value


NEEDS = {"admin_port": "admin_host", "k8s_port": "k8s_decode_selector"}
"""Defaults that apply only with another setting."""


def _applies(setting: str, settings: Mapping[str, Any]) -> bool:
    return NEEDS.get(setting, setting) in settings or setting not in NEEDS


def _text(
    other: Other,
    settings: Mapping[str, Any],
    sources: Mapping[str, str],
    lost: Sequence[str],
    missing: Sequence[str],
) -> str:
    lines = [f"# Written by `pd-router migrate` from a configuration of {other.name}."]
    for head, found in (("Not carried over:", lost), ("Still needed:", missing)):
        lines += [f"# {head}", *(f"# - {line}" for line in found)] if found else []
    for name in Settings.model_fields:
        if name in settings:
            dumped = yaml.safe_dump({name: settings[name]}, width=1_000_000, allow_unicode=True)
            lines.append(re.sub(r"$", f"  # {sources[name]}", dumped, count=1, flags=re.MULTILINE))
    return "".join(f"{line.rstrip()}\n" for line in lines)
