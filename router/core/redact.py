"""Takes KV transfer parameters out of what engines answer, before a client sees it.

vLLM 0.33 writes `"kv_transfer_params":null` into every chunk, and a decode engine with
bidirectional transfer puts a live reference there: it names hosts, ports and blocks. The search
works on bytes, since a JSON parse per chunk would cost more than relaying it.
"""

import re

from router.core.jsonspan import value_end

__all__ = ["redact"]

_MARK = b'_transfer_params"'
# A quote that opens a member name is never preceded by a backslash; inside a JSON string every
# quote is. So text that talks about the key is not touched.
_MEMBER = re.compile(rb'(?P<before>,\s*)?(?<!\\)"(?:kv|ec)_transfer_params"\s*:\s*')
_COMMA_AFTER = re.compile(rb"\s*,\s*")


def redact(data: bytes) -> bytes:
    """`data` (a JSON body or whole SSE events) without the members, or `data` itself."""
    if _MARK not in data:
        return data
    kept = []
    at = 0
    while found := _MEMBER.search(data, at):
        end = value_end(data, found.end())
        if found["before"] is None and (comma := _COMMA_AFTER.match(data, end)):
            end = comma.end()
        kept.append(data[at : found.start()])
        at = end
    kept.append(data[at:])
    return b"".join(kept)
