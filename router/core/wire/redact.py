"""Removes KV transfer parameters from engines' answers.

vLLM 0.33 writes `"kv_transfer_params":null` into each chunk, and a decode engine with bidirectional
transfer writes a live reference, which contains hosts, ports and blocks. The search works on bytes,
because parsing the JSON of each chunk would cost more than relaying it.
"""

import re

from router.core.wire.jsonspan import value_end

__all__ = ["MARK", "redact"]

MARK = b'_transfer_params"'
"""The end of the name of each such member. Data that do not contain it need no change."""

_OPENINGS = (b'"kv', b'"ec')
_COLON = re.compile(rb"\s*:\s*")
_COMMA_AFTER = re.compile(rb"\s*,\s*")

_NULLS = (b',"kv_transfer_params":null', b',"ec_transfer_params":null')
"""How vLLM writes an empty one. Within a JSON string each quote is escaped, so these bytes can only
be a member and the comma before it."""

_BEFORE_MARK = len(b',"kv')


def redact(data: bytes) -> bytes:
    """`data` (a JSON body or complete SSE events) without these members, or `data` itself."""
    mark = data.find(MARK)  # `in` raises and drops a TypeError for bytes before it searches
    if mark < 0:
        return data
    start, size = mark - _BEFORE_MARK, len(_NULLS[0])
    if data.startswith(_NULLS, start) and data.find(MARK, start + size) < 0:
        return data[:start] + data[start + size :]  # nearly all answers
    return _redact_all(data, mark)


def _redact_all(data: bytes, mark: int) -> bytes:
    """The same, where the first name ends at `mark` and there may be several, of any form."""
    kept = []
    done = 0
    while mark >= 0:
        end = mark + len(MARK)
        start = mark - _BEFORE_MARK
        if start >= done and data.startswith(_NULLS, start):
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
