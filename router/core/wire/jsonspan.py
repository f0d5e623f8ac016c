"""Reads, adds or removes one member of a JSON object as bytes, without changing the rest.

A KV reference must reach the decode engine byte for byte: parsing and serialising it would turn
integers beyond 64 bits into floats. No tree of the edited document is built.
"""

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

import orjson

__all__ = [
    "MARK",
    "engine_json",
    "has_params",
    "member",
    "redact",
    "value_end",
    "with_member",
]

LIGHT_BYTES: Final = 64 << 10
"""Documents up to this size in bytes are always parsed; it takes at most 17 ms."""

MAX_CONTAINERS: Final = 32_768
MAX_VALUES: Final = 1_500_000
"""Most values, objects and arrays in a larger document, which takes about 50 ms. A response of vLLM
has a few hundred objects; with the token ids of a prompt it has up to a million values."""

_SPACE = re.compile(r"[ \t\r\n]*")
# A string, or an incomplete one up to the end. Possessive quantifiers, so that it is read only
# once.
_QUOTED = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_STRING = re.compile(_QUOTED, re.DOTALL)
_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|%b)*+[\[\]{}]' % _QUOTED, re.DOTALL)
_SCALAR_END = re.compile(rb"[,}\]\s]")
_decode = json.JSONDecoder().raw_decode


def engine_json(document: bytes) -> Any:
    """Parse JSON from an engine. Raises ValueError if it is invalid, or would take so long that it
    blocks the event loop."""
    if len(document) > LIGHT_BYTES and _is_heavy(document):
        raise ValueError("the document holds too many values")
    return orjson.loads(document)


def _is_heavy(document: bytes) -> bool:
    containers = document.count(b"{") + document.count(b"[")
    return containers > MAX_CONTAINERS or document.count(b",") > MAX_VALUES


def member(document: bytes, key: str) -> bytes | None:
    """The bytes of a top-level member's value; None if the object has no such member.

    If a name is repeated, the last member counts, as in all JSON parsers used here. Raises
    ValueError if the document is not a JSON object or would take too long to parse.
    """
    if len(document) > LIGHT_BYTES and _is_heavy(document):
        raise ValueError("the document holds too many values")
    if (found := _only_one(document, key)) is not None:
        return found
    try:
        found = _member(document.decode(), key)
    except (RecursionError, IndexError) as error:
        raise ValueError(f"not a JSON object: {error}") from None
    if found is not None:
        orjson.loads(found)  # raises ValueError for invalid values such as 1e999
    return found


def _only_one(document: bytes, key: str) -> bytes | None:
    """The member, if its name occurs once in the document and without escapes. None means that this
    is not known.

    orjson is fast but returns no positions. If serialising the parsed value gives bytes that are
    found in the document, as is the case for what vLLM writes, these are the value. Searching for
    its end takes ten times as long.
    """
    mark = b'"%b":' % key.encode()
    at = document.find(mark)
    if at < 0 or document.find(mark, at + 1) >= 0 or document.find(b"\\u") >= 0:
        return None
    start = at + len(mark)
    try:
        whole = orjson.loads(document)
        if not isinstance(whole, dict) or key not in whole:
            return None
        value = orjson.dumps(whole[key])
        if value.startswith(b"{") and document.startswith(value, start):
            return value
        value = document[start : value_end(document, start)]
        return value if orjson.loads(value) == whole[key] else None
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None


def _member(text: str, key: str) -> bytes | None:
    found = None
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError("not a JSON object")
    at = _skip(text, at + 1)
    while text[at] != "}":
        if text[at] != '"':
            raise ValueError(f"no member name at character {at}")
        name, at = scanstring(text, at + 1, True)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError(f"no colon at character {at}")
        start = _skip(text, at + 1)
        _, end = _decode(text, start)
        if name == key:
            found = text[start:end].encode()
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
            if text[at] == "}":
                raise ValueError(f"no member behind the comma at character {at}")
        elif text[at] != "}":
            raise ValueError(f"neither a comma nor the end at character {at}")
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"more than one value at character {at + 1}")
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # the pattern matches the empty string
    return found.end()


def with_member(document: bytes, key: str, value: bytes) -> bytes:
    """Add a member at the end of a JSON object. The object must be valid and must not have the
    key."""
    head = document.rstrip()[:-1]
    comma = b"" if head.rstrip().endswith(b"{") else b","
    return b'%b%b"%b":%b}' % (head, comma, key.encode(), value)


def value_end(document: bytes, start: int) -> int:
    """The end of the JSON value that begins at `start`; the document's length if it is
    incomplete."""
    first = document[start : start + 1]
    if first == b'"':
        found = _STRING.match(document, start)
        assert found is not None  # the pattern matches anything after a quote
        return found.end()
    if first not in (b"{", b"["):
        found = _SCALAR_END.search(document, start)
        return found.start() if found else len(document)
    depth, at = 0, start
    # Skip from bracket to bracket: a KV reference consists mostly of strings and scalars.
    while (found := _TO_BRACKET.match(document, at)) is not None:
        at = found.end()
        depth += 1 if document[at - 1] in b"{[" else -1
        if depth == 0:
            return at
    return len(document)


MARK = b'_transfer_params"'
"""The end of the name of each member that `redact` removes. Data without it need no change."""

EMPTY = MARK + b":null"
"""vLLM 0.33 writes it into each chunk. It contains nothing to remove."""

_OPENINGS = (b'"kv', b'"ec')
_COLON = re.compile(rb"\s*:\s*")
_COMMA_AFTER = re.compile(rb"\s*,\s*")


def has_params(data: bytes) -> bool:
    """Whether data with MARK has KV transfer parameters that are not null."""
    return data.count(MARK) > data.count(EMPTY)


def redact(data: bytes) -> bytes:
    """A JSON body or complete SSE events without KV transfer parameters; `data` itself if there are
    none or they are null.

    A decode engine with bidirectional transfer writes a live reference, which contains hosts, ports
    and blocks. Parsing the JSON of each chunk would cost more than relaying it.
    """
    mark = data.find(MARK)  # `in` raises and drops a TypeError for bytes before it searches
    return data if mark < 0 or not has_params(data) else _redact_all(data, mark)


def _redact_all(data: bytes, mark: int) -> bytes:
    """The same, where the first name ends at `mark` and there may be several, of any form."""
    kept = []
    done = 0
    while mark >= 0:
        end = mark + len(MARK)
        if (span := _params_member(data, mark, done)) is not None:
            start, end = span
            kept.append(data[done:start])
            done = end
        mark = data.find(MARK, end)
    if not done:
        return data
    kept.append(data[done:])
    return b"".join(kept)


def _params_member(data: bytes, mark: int, done: int) -> tuple[int, int] | None:
    """Start and end of the member whose name ends at `mark`, including one comma.

    A comma before `done` was removed with the previous member. The quote that begins a member's
    name is not escaped; in generated text that contains the name it is, and such text is not
    changed.
    """
    start = mark - 3
    colon = _COLON.match(data, mark + len(MARK))
    if data[max(start, 0) : mark] not in _OPENINGS or colon is None:
        return None
    if data[max(start - 1, 0) : start] == b"\\":
        return None
    end = value_end(data, colon.end())
    before = _before_space(data, start)
    if before > done and data[before - 1 : before] == b",":
        return before - 1, end
    comma = _COMMA_AFTER.match(data, end)
    return start, comma.end() if comma else end


def _before_space(data: bytes, at: int) -> int:
    while at > 0 and data[at - 1] in b" \t\r\n":
        at -= 1
    return at
