"""API keys: maps the key of a request to a name. Only hashes of the keys are kept.

A key file has a line `NAME KEY` for each key; KEY is the key itself, or `sha256:` and its hash in
hexadecimal. Limits of the name may follow: `requests=600 tokens=1000000` (per minute) and
`streams=50` (at a time). Empty lines and lines that begin with # are ignored.
"""

import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from typing import Final

from router.core.errors import Unauthorized
from router.core.limits.key_limits import KeyLimits

__all__ = ["KEY_HEADERS", "ApiKeys", "check_key", "first_key", "presented_key"]

KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""The headers in which a client may send its key."""

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Restricted, because names appear in logs and as a metric's label."""

HASHED: Final = "sha256:"
DIGEST_BYTES: Final = hashlib.sha256().digest_size

LIMIT: Final = re.compile(r"(requests|tokens|streams)=([1-9][0-9]{0,14})")

MIN_CHARACTERS: Final = 16
"""Minimum length of a key: at a thousand guesses a second, a random key of so many letters outlasts
the universe."""


class ApiKeys:
    """The keys in the text of a key file. Raises ValueError, which names the line and quotes no
    key."""

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
        """The names that have a key."""
        return frozenset(self.limits)

    def name_of(self, key: bytes | None) -> str | None:
        """The name of a key; None if it is unknown. Takes the same time for every key."""
        if key is None:
            return None
        digest = hashlib.sha256(key).digest()
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found


def first_key(text: str) -> str | None:
    """The first key in a key file that is not a hash, for commands that authenticate with it; None
    if there are only hashes."""
    keys = (words[1] for _, words in _entries(text))
    return next((key for key in keys if not key.startswith(HASHED)), None)


def _entries(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and words of each line that is not empty or a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def _limits(words: list[str], number: int) -> KeyLimits:
    """Parse the limits that follow a key. Raises ValueError."""
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
    """The name of the API key in a request's headers, `fields`. Raises Unauthorized."""
    key = presented_key(fields)
    name = keys.name_of(key)
    if name is None:
        problem = "The API key is not valid." if key else "An API key is required."
        raise Unauthorized(f"{problem} Send it as `Authorization: Bearer KEY`.")
    return name


def presented_key(fields: Mapping[bytes, bytes]) -> bytes | None:
    """The API key in a request's headers (names in lower case): a bearer token, as OpenAI's clients
    send it, or x-api-key, as Anthropic's do; None if there is neither."""
    scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return fields.get(b"x-api-key")
