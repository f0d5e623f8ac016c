"""/v1/messages in Anthropic's format. Its streams have named events and no [DONE]."""

from typing import Any

from router.simulator.api.choices import Piece
from router.simulator.api.dialect import Dialect, event_frame
from router.simulator.api.errors import ApiError

_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class Messages(Dialect):
    def opening(self) -> bytes:
        usage = {"input_tokens": self.answer.usage()["prompt_tokens"], "output_tokens": 0}
        start = {**self._message([], None, None), "usage": usage}
        block = {"type": "text", "text": ""}
        return event_frame({"type": "message_start", "message": start}) + event_frame(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def piece(self, piece: Piece) -> bytes:
        if not piece.text:
            return b""
        delta = {"type": "text_delta", "text": piece.text}
        return event_frame({"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self) -> bytes:
        reason, stop = self._reason()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        change = {"type": "message_delta", "delta": delta, "usage": self._message_usage()}
        return (
            event_frame({"type": "content_block_stop", "index": 0})
            + event_frame(change)
            + event_frame({"type": "message_stop"})
        )

    def failure(self, error: ApiError) -> bytes:
        what = error.document["error"]
        told = {"type": what["type"], "message": what["message"]}
        return event_frame({"type": "error", "error": told})

    def whole(self) -> dict[str, Any]:
        content = [{"type": "text", "text": self.answer.choices[0].text}]
        message = self._message(content, *self._reason())
        usage = self._message_usage()
        return {**message, "usage": usage, "kv_transfer_params": self.answer.kv_params}

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop: str | None
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.request.model,
            "stop_reason": reason,
            "stop_sequence": stop,
        }

    def _reason(self) -> tuple[str | None, str | None]:
        choice = self.answer.choices[0]
        if isinstance(choice.stop_reason, str):
            return "stop_sequence", choice.stop_reason
        return _REASONS.get(choice.finish or ""), None

    def _message_usage(self) -> dict[str, int]:
        usage = self.answer.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
        }
