"""A field of a multipart/form-data body (RFC 7578).

Only parts between boundaries count, so that the content of a file cannot pass for a field. The time
is linear in the body's size: the boundary is searched once, and parts and headers are limited.
"""

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["field"]

MAX_BOUNDARY_BYTES: Final = 70
"""RFC 2046, section 5.1.1."""

MAX_PARTS: Final = 1000
"""Most parts that are read; Starlette refuses forms of more fields."""

MAX_HEADER_BYTES: Final = 4096
"""Most bytes of a part's headers. Names of files have at most a few hundred."""

MAX_VALUE_BYTES: Final = 4096
"""Bytes of a value that are returned; more than those of any model's name."""

_PARAMETER: Final = re.compile(
    rb';[ \t]*+([^\s;="]++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)|([^;]*+))', re.DOTALL
)
"""A parameter of a header: its name, and its value in quotes or without."""
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)


def field(content_type: bytes, raw: bytes, name: bytes) -> bytes | None:
    """The value of a field, cut at MAX_VALUE_BYTES; None without one. Of several the last counts,
    as in vLLM (Starlette)."""
    boundary = _parameters(content_type).get(b"boundary", b"")
    value = None
    for head, begin, end in _parts(raw, boundary):
        if _name(head) == name:
            value = raw[begin : min(end, begin + MAX_VALUE_BYTES)]
    return value


def _parts(raw: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each complete part: its headers, and where its content begins and ends. Ends with a part that
    has no headers, which is no form for vLLM."""
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        return
    opening = re.match(rb"[\r\n]*+--%b[ \t]*+(\r?\n)" % re.escape(boundary), raw)
    if opening is None:
        return
    start, line_end = opening.end(), opening[1]
    delimiter = re.compile(rb"%b--%b(?:(--)|[ \t]*+%b)" % (line_end, re.escape(boundary), line_end))
    for _ in range(MAX_PARTS):
        head_end = raw.find(line_end * 2, start, start + MAX_HEADER_BYTES)
        begin = head_end + 2 * len(line_end)
        found = delimiter.search(raw, begin) if head_end >= 0 else None
        if found is None:
            return
        yield raw[start:head_end], begin, found.start()
        if found[1]:
            return
        start = found.end()


def _name(head: bytes) -> bytes | None:
    """The name of the field whose part has this head."""
    for line in head.splitlines():
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            return _parameters(value).get(b"name")
    return None


def _parameters(header: bytes) -> dict[bytes, bytes]:
    """The parameters of a header's value, by name in lower case."""
    return {
        found[1].lower(): found[3].strip() if found[2] is None else _ESCAPE.sub(rb"\1", found[2])
        for found in _PARAMETER.finditer(header)
    }
