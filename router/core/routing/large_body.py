"""Large bodies: which they are, and what routing needs to know of one that another process reads.

Reading JSON takes up to a hundred times longer per byte when it holds many small values, and holds
the interpreter's lock: neither a limit of bytes nor a thread keeps the event loop free. `digest`
runs in that other process (`net/limits/body_process.py`), `facts_of` in the router.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from router.core.errors import BadRequest
from router.core.plans.prefill import body_for_prefill
from router.core.prefix.cache_events import given_ids
from router.core.prefix.keys import prefix_keys
from router.core.values import MAX_N, Facts, PrefixKeys, Route
from router.core.wire import facts as reading
from router.core.wire.contents import has_media

__all__ = [
    "LARGE_BYTES",
    "LIGHT_BYTES",
    "MAX_VALUES",
    "SMALL_BYTES",
    "Digest",
    "digest",
    "facts_of",
    "is_large",
]

SMALL_BYTES: Final = 4 << 10
"""Bodies up to this size are read on the event loop whatever they hold: parsed they take 0.1 MB."""

LIGHT_BYTES: Final = 64 << 10
"""Bodies up to this size are read on the event loop, unless they are dense: 0.1 ms for a prompt."""

BYTES_PER_BRACKET: Final = 12
QUOTES_PER_BYTE: Final = 0.4
"""A body is dense if it has fewer bytes per opening bracket, or more quotes per byte: parsed it
takes up to 24 times its size (`[{},{},...]`), and up to 17 ms. Chats of one-word messages have 30
bytes per bracket, and tool definitions 0.25 quotes per byte."""

LARGE_BYTES: Final = 1 << 20
"""Bodies above this size are never read on the event loop: a prompt of so many bytes takes 4 ms,
base64 as long, and joining what its reads brought some more."""

FEW_VALUES: Final = 8192
"""Brackets and commas of a body between the two that is read on the event loop: 400 kB of English
prose have as many commas."""

MAX_VALUES: Final = 2_000_000
"""Brackets and commas of a body that is read at all, in about a second: a prompt of two million
token ids. 64 MiB of `{},` would take eight."""


FEW_MARKS: Final = 32
"""Of one kind. Those of a short conversation around a long prompt."""

MAX_SALT: Final = 256
"""Characters of a cache salt that is passed on; of a prompt with a longer one KV-cache events are
not asked. Keys and UUIDs have some 40."""

VALUE_MARKS: Final = (b",", b"[", b"{")
"""What stands before nearly every value of a JSON document."""


class Digest(NamedTuple):
    """What routing needs to know of a body."""

    summary: dict[str, Any]
    """JSON, of a size that does not depend on the body's, but for the prefix keys."""
    raw: bytes | None
    """The body without the keys that clients may not send; None if it had none."""
    prefill: bytes | None
    """The body of a prefill request; None where there will be none."""
    ids: bytes | None
    """The prompt's token ids, packed, if the client sent ids and they are used."""


def is_large(body: bytes) -> bool:
    """Whether reading a body would hold up the event loop, or take many times its size in memory;
    for sizes above SMALL_BYTES and up to LARGE_BYTES."""
    if len(body) <= LIGHT_BYTES:
        return _is_dense(body)
    left = FEW_VALUES + 1
    for mark in VALUE_MARKS:
        left -= _count(body, mark, left)
        if left <= 0:
            return True
    return False


def _count(body: bytes, mark: bytes, most: int) -> int:
    """How often it is there, up to `most`. Unlike bytes.count, which takes a millisecond, it skips
    from one to the next; and as far as they are few, as in a prompt that is prose, it copies
    nothing."""
    place = -1
    for count in range(FEW_MARKS):
        place = body.find(mark, place + 1)
        if place < 0:
            return count
    return len(body) - len(body.replace(mark, b"", most))


def _is_dense(body: bytes) -> bool:
    brackets = body.count(b"{") + body.count(b"[")
    is_nested = BYTES_PER_BRACKET * brackets > len(body)
    return is_nested or body.count(b'"') > QUOTES_PER_BYTE * len(body)


def _has_too_many(body: bytes) -> bool:
    return sum(map(body.count, VALUE_MARKS)) > MAX_VALUES


def digest(
    route: Route,
    content_type: bytes,
    body: bytes,
    prefill_from: int | None = None,
    *,
    wants_ids: bool = False,
) -> Digest:
    """Read a body. `prefill_from`: estimated tokens from which on a request may be prefilled
    remotely; None: none is. `wants_ids`: for KV-cache events. Raises BadRequest."""
    is_json = route.generates or b"json" in content_type.lower()
    if is_json and _has_too_many(body):
        raise BadRequest(f"The body holds more than {MAX_VALUES} values.", "body")
    facts = reading.read(route, content_type, body)
    keys = prefix_keys(facts)
    prefill, why_not = _prefill(facts, prefill_from)
    is_known = wants_ids and facts.route.generates and _has_usual_salt(facts)
    summary = {
        "model": facts.model,
        "stream": facts.stream,
        "tokens": facts.tokens,
        "rule": facts.rule,
        "direct_reason": facts.direct_reason or why_not,
        "text_bytes": facts.text_bytes,
        "learnable_bytes": facts.learnable_bytes,
        "keys": keys.keys,
        "ends": keys.ends,
        "body": _kept(facts),
        "has_media": not is_known or has_media(facts),
    }
    raw = None if facts.raw is body else facts.raw
    return Digest(summary, raw, prefill, given_ids(facts) if is_known else None)


def _has_usual_salt(facts: Facts) -> bool:
    """Whether its cache salt, if it has one, is of a size that is passed on."""
    salt = facts.body.get("cache_salt")
    return not isinstance(salt, str) or len(salt) <= MAX_SALT


def _kept(facts: Facts) -> dict[str, Any]:
    """The members that routing reads later, in a form that is small. `n` stands for all sequences:
    the prompts that they are of are left out."""
    body = facts.body
    kept: dict[str, Any] = {key: True for key in ("store", "background") if body.get(key)}
    priority = body.get("priority")
    if type(priority) is int:
        kept["priority"] = priority
    salt = facts.body.get("cache_salt")
    if isinstance(salt, str) and _has_usual_salt(facts):
        kept["cache_salt"] = salt
    if facts.sequences > 1:
        kept["n"] = min(facts.sequences, MAX_N)
    return kept


def _prefill(facts: Facts, prefill_from: int | None) -> tuple[bytes | None, str | None]:
    """The prefill request's body, or why there can be none: then none is asked for, even if the
    threshold has changed or a gateway wants it."""
    if not facts.route.generates or facts.direct_reason is not None:
        return None, None
    if prefill_from is None or facts.tokens < prefill_from:
        return None, "below_threshold"
    body = body_for_prefill(facts)
    return body, None if body is not None else "nested_too_deep"


def facts_of(
    route: Route,
    query: bytes,
    summary: dict[str, Any],
    raw: Sequence[bytes],
    prefill: Sequence[bytes],
    ids: bytes | None = None,
) -> Facts:
    """The facts that `digest` found. `raw` and `prefill` are bodies in pieces; the latter is empty
    where there is none."""
    pieces = _trimmed(raw) if route.generates else raw
    facts = Facts(
        route,
        summary["model"],
        summary["stream"],
        summary["tokens"],
        summary["rule"],
        summary["direct_reason"],
        pieces[-1],
        summary["body"],
        query,
        summary["text_bytes"],
    )
    facts.prefix = PrefixKeys(tuple(summary["keys"]), tuple(summary["ends"]))
    facts.lead = tuple(pieces[:-1])
    facts.prefill = tuple(prefill)
    facts.learnable_bytes = summary["learnable_bytes"]
    facts.ids, facts.has_media = ids, summary["has_media"]
    return facts


def _trimmed(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """Without pieces of white space behind the JSON object: the last one is to hold its end."""
    end = len(pieces)
    while end > 1 and pieces[end - 1].isspace():
        end -= 1
    return pieces[:end]
