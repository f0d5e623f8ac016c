"""What clients ask and engines answer in these tests."""

from typing import Any

import orjson

from tests.net.engine import Call, json_reply

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DONE",
    "EMBEDDINGS",
    "KV",
    "MESSAGES",
    "OK",
    "RESPONSES",
    "ROLE",
    "answer_remotely",
    "completion",
    "error_in",
    "event",
    "prefilled",
    "token",
]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
GENERATE = "/inference/v1/generate"

DONE = b"data: [DONE]\n\n"

KV = {"do_remote_prefill": True, "remote_host": "10.0.0.7", "remote_block_ids": [[1, 2, 3]]}


def completion(prompt: str = "hi", **more: Any) -> dict[str, Any]:
    """A request for a completion."""
    return {"model": "m", "prompt": prompt, **more}


STREAM = completion(stream=True)


def event(document: Any) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % orjson.dumps(document)


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
"""The first chunk of a chat completion."""

OK = json_reply({"choices": [{"text": "ok"}]})
"""A whole unary answer."""


def token(text: str, **more: Any) -> bytes:
    """A chunk of a completion."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}], **more})


def error_in(body: bytes) -> dict[str, Any]:
    """The error that a body ends with, and nothing behind it but `[DONE]`, where events have no
    names."""
    frame = body.removesuffix(DONE)
    assert body.endswith(DONE) or b"event: error\n" in frame, body
    assert frame.endswith(b"\n\n"), body
    error: dict[str, Any] = orjson.loads(frame[frame.rindex(b"data: ") + 6 :])["error"]
    return error


def prefilled(**more: Any) -> bytes:
    """A prefill engine's good reply."""
    return json_reply({"id": "x", "choices": [{"text": "t"}], "kv_transfer_params": KV, **more})


def answer_remotely(call: Call) -> None:
    """A prefill engine's script."""
    call.send(prefilled())
