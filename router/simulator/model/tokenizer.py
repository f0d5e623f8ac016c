"""A tokenizer without a vocabulary: a token is four ASCII characters, or one other byte.

The id of a token is the big-endian number of its bytes, so encoding takes one `struct.unpack`, and
decoding restores any text exactly.
"""

import re
import struct
from collections.abc import Iterable, Sequence

CHARACTERS_PER_TOKEN = 4
"""Roughly what real tokenizers reach for English text."""

_SPECIAL = 1 << 31
"""Ids of four ASCII bytes are below this; special tokens begin here."""

_NUL = _SPECIAL
BOS = _SPECIAL + 1
"""Opens a turn of a chat."""
EOS = _SPECIAL + 2
"""Ends a turn and a generation."""
ASSISTANT = _SPECIAL + 3
"""Opens the assistant's turn: generation begins behind it."""

VOCABULARY = ASSISTANT + 1

_RUNS = re.compile(rb"[\x01-\x7f]+|[\x00\x80-\xff]+")


def encode(text: str) -> list[int]:
    """Encode a text. Lone surrogates, which JSON can contain, become question marks."""
    data = text.encode("utf-8", "replace")
    tokens: list[int] = []
    for run in _RUNS.finditer(data):
        piece = run.group()
        if 0 < piece[0] < 0x80:
            tokens.extend(_encode_ascii(piece))
        else:
            tokens.extend(byte or _NUL for byte in piece)
    return tokens


def _encode_ascii(run: bytes) -> Sequence[int]:
    whole, rest = divmod(len(run), CHARACTERS_PER_TOKEN)
    tokens = struct.unpack_from(f">{whole}I", run)
    return (*tokens, int.from_bytes(run[-rest:], "big")) if rest else tokens


def pack(tokens: Sequence[int]) -> bytes:
    """Tokens as big-endian 32-bit numbers, for hashing."""
    return struct.pack(f">{len(tokens)}I", *tokens)


def bytes_of(token: int) -> bytes:
    """The bytes of a token; empty for special tokens."""
    if token >= _SPECIAL:
        return b"\0" if token == _NUL else b""
    return token.to_bytes((token.bit_length() + 7) // 8, "big")


def decode(tokens: Iterable[int]) -> str:
    """Decode tokens. Special tokens are omitted, invalid UTF-8 is replaced."""
    return b"".join(map(bytes_of, tokens)).decode("utf-8", "replace")


def in_vocabulary(token: object) -> bool:
    """Whether this is a token id that `encode` or the model could have produced."""
    if not isinstance(token, int) or isinstance(token, bool) or not 0 < token < VOCABULARY:
        return False
    piece = bytes_of(token)
    return token >= _SPECIAL or len(piece) == 1 or (0 not in piece and max(piece) < 0x80)
