"""Reads token counts from an answer's `usage` without parsing the answer."""

import re

__all__ = [
    "TAIL_BYTES",
    "generated_tokens",
    "is_usage_only",
    "prefilled_tokens",
    "prompt_tokens",
]

TAIL_BYTES = 2048
"""Bytes at the end of an answer that are searched: more than vLLM's longest usage object."""

_PROMPT = re.compile(rb'"(?:prompt|input)_tokens":\s*(\d{1,9})')
_READ = re.compile(rb'"cache_read_input_tokens":\s*(\d{1,9})')
_CREATED = re.compile(rb'"cache_creation_input_tokens":\s*(\d{1,9})')
_GENERATED = re.compile(rb'"(?:completion|output)_tokens":\s*(\d{1,9})')


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
