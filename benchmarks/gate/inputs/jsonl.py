"""Records of a JSON array or of JSON lines, each with its place.

Reads a file and raises one kind of error, which names the file and the line.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson

from benchmarks.gate.inputs.datasets import InvalidDataset

Record = Mapping[str, Any]
Made = TypeVar("Made")
BLANKS = " \t\r\n"


class Malformed(ValueError):
    """What is wrong with one record."""


def read(path: Path, make: Callable[[Record], Made | None], most: int | None = None) -> list[Made]:
    """What `make` makes of each record, as long as there are fewer than `most`; it returns None
    for one to leave out, and raises Malformed. Raises InvalidDataset."""
    found: list[Made] = []
    for line, record in records(_text(path), str(path)):
        if most is not None and len(found) >= most:
            break
        try:
            made = make(_object(record))
        except Malformed as error:
            raise InvalidDataset(f"{path}:{line}: {error}") from None
        if made is not None:
            found.append(made)
    if not found:
        raise InvalidDataset(f"{path}: nothing in it that could be asked")
    return found


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidDataset(f"{path}: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidDataset(f"{path}:{line}: not UTF-8") from None


def _object(record: object) -> Record:
    if not isinstance(record, dict):
        raise Malformed("not an object")
    return record


def records(text: str, name: str = "") -> Iterator[tuple[int, Any]]:
    """Every record with the line where it begins, of an array or of lines. `name` is the file's.

    Raises InvalidDataset.
    """
    if text.lstrip(BLANKS).startswith("["):
        yield from _of_array(text, name)
        return
    # Not splitlines(): U+2028 and others are allowed within JSON's strings.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(BLANKS):
            yield number, _parsed(line, f"{name}:{number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidDataset(f"{where}: not JSON: {str(error).split(':')[0]}") from None


def _of_array(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """One element after the other, so that each one's line is known."""
    at, line = _skipped(text, 0, 1)
    at, line = _skipped(text, at + 1, line)
    more = text[at : at + 1] != "]"
    while more:
        end = _end(text, at, f"{name}:{line}")
        yield line, _parsed(text[at:end], f"{name}:{line}")
        line += text.count("\n", at, end)
        at, line = _skipped(text, end, line)
        more = text[at : at + 1] == ","
        if more:
            at, line = _skipped(text, at + 1, line)
    if text[at : at + 1] != "]" or text[at + 1 :].strip(BLANKS):
        raise InvalidDataset(f"{name}:{line}: not JSON: the array does not end here")


def _end(text: str, at: int, where: str) -> int:
    """The end of the value that begins at `at`. orjson, which is stricter, parses it."""
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        raise InvalidDataset(f"{where}: not JSON") from None


def _skipped(text: str, at: int, line: int) -> tuple[int, int]:
    """The next place that is not blank, and its line."""
    while at < len(text) and text[at] in BLANKS:
        line += text[at] == "\n"
        at += 1
    return at, line


def whole(record: Record, name: str, least: int) -> int:
    """A whole number of a record. Raises Malformed."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Malformed(f"{name}: must be a whole number of at least {least}, not {_short(value)}")
    return value


def _short(value: object) -> str:
    return repr(value)[:40]
