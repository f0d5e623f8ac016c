"""/v1/messages in Anthropic's format. Its streams have named events and no [DONE]."""

from typing import Any

import orjson

from router.simulator.api.choices import Piece
from router.simulator.api.dialect import Dialect, event_frame
from router.simulator.api.errors import ApiError
from router.simulator.api.tools import CallReader

_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class Messages(Dialect):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._has_block = False

    def opening(self) -> bytes:
        usage = {"input_tokens": self.answer.usage()["prompt_tokens"], "output_tokens": 0}
        start = {**self._message([], None, None), "usage": usage}
        return event_frame({"type": "message_start", "message": start})

    def piece(self, piece: Piece) -> bytes:
        """A part of the one content block, which begins with the first part."""
        call, part, frames = piece.choice.call, piece.text, b""
        if call is not None:
            part = piece.arguments
        if not self._has_block and (part or piece.names_tool):
            self._has_block = True
            block = _text("") if call is None else _tool_use(call, {})
            frames = event_frame(
                {"type": "content_block_start", "index": 0, "content_block": block}
            )
        if part:
            kind, name = (
                ("text_delta", "text") if call is None else ("input_json_delta", "partial_json")
            )
            delta = {"type": kind, name: part}
            frames += event_frame({"type": "content_block_delta", "index": 0, "delta": delta})
        return frames

    def closing(self) -> bytes:
        reason, stop = self._reason()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        change = {"type": "message_delta", "delta": delta, "usage": self._message_usage()}
        end = event_frame({"type": "content_block_stop", "index": 0}) if self._has_block else b""
        return end + event_frame(change) + event_frame({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        told = {"type": "internal_error", "message": error.document["error"]["message"]}
        return event_frame({"type": "error", "error": told})

    def whole(self) -> dict[str, Any]:
        choice = self.answer.choices[0]
        call = choice.whole_call
        block = (
            _text(choice.text) if call is None else _tool_use(call, orjson.loads(call.arguments))
        )
        message = self._message([block], *self._reason())
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
        if choice.whole_call is not None and choice.finish == "stop":
            return "tool_use", None
        return _REASONS.get(choice.finish or ""), None

    def _message_usage(self) -> dict[str, int]:
        usage = self.answer.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
        }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_use(call: CallReader, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
