"""Messages between sibling replicas of the router: one line of JSON each.

A report contains the number of requests that a replica has on each engine, its own only and always
all, so that a lost report does no harm. A history contains prompts that engines have recently
computed for it; a lost one costs a prefix cache hit.
"""

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import orjson

from router.core.events import PrefixesHeld
from router.core.prefix.keys import CHUNK_TOKENS
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, Role

__all__ = [
    "MAX_LINE_BYTES",
    "PeerHistory",
    "PeerReport",
    "decode_message",
    "encode_history",
    "encode_report",
]

MAX_LINE_BYTES: Final = 64 << 10
"""Longest line in bytes that is accepted."""

SENT_BYTES: Final = 60_000
"""Longest line in bytes that is sent. In a report one engine takes about 50 bytes; the least busy
ones are left out."""

MAX_ENGINES: Final = 1024
"""Most engines in one line; see `Roster`."""

MAX_NAME: Final = 64
"""Longest name of a replica in characters."""

MAX_PROMPT_KEYS: Final = 2048
"""Most keys of one prompt that are sent: a million characters."""

HISTORY_KEYS: Final = 12_000
"""Most keys that are sent at a time: 200 kB. At four times a second that is about 800 prompts of
8,000 tokens."""

KEY_BYTES: Final = 12
"""Bytes of a key and its number of tokens."""

ROLES: Final = frozenset(Role)

MAX_COUNT: Final = 1 << 48
"""Upper bound for numbers of requests and tokens; larger values are invalid."""

MAX_NUMBER: Final = 1 << 63
"""Upper bound for the number of a report: nanoseconds since the host's start."""


@dataclass(frozen=True, slots=True)
class PeerReport:
    """One replica's own requests."""

    replica: str
    """A random name, chosen at the start."""
    number: int
    """Increases with each report of a replica; below 2**63."""
    loads: dict[Endpoint, tuple[int, int]]
    """Number of requests, and prompt tokens still to be computed, on each engine that has any."""


@dataclass(frozen=True, slots=True)
class PeerHistory:
    """Prompts that engines have computed for one replica."""

    replica: str
    scheme: str
    """Identifies how the keys are made; see `prefix.keys.scheme`."""
    held: tuple[PrefixesHeld, ...]


def encode_report(report: PeerReport) -> bytes:
    """The inverse of `decode`; at most SENT_BYTES long."""
    busiest = sorted(report.loads.items(), key=lambda item: item[1], reverse=True)
    engines: dict[str, list[int]] = {}
    size = 200
    for endpoint, load in busiest[:MAX_ENGINES]:
        name = _name(endpoint)
        size += len(name) + 48
        if size > SENT_BYTES:
            break
        engines[name] = list(load)
    return orjson.dumps({"replica": report.replica, "number": report.number, "engines": engines})


def encode_history(replica: str, scheme: str, news: Sequence[PrefixesHeld]) -> list[bytes]:
    """Lines with these prompts; if there are too many, the latest ones of each engine."""
    lines: list[bytes] = []
    held: dict[str, list[str]] = {}
    size = 0
    for name, prompt in _told(news):
        size += len(name) + len(prompt) + 8
        if held and size > SENT_BYTES:
            lines.append(_history_line(replica, scheme, held))
            held, size = {}, len(name) + len(prompt) + 200
        held.setdefault(name, []).append(prompt)
    return [*lines, _history_line(replica, scheme, held)] if held else lines


def _history_line(replica: str, scheme: str, held: dict[str, list[str]]) -> bytes:
    return orjson.dumps({"replica": replica, "keys": scheme, "held": held})


def _told(news: Sequence[PrefixesHeld]) -> Iterable[tuple[str, str]]:
    """Engines and prompts within the limits."""
    for each in news:
        left = HISTORY_KEYS // len(news)
        some: list[str] = []
        for prefix in reversed(each.prefixes):
            count = min(left, len(prefix.keys), MAX_PROMPT_KEYS)
            if not count:
                break
            left -= count
            numbers = *prefix.keys[:count], *prefix.ends[:count]
            some.append(b64encode(struct.pack(f"<{count}q{count}I", *numbers)).decode())
        for prompt in reversed(some):
            yield _name(each.endpoint), prompt


def decode_message(line: bytes) -> PeerReport | PeerHistory:
    """Parse a sibling's line. Raises ValueError, whose message says what is wrong."""
    try:
        found: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - of the bytes, not of a caller
    replica = _text(found, "replica")
    if "held" in found:
        scheme, held = _text(found, "keys"), _engines(found, "held")
        return PeerHistory(
            replica, scheme, tuple(_held(name, prompts) for name, prompts in held.items())
        )
    loads = {_endpoint(name): _load(load) for name, load in _engines(found, "engines").items()}
    return PeerReport(replica, _count(found.get("number"), MAX_NUMBER), loads)


def _text(found: dict[str, Any], member: str) -> str:
    value = found.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise ValueError(f"{member}: must be a text of up to {MAX_NAME} characters")
    return value


def _engines(found: dict[str, Any], member: str) -> dict[str, Any]:
    value = found.get(member)
    if not isinstance(value, dict) or len(value) > MAX_ENGINES:
        raise ValueError(f"{member}: must be an object with up to {MAX_ENGINES} members")
    return value


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.role} {endpoint.url}"


def _endpoint(name: str) -> Endpoint:
    role, _, url = name.partition(" ")
    if role not in ROLES:
        raise ValueError("engines: names must be like `decode http://10.0.0.1:8000`")
    return Endpoint(url, Role(role))


def _load(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("engines: each must have a list of requests and pending tokens")
    return _count(value[0]), _count(value[1])


def _held(name: str, prompts: Any) -> PrefixesHeld:
    if not isinstance(prompts, list):
        raise ValueError("held: each engine must have a list of prompts")  # noqa: TRY004 - as above
    return PrefixesHeld(_endpoint(name), tuple(map(_prompt, prompts)))


def _prompt(text: Any) -> PrefixKeys:
    if not isinstance(text, str):
        raise ValueError("held: prompts must be texts")  # noqa: TRY004 - as above
    data = b64decode(text, validate=True)
    count, rest = divmod(len(data), KEY_BYTES)
    if rest or not 0 < count <= MAX_PROMPT_KEYS:
        raise ValueError(f"held: a prompt must have 1 to {MAX_PROMPT_KEYS} keys")
    numbers = struct.unpack(f"<{count}q{count}I", data)
    keys, ends = numbers[:count], numbers[count:]
    if ends[-1] > count * CHUNK_TOKENS or any(after < end for end, after in pairwise(ends)):
        raise ValueError("held: a prompt's tokens must grow, not faster than chunks allow")
    return PrefixKeys(keys, ends)


def _count(value: Any, limit: int = MAX_COUNT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise ValueError("counts must be whole numbers, not negative")
    return value
