"""The bytes that a simulated engine sends, built once: HTTP heads, SSE events, JSON replies.

Shapes follow vLLM 0.33 behind uvicorn (chunked encoding, one event per chunk).
"""

from typing import Any, Final

import orjson

MODEL: Final = "bench"
CREATED: Final = 1_760_000_000
COMPLETION_ID: Final = "chatcmpl-5f0c1c7b2f1d4a1e9d3b8a6c4e2f7d90"
# Words of equal length: every content event of a stream has the same size, about 230 bytes.
WORDS: Final = (" river", " stone", " cloud", " light", " grass", " ocean", " flame", " storm")
SERVER: Final = b"date: Sat, 21 Nov 2026 06:00:00 GMT\r\nserver: uvicorn\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
# Prefix of every prompt of a finite job; a router's own requests lack it.
JOB_MARK: Final = b"bench job prompt "
# Prefix of the warm-up's prompts, which no figure includes.
WARM_UP_MARK: Final = b"bench warm-up prompt "
REASONS: Final = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}

STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n"
    + SERVER
    + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def http_chunk(payload: bytes) -> bytes:
    """Frame `payload` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(body: Any) -> bytes:
    """One server-sent event as vLLM writes it."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def reply(status: int, body: bytes, content_type: bytes = b"application/json") -> bytes:
    """A whole response with a known length."""
    return b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\ncontent-type: %b\r\n\r\n%b" % (
        status,
        REASONS[status],
        SERVER,
        len(body),
        content_type,
        body,
    )


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Token counts in OpenAI's shape."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


def _envelope(choices: list[Any]) -> dict[str, Any]:
    return {
        "id": COMPLETION_ID,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "choices": choices,
    }


def _delta(delta: dict[str, Any], finish: str | None = None, ids: list[int] | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(_envelope([choice | {"token_ids": ids}]))


ROLE: Final = http_chunk(_delta({"role": "assistant", "content": ""}))
TOKENS: Final = tuple(http_chunk(_delta({"content": word})) for word in WORDS)

# The same where the request has `return_token_ids`.
ROLE_WITH_IDS: Final = http_chunk(
    event(
        _envelope([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        | {"prompt_token_ids": list(range(10_000, 10_100))}
    )
)
TOKENS_WITH_IDS: Final = tuple(
    http_chunk(_delta({"content": word}, ids=[20_000 + number]))
    for number, word in enumerate(WORDS)
)


def tokens(content_bytes: int | None) -> tuple[bytes, ...]:
    """The content events, with so many bytes of content each; None: a word, as `TOKENS`."""
    if content_bytes is None:
        return TOKENS
    return tuple(http_chunk(_delta({"content": word.ljust(content_bytes, ".")})) for word in WORDS)


LAST_TOKEN: Final = http_chunk(_delta({"content": WORDS[0]}, "length"))
DONE: Final = http_chunk(b"data: [DONE]\n\n") + LAST_CHUNK


def stream_tail(with_usage: bool, prompt: int, completion: int) -> bytes:
    """The end of a stream: the last token, the usage event if requested, `[DONE]`."""
    if not with_usage:
        return LAST_TOKEN + DONE
    counts = event(_envelope([]) | {"usage": usage(prompt, completion)})
    return LAST_TOKEN + http_chunk(counts) + DONE


def stream_events(tokens: int, with_usage: bool) -> int:
    """How many events a stream of `tokens` tokens has: role, tokens, usage, `[DONE]`."""
    return 1 + tokens + with_usage + 1


def completion(prompt: int, tokens: int, kv_transfer_params: Any = None) -> bytes:
    """A unary reply."""
    text = "".join(WORDS[i % len(WORDS)] for i in range(tokens))
    message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    body = _envelope([choice]) | {
        "object": "chat.completion",
        "usage": usage(prompt, tokens),
        "kv_transfer_params": kv_transfer_params,
    }
    return reply(200, orjson.dumps(body))


def failure(status: int, message: str) -> bytes:
    """An error in the shape of vLLM's."""
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return reply(status, orjson.dumps({"error": error}))


def models() -> bytes:
    """The reply to GET /v1/models."""
    card = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "vllm"}
    card |= {"root": MODEL, "parent": None, "max_model_len": 131072}
    return reply(200, orjson.dumps({"object": "list", "data": [card]}))


def metrics(running: int, waiting: int = 0) -> bytes:
    """The reply to GET /metrics: the gauges a router reads."""
    gauges = {
        "num_requests_running": running,
        "num_requests_waiting": waiting,
        "kv_cache_usage_perc": 0,
    }
    text = "".join(
        f'# TYPE vllm:{name} gauge\nvllm:{name}{{engine="0",model_name="{MODEL}"}} {float(value)}\n'
        for name, value in gauges.items()
    )
    return reply(200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")
