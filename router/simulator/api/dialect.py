"""What the formats of the four APIs have in common."""

from typing import Any

import orjson

from router.simulator.api.choices import Answer, Piece
from router.simulator.api.errors import ApiError, stream_frame

DONE = b"data: [DONE]\n\n"


def data_frame(document: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def event_frame(document: dict[str, Any]) -> bytes:
    """A server-sent event named after its type."""
    name: str = document["type"]
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"


class Dialect:
    """Writes one answer, as a whole or as a stream of frames."""

    at_once = False
    """Whether `opening` is sent before the first token."""

    def __init__(self, answer: Answer, answer_id: str, created: int, details: bool) -> None:
        self.answer = answer
        self.request = answer.request
        self.id = answer_id
        self.created = created
        self._details = details

    def opening(self) -> bytes:
        """What is sent before the first token."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        raise NotImplementedError

    def closing(self) -> bytes:
        """What is sent after the last token."""
        raise NotImplementedError

    def failure(self, error: ApiError) -> bytes:
        """The end of a failed stream."""
        return stream_frame(error) + DONE

    def whole(self) -> dict[str, Any]:
        raise NotImplementedError

    def usage(self, *, stream: bool = False) -> dict[str, Any]:
        """The usage. In a stream vLLM omits null members; details are null if no tokens were
        cached."""
        usage: dict[str, Any] = dict(self.answer.usage())
        cached = self.answer.cached if self._details else 0
        details = {"cached_tokens": cached} if cached else None
        if details is not None or not stream:
            usage["prompt_tokens_details"] = details
        if not stream:
            usage["completion_tokens_details"] = None
        return usage

    def token_ids(self, tokens: list[int]) -> list[int] | None:
        return tokens if self.request.return_token_ids else None
