"""Reads and corrects token counts in an answer's `usage` without parsing the answer."""

import re

__all__ = [
    "TAIL_BYTES",
    "USAGE",
    "cached_tokens",
    "generated_tokens",
    "is_usage_only",
    "prefilled_tokens",
    "prompt_tokens",
    "with_cached_tokens",
]

USAGE = b'"usage"'
"""Found in each event that has usage. Within generated text, quotes are escaped."""

TAIL_BYTES = 2048
"""Bytes at the end of an answer that are searched: more than vLLM's longest usage object."""

_PROMPT = re.compile(rb'"(?:prompt|input)_tokens":\s*(\d{1,9})')
_READ = re.compile(rb'"cache_read_input_tokens":\s*(\d{1,9})')
_CREATED = re.compile(rb'"cache_creation_input_tokens":\s*(\d{1,9})')
_GENERATED = re.compile(rb'"(?:completion|output)_tokens":\s*(\d{1,9})')

_OBJECT = re.compile(rb'"usage":\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*+\})*+\}')
"""A usage object: the counts in it are two objects deep (multimodal_tokens)."""
_INPUT = re.compile(rb'("input_tokens":\s*)(\d{1,9})')
_STATED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)":\s*(\d{1,9})')
_CACHED = re.compile(rb'("cached_tokens(?:_per_turn":\s*\[|":)\s*)\d{1,9}')
"""In `prompt_tokens_details` and `input_tokens_details`. /v1/responses repeats it as a list."""


def generated_tokens(end: bytes) -> int:
    """The generated tokens, of all choices, from the end of an answer; 0 if not given.

    Named completion_tokens in chats and completions, output_tokens in /v1/responses and
    /v1/messages. Streams have it in their last events, if requested (stream_options.include_usage).
    """
    return _number(_GENERATED, end)


def prompt_tokens(end: bytes) -> int:
    """The prompt's tokens from the end of an answer; 0 if not given.

    In /v1/messages cached tokens are not part of input_tokens (vllm#40912); in other APIs they are
    included.
    """
    tokens = _number(_PROMPT, end)
    if end.find(b'"cache_') >= 0:
        tokens += _number(_READ, end) + _number(_CREATED, end)
    return tokens


def prefilled_tokens(body: bytes) -> int:
    """The same from a prefill engine's reply, in which the usage is followed by the KV cache's
    block ids, one per sixteen tokens."""
    place = body.rfind(b'"usage"')
    return 0 if place < 0 else prompt_tokens(body[place : place + TAIL_BYTES])


def _number(pattern: re.Pattern[bytes], end: bytes) -> int:
    tail = end[-TAIL_BYTES:]
    # Start at "usage" if it is found: a regular expression is slow to search what comes before.
    found = pattern.search(tail, tail.rfind(b'"usage"'))
    return int(found[1]) if found else 0


def is_usage_only(event: bytes) -> bool:
    """Whether an event has usage and no token."""
    return event.find(b'"choices":[]') >= 0


def cached_tokens(body: bytes) -> int | None:
    """The prompt's cached tokens according to an answer; None if it does not state them."""
    usage = _OBJECT.search(body, max(0, body.rfind(USAGE)))
    found = usage and _STATED.search(usage[0])
    return int(found[1]) if found else None


def with_cached_tokens(data: bytes, cached: int | None) -> bytes:
    """A unary answer or complete events, with `cached` tokens wherever usage states cached ones;
    null for None."""
    return _OBJECT.sub(lambda found: _with_cached(found[0], cached), data)


def _with_cached(usage: bytes, cached: int | None) -> bytes:
    value = b"null" if cached is None else b"%d" % cached
    if read := _READ.search(usage):
        # In /v1/messages the tokens that were not cached are counted in input_tokens.
        change = int(read[1]) - (cached or 0)
        usage = usage[: read.start(1)] + value + usage[read.end(1) :]
        usage = _INPUT.sub(lambda own: b"%b%d" % (own[1], int(own[2]) + change), usage)
    return _CACHED.sub(rb"\g<1>" + value, usage)
