"""The language model and its tokenizer: the next token is a hash of all previous tokens.

A lost message, a wrong KV block or a duplicated first token therefore changes each following token,
and the same request has the same answer on any engine, however it was split between two. The model
knows nothing of time, batches or requests.

A token is four ASCII characters, or one other byte, without a vocabulary. Its id is the big-endian
number of its bytes, so encoding takes one `struct.unpack`, and decoding restores any text exactly.
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from zlib import crc32

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


def ends_within_character(tokens: Sequence[int]) -> bool:
    """Whether the text of these tokens, at least one, ends in an incomplete character."""
    return 0x80 <= tokens[-1] <= 0xFF and decode(tokens[-4:])[-1] == "\ufffd"


def in_vocabulary(token: object) -> bool:
    """Whether this is a token id that `encode` or the model could have produced."""
    if not isinstance(token, int) or isinstance(token, bool) or not 0 < token < VOCABULARY:
        return False
    piece = bytes_of(token)
    return token >= _SPECIAL or len(piece) == 1 or (0 not in piece and max(piece) < 0x80)


_CONSONANTS = "bcdfghjklmnprstvwxyz"
WORDS = tuple(
    int.from_bytes(f" {first}{vowel}{last}".encode(), "big")
    for first in _CONSONANTS
    for vowel in "aeiou"
    for last in _CONSONANTS
)
"""Generated words, each a single token (" kot"), so that generated text encodes to the same tokens
and the next turn of a chat finds its prefix in the cache."""

_LEAD = 0xC3
"""The first byte of a two-byte character. It is generated now and then, so that a text delta can be
empty and a first token can be half a character, as with real tokenizers."""
_CHOICES = 2048
"""2000 words, otherwise `_LEAD`: 1 in 43 tokens."""

_MARKER = re.compile(rb"<<eos:(\d+)>>")
_MARKER_START = b"<<eos:"


def words(count: int, random: Random) -> str:
    """A text of generated words, each of them one token behind a space."""
    return "".join(random.choice(WORDS).to_bytes(4, "big").decode() for _ in range(count))


class Language:
    """The next-token function of one model name."""

    def __init__(self, model: str, eos_one_in: int) -> None:
        self._start = crc32(model.encode())
        self._eos_one_in = eos_one_in

    def start(self, tokens: Sequence[int]) -> int:
        """The state after a whole prompt."""
        return crc32(pack(tokens), self._start)

    def after(self, state: int, token: int) -> int:
        """The state after one more token. A different token always gives a different state."""
        return crc32(token.to_bytes(4, "big"), state)

    def choose(self, state: int, last: int, *, end: bool) -> int:
        """The most likely next token. `end`: whether it may be the end of sequence."""
        mixed = (state ^ 0x5BD1E995) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        if last == _LEAD:
            return 0x80 | (mixed >> 40 & 0x3F)
        if end and self._eos_one_in and (mixed >> 36) % self._eos_one_in == 0:
            return EOS
        choice = (mixed >> 18) % _CHOICES
        return WORDS[choice] if choice < len(WORDS) else _LEAD


def forced_end(tokens: Sequence[int]) -> int | None:
    """The length of the sequence at which a `<<eos:N>>` in the prompt forces the end of sequence.

    The N tokens are counted from the last assistant header after the marker, or from the marker
    itself, never from the end of the prompt: an engine that gets the first generated token as part
    of its prompt must end at the same position.
    """
    if _MARKER_START not in pack(tokens).translate(None, b"\0"):
        return None
    pieces = [bytes_of(token) for token in tokens]
    markers = list(_MARKER.finditer(b"".join(pieces)))
    if not markers:
        return None
    ends = list(accumulate(map(len, pieces)))
    start = bisect_left(ends, markers[-1].end()) + 1
    if ASSISTANT in tokens[start:]:
        start = len(tokens) - list(reversed(tokens)).index(ASSISTANT)
    return start + int(markers[-1].group(1))
