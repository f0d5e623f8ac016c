"""/v1/responses in OpenAI's format, with named and numbered events."""

from typing import Any

from router.simulator.api.choices import Piece
from router.simulator.api.dialect import Dialect, event_frame


class Responses(Dialect):
    at_once = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._number = 0
        self._item_id = f"msg_{self.id.removeprefix('resp_')}"

    def _event(self, kind: str, **rest: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event_frame({"type": kind, "sequence_number": number, **rest})

    def opening(self) -> bytes:
        """The first events, which unlike in chats are sent before the first token."""
        response = self._response("in_progress", [], None)
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event(
                    "response.output_item.added", output_index=0, item=self._item("in_progress", [])
                ),
                self._event("response.content_part.added", **place, part=_part("")),
            )
        )

    def piece(self, piece: Piece) -> bytes:
        return self._event(
            "response.output_text.delta",
            item_id=self._item_id,
            output_index=0,
            content_index=0,
            delta=piece.text,
            logprobs=[],
        )

    def closing(self) -> bytes:
        text = self.answer.choices[0].text
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        item = self._item("completed", [_part(text)])
        return b"".join(
            (
                self._event("response.output_text.done", **place, text=text, logprobs=[]),
                self._event("response.content_part.done", **place, part=_part(text)),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event("response.completed", response=self.whole()),
            )
        )

    def whole(self) -> dict[str, Any]:
        choice = self.answer.choices[0]
        status = "incomplete" if choice.finish == "length" else "completed"
        output = [self._item("completed", [_part(choice.text)])]
        return self._response(status, output, self._response_usage())

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        body = self.request.body
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": details,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": self.request.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": body.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": self.request.sampling.max_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": usage,
            "kv_transfer_params": self.answer.kv_params,
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
        }

    def _response_usage(self) -> dict[str, Any]:
        usage = self.answer.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": self.answer.cached},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
