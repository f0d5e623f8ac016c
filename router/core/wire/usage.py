"""Reads the generated tokens out of an answer's `usage`, without parsing the answer."""

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
    """The generated tokens of an answer with this end, of all its choices; 0 if it does not say.

    Chat and completions call them completion_tokens, /v1/responses and /v1/messages output_tokens.
    Streams say so in their last events, if they were asked to (stream_options.include_usage).
    """
    return _number(_GENERATED, end)


def prompt_tokens(end: bytes) -> int:
    """The tokens of the prompt that an answer with this end had; 0 if it does not say.

    /v1/messages has cached ones beside its input_tokens (vllm#40912), other APIs among them.
    """
    tokens = _number(_PROMPT, end)
    if end.find(b'"cache_') >= 0:
        tokens += _number(_READ, end) + _number(_CREATED, end)
    return tokens


def prefilled_tokens(body: bytes) -> int:
    """The same of a whole reply of a prefill engine: behind its usage it names the blocks of the KV
    cache, one for sixteen tokens."""
    place = body.rfind(b'"usage"')
    return 0 if place < 0 else prompt_tokens(body[place : place + TAIL_BYTES])


def _number(pattern: re.Pattern[bytes], end: bytes) -> int:
    tail = end[-TAIL_BYTES:]
    # From there on if it is there: a regular expression takes long to read what comes before.
    found = pattern.search(tail, tail.rfind(b'"usage"'))
    return int(found[1]) if found else 0


def is_usage_only(event: bytes) -> bool:
    """Whether an event of a stream tells the usage and carries no token."""
    return event.find(b'"choices":[]') >= 0
