"""API keys by name: whose key a request has. Only hashes of the keys are kept.

A file of them has a line `NAME KEY` for each; KEY is the key itself or `sha256:` and its hash in
hexadecimal. Behind it may stand limits of the name: `requests=600 tokens=1000000` (per minute) and
`streams=50` (at a time). Empty lines and those that begin with # count for nothing.
"""

import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from typing import Final

from router.core.errors import Unauthorized
from router.core.limits.key_limits import KeyLimits

__all__ = ["ApiKeys", "check_key", "first_key", "presented_key"]

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""It appears in logs and as a metric's label."""

HASHED: Final = "sha256:"
DIGEST_BYTES: Final = hashlib.sha256().digest_size

LIMIT: Final = re.compile(r"(requests|tokens|streams)=([1-9][0-9]{0,14})")

MIN_CHARACTERS: Final = 16
"""Of a key: whoever tries a thousand a second needs longer than the universe lasts for a random one
of so many letters."""


class ApiKeys:
    """The keys of a file's content. Raises ValueError, which names the line and quotes no key."""

    def __init__(self, text: str) -> None:
        self._names: dict[bytes, str] = {}
        self.limits: dict[str, KeyLimits] = {}
        """By name."""
        for number, words in _entries(text):
            self._add(words, number)
        if not self._names:
            raise ValueError("it holds no key")

    def _add(self, words: list[str], number: int) -> None:
        if len(words) < 2 or not NAME.fullmatch(words[0]):
            raise ValueError(f"line {number} is not a name and a key")
        name, key = words[:2]
        limits = _limits(words[2:], number)
        if self.limits.setdefault(name, limits) != limits:
            raise ValueError(f"line {number}: {name} has other limits above")
        if key.startswith(HASHED):
            digest = _unhex(key.removeprefix(HASHED))
            if digest is None:
                raise ValueError(f"line {number}: behind sha256: come 64 hexadecimal digits")
        elif len(key) < MIN_CHARACTERS:
            raise ValueError(f"line {number}: a key has at least {MIN_CHARACTERS} characters")
        else:
            digest = hashlib.sha256(key.encode()).digest()
        if digest in self._names:
            raise ValueError(f"line {number}: this key is given twice")
        self._names[digest] = name

    @property
    def names(self) -> frozenset[str]:
        """Whose keys there are."""
        return frozenset(self.limits)

    def name_of(self, key: bytes | None) -> str | None:
        """Whose key this is; None if it is nobody's. It takes as long for every key."""
        if key is None:
            return None
        digest = hashlib.sha256(key).digest()
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found


def first_key(text: str) -> str | None:
    """The first key of a file's content that is there itself, for who asks with it; None if only
    hashes are there."""
    keys = (words[1] for _, words in _entries(text))
    return next((key for key in keys if not key.startswith(HASHED)), None)


def _entries(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each line that counts, with its number."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def _limits(words: list[str], number: int) -> KeyLimits:
    """Those that stand behind a key."""
    found: dict[str, int] = {}
    for word in words:
        match = LIMIT.fullmatch(word)
        if match is None or match[1] in found:
            # The word is not quoted: it may be a part of a key.
            raise ValueError(
                f"line {number}: behind a key stand requests=N, tokens=N or streams=N, once each"
            )
        found[match[1]] = int(match[2])
    requests, tokens = found.get("requests"), found.get("tokens")
    return KeyLimits(
        None if requests is None else float(requests),
        None if tokens is None else float(tokens),
        found.get("streams"),
    )


def _unhex(text: str) -> bytes | None:
    try:
        digest = binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        return None
    return digest if len(digest) == DIGEST_BYTES else None


def check_key(keys: ApiKeys, fields: Mapping[bytes, bytes]) -> str:
    """Whose key a request has; `fields` are its headers. Raises Unauthorized."""
    key = presented_key(fields)
    name = keys.name_of(key)
    if name is None:
        problem = "The API key is not valid." if key else "An API key is required."
        raise Unauthorized(f"{problem} Send it as `Authorization: Bearer KEY`.")
    return name


def presented_key(fields: Mapping[bytes, bytes]) -> bytes | None:
    """The key in a request's headers, by lower-case name: as OpenAI's clients send it (a bearer
    token) or Anthropic's (x-api-key)."""
    scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return fields.get(b"x-api-key")
