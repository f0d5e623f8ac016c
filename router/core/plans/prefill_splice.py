"""Corrects what a decode engine's answer says of a prompt that another engine computed.

The decode engine counts what it loaded as cached, and does not know to which experts the prompt's
tokens were routed. The prefill engine's reply has both.
"""

import re
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass, field
from typing import Final

from router.core.request_facts import Facts
from router.core.values import Reply
from router.core.wire.usage import cached_in_prefill, with_cached_tokens

__all__ = ["PrefillSplice", "prefill_splice"]

TOLD: Final = b'"remote_prefill_cached_tokens":'
"""Found in KV parameters since vLLM 0.32: the decode engine reports this number as its own."""

EXPERTS: Final = b'"routed_experts":"'
"""With --enable-return-routed-experts: rows by token, as a numpy file in base64. Only unary answers
have them. vLLM refuses the flag with NixlConnector (0.22 to 0.33) unless it is patched."""


@dataclass(frozen=True, slots=True)
class PrefillSplice:
    """`cached`: the prompt's cached tokens, None if the prefill engine does not state them.
    `experts`: its rows of routed experts; empty if there are none."""

    cached: int | None
    experts: bytes = field(default=b"", repr=False)

    def events(self, data: bytes) -> bytes:
        """Correct the usage in events."""
        return with_cached_tokens(data, self.cached)

    def body(self, data: bytes) -> bytes:
        """Correct the usage and the routed experts of a unary answer."""
        data = with_cached_tokens(data, self.cached)
        if not (self.experts and (own := _experts(data))):
            return data
        return data.replace(own, _merged(own, self.experts), 1)


def prefill_splice(facts: Facts, reply: Reply) -> PrefillSplice | None:
    """The splice of an answer to a prompt that was computed with this reply. None if the decode
    engine's answer needs none."""
    experts = b"" if facts.stream else _experts(reply.body)
    if not experts and reply.body.find(TOLD) >= 0:
        return None
    return PrefillSplice(cached_in_prefill(reply.body), experts)


def _experts(body: bytes) -> bytes:
    start = body.find(EXPERTS)
    return b"" if start < 0 else body[start + len(EXPERTS) : body.find(b'"', start + len(EXPERTS))]


HEADER: Final = 128
"""Bytes before the rows: numpy pads the header to a multiple of 64."""
HEADER_TEXT: Final = 172
"""Characters of base64 that contain the header and one byte of the rows."""
MAGIC: Final = b"\x93NUMPY\x01\x00" + bytes((HEADER - 10, 0))

_COUNT = re.compile(rb"'shape': \(\d+")


def _merged(own: bytes, prompt: bytes) -> bytes:
    """`own` with its first rows replaced by those of `prompt`; `own` itself if the two differ in
    more than the number of rows.

    The text is not decoded, because it has up to a hundred megabytes: headers of the same length
    put equal rows at equal places.
    """
    end = len(prompt.rstrip(b"=")) // 4 * 4
    try:
        head, given = a2b_base64(own[:HEADER_TEXT]), a2b_base64(prompt[:HEADER_TEXT])
        rest = a2b_base64(prompt[end:])  # up to two bytes
        border = rest + a2b_base64(own[end : end + 4])[len(rest) :]
    except ValueError:
        return own
    is_alike = _form(head) == _form(given) and head.startswith(MAGIC)
    if not is_alike or len(given) == HEADER or len(prompt) > len(own):
        return own
    return b"".join(
        (
            b2a_base64(head[:HEADER] + given[HEADER:], newline=False),
            prompt[HEADER_TEXT:end],
            b2a_base64(border, newline=False),
            own[end + 4 :],
        )
    )


def _form(head: bytes) -> bytes:
    """A header without its number of rows and its padding."""
    return _COUNT.sub(b"", head[:HEADER]).rstrip()
