"""Removes KV transfer parameters from engines' answers.

vLLM 0.33 writes `"kv_transfer_params":null` into every chunk, and a decode engine with
bidirectional transfer puts a live reference there: it names hosts, ports and blocks. The search
works on bytes, since a JSON parse per chunk would cost more than relaying it.
"""

import re

from router.core.wire.jsonspan import value_end

__all__ = ["MARK", "redact"]

MARK = b'_transfer_params"'
"""What every such member's name ends with: data without it is clean."""

_OPENINGS = (b'"kv', b'"ec')
_COLON = re.compile(rb"\s*:\s*")
_COMMA_AFTER = re.compile(rb"\s*,\s*")

_NULLS = (b',"kv_transfer_params":null', b',"ec_transfer_params":null')
"""How vLLM spells an empty one. Inside a JSON string every quote has a backslash before it: these
bytes can only be a member and the comma before it."""

_BEFORE_MARK = len(b',"kv')


def redact(data: bytes) -> bytes:
    """`data` (a JSON body or whole SSE events) without the members, or `data` itself."""
    mark = data.find(MARK)  # `in` makes and drops a TypeError for bytes before it searches
    if mark < 0:
        return data
    kept = []
    done = 0
    while mark >= 0:
        end = mark + len(MARK)
        start = mark - _BEFORE_MARK
        if start >= done and data.startswith(_NULLS, start):  # as in nearly every answer
            end = start + len(_NULLS[0])
            kept.append(data[done:start])
            done = end
        elif (member := _member(data, mark, done)) is not None:
            start, end = member
            kept.append(data[done:start])
            done = end
        mark = data.find(MARK, end)
    if not done:
        return data
    kept.append(data[done:])
    return b"".join(kept)


def _member(data: bytes, mark: int, done: int) -> tuple[int, int] | None:
    """Where the member with its name's end at `mark` begins and ends, one comma included.

    A comma before `done` went with the member before.

    A quote that opens a member's name has no backslash before it; text that talks about the key
    has one, and is not touched.
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
