"""Large bodies, which another process parses: which bodies are large, and what that process
returns.

Parsing JSON with many small values takes up to a hundred times longer per byte, and holds the
interpreter's lock, so neither a size limit nor a thread keeps the event loop responsive. `digest`
runs in the other process (`net/processes/body_process.py`), `facts_of` in the router.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from router.core.errors import BadRequest
from router.core.kv_events import given_ids
from router.core.plans.prefill import body_for_prefill
from router.core.prefix.keys import prefix_keys
from router.core.request_facts import MAX_N, Facts, ImageRules, PrefixKeys
from router.core.values import Route
from router.core.wire import facts as reading
from router.core.wire.contents import has_media
from router.core.wire.media import SHAPING, MediaParts, media_parts

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
"""Bodies up to this size in bytes are always parsed on the event loop: they take at most 0.1 MB
parsed."""

LIGHT_BYTES: Final = 64 << 10
"""Bodies up to this size in bytes are parsed on the event loop unless they are dense: 0.1 ms for a
prompt."""

BYTES_PER_BRACKET: Final = 12
QUOTES_PER_BYTE: Final = 0.4
"""A body is dense if it has fewer bytes per opening bracket, or more quotes per byte. Parsing it
takes up to 24 times its size in memory (`[{},{},...]`) and up to 17 ms. Chats of one-word messages
have 30 bytes per bracket, and tool definitions have 0.25 quotes per byte."""

LARGE_BYTES: Final = 1 << 20
"""Bodies above this size in bytes are never parsed on the event loop: a prompt or base64 of this
size takes 4 ms, plus the time to join its pieces."""

FEW_VALUES: Final = 8192
"""Most brackets and commas in a body between LIGHT_BYTES and LARGE_BYTES that is parsed on the
event loop; 400 kB of English prose have as many commas."""

MAX_VALUES: Final = 2_000_000
"""Most brackets and commas in a body that is accepted: a prompt of two million token ids, parsed in
about a second. 64 MiB of `{},` would take eight."""


FEW_MARKS: Final = 32
"""Number of marks of one kind in a short conversation around a long prompt."""

MAX_SALT: Final = 256
"""Longest cache salt in characters that is returned. For a prompt with a longer one, KV-cache
events are not used. Keys and UUIDs have about 40."""

MAX_SHAPING: Final = 1024
"""Most bytes of what shapes media that are returned. With more of it they are not encoded apart."""

VALUE_MARKS: Final = (b",", b"[", b"{")
"""Bytes that precede nearly every value of a JSON document."""


class Digest(NamedTuple):
    """What routing needs of a body."""

    summary: dict[str, Any]
    """A JSON object whose size does not depend on the body's, except for the prefix keys."""
    raw: bytes | None
    """The body without the keys that clients may not send; None if it had none."""
    prefill: bytes | None
    """The body of the prefill request; None if there will be none."""
    ids: bytes | None
    """The packed token ids of the prompt, if the client sent ids and they are needed."""
    media: MediaParts
    """Its images and the like, if they are needed."""


MAX_ID: Final = 128
"""Longest id of a response in characters that is returned."""


def is_large(body: bytes | memoryview) -> bool:
    """Whether parsing a body would block the event loop or take many times its size in memory. For
    sizes above SMALL_BYTES and up to LARGE_BYTES. A view begins behind the head of its request,
    whose few marks are counted as well."""
    if len(body) <= LIGHT_BYTES:
        return _is_dense(bytes(body))
    data: bytes = body if isinstance(body, bytes) else body.obj  # type: ignore[assignment]
    left = FEW_VALUES + 1
    for mark in VALUE_MARKS:
        left -= _count(data, mark, left)
        if left <= 0:
            return True
    return False


def _count(body: bytes, mark: bytes, most: int) -> int:
    """Count a mark, up to `most`. Unlike bytes.count, which takes a millisecond, it skips from one
    to the next, and for prose, which has few, it copies nothing."""
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
    wants_media: bool = False,
    image_rules: ImageRules | None = None,
) -> Digest:
    """Parse a body. `prefill_from`: estimated tokens from which on a request may be prefilled
    remotely; None: never. `wants_ids`: whether token ids are needed for KV-cache events.
    `wants_media`: whether encode engines may get the images. Raises BadRequest."""
    is_json = route.generates or b"json" in content_type.lower()
    if is_json and _has_too_many(body):
        raise BadRequest(f"The body holds more than {MAX_VALUES} values.", "body")
    facts = reading.read(route, content_type, body, image_rules=image_rules)
    keys = prefix_keys(facts)
    prefill, why_not = _prefill(facts, prefill_from)
    is_known = wants_ids and facts.route.generates and _has_usual_salt(facts)
    media = media_parts(facts) if wants_media else {}
    # What `media_parts` was able to write may be nested too deep for the summary.
    shaping = {key: orjson.dumps(facts.body[key]) for key in SHAPING if media and key in facts.body}
    if sum(map(len, shaping.values())) > MAX_SHAPING:
        shaping, media = {}, {}
    summary = {
        "model": facts.model,
        "stream": facts.stream,
        "tokens": facts.tokens,
        "rule": facts.rule,
        "direct_reason": facts.direct_reason or why_not,
        "forces_tool": facts.forces_tool,
        "text_bytes": facts.text_bytes,
        "learnable_bytes": facts.learnable_bytes,
        "media_tokens": facts.media_tokens,
        "keys": keys.keys,
        "ends": keys.ends,
        "body": _kept(facts) | {key: orjson.Fragment(own) for key, own in shaping.items()},
        "media": [(key, len(part)) for key, part in media.items()],
        "has_media": not is_known or has_media(facts),
    }
    raw = None if facts.raw is body else facts.raw
    return Digest(summary, raw, prefill, given_ids(facts) if is_known else None, media)


def _has_usual_salt(facts: Facts) -> bool:
    """Whether its cache salt, if any, is short enough to be returned."""
    salt = facts.body.get("cache_salt")
    return not isinstance(salt, str) or len(salt) <= MAX_SALT


def _kept(facts: Facts) -> dict[str, Any]:
    """The members that routing reads later, in a small form. `n` is replaced by the number of all
    sequences, because the prompts are left out."""
    body = facts.body
    kept: dict[str, Any] = {key: True for key in ("store", "background") if body.get(key)}
    for key in ("previous_response_id", "request_id"):
        name = body.get(key)
        if isinstance(name, str) and len(name) <= MAX_ID:
            kept[key] = name
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
    """The prefill request's body, or the reason why there is none; then the request is never
    prefilled remotely, even if the threshold changes or a gateway asks for it."""
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
    media: Sequence[bytes] = (),
) -> Facts:
    """The facts that `digest` found. `raw` and `prefill` are bodies in pieces; `prefill` is empty
    if there is none. `media`: its parts."""
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
    facts.forces_tool = summary["forces_tool"]
    facts.lead = tuple(pieces[:-1])
    facts.prefill = tuple(prefill)
    facts.learnable_bytes = summary["learnable_bytes"]
    facts.media_tokens = summary["media_tokens"]
    facts.ids, facts.has_media = ids, summary["has_media"]
    facts.media = dict(zip((key for key, _ in summary["media"]), media, strict=True))
    return facts


def _trimmed(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """Drop pieces of white space after the JSON object, so that the last piece contains its end."""
    end = len(pieces)
    while end > 1 and pieces[end - 1].isspace():
        end -= 1
    return pieces[:end]
