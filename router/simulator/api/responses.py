"""/v1/responses in OpenAI's format, with named and numbered events."""

from typing import Any

from router.simulator.api.choices import Choice, Piece
from router.simulator.api.dialect import Dialect, event_frame
from router.simulator.api.errors import ApiError
from router.simulator.api.tools import CallReader

Event = dict[str, Any]


class _Message:
    """The output item with a text."""

    def __init__(self, choice: Choice, number: str) -> None:
        self._choice = choice
        self.id = f"msg_{number}"
        self._place = {"item_id": self.id, "output_index": 0, "content_index": 0}

    def begins(self, _piece: Piece) -> bool:
        return True

    def begin(self) -> list[Event]:
        return [{"type": "response.content_part.added", **self._place, "part": _part("")}]

    def add(self, piece: Piece) -> list[Event]:
        kind = "response.output_text.delta"
        return [{"type": kind, **self._place, "delta": piece.text, "logprobs": []}]

    def end(self) -> list[Event]:
        text = self._choice.text
        done = {"type": "response.output_text.done", **self._place, "text": text, "logprobs": []}
        return [done, {"type": "response.content_part.done", **self._place, "part": _part(text)}]

    def document(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "content": [] if status == "in_progress" else [_part(self._choice.text)],
            "role": "assistant",
            "status": status,
            "type": "message",
        }


class _FunctionCall:
    """The output item that calls a tool."""

    def __init__(self, call: CallReader, number: str) -> None:
        self._call = call
        self.id = f"fc_{number}"
        self._place = {"item_id": self.id, "output_index": 0}

    def begins(self, piece: Piece) -> bool:
        return piece.names_tool

    def begin(self) -> list[Event]:
        return []

    def add(self, piece: Piece) -> list[Event]:
        kind = "response.function_call_arguments.delta"
        return [{"type": kind, **self._place, "delta": piece.arguments}] if piece.arguments else []

    def end(self) -> list[Event]:
        kind, call = "response.function_call_arguments.done", self._call
        return [{"type": kind, **self._place, "arguments": call.arguments, "name": call.name}]

    def document(self, status: str) -> dict[str, Any]:
        return {
            "arguments": "" if status == "in_progress" else self._call.arguments,
            "call_id": self._call.id,
            "name": self._call.name,
            "type": "function_call",
            "id": self.id,
            "status": status,
        }


class Responses(Dialect):
    at_once = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._number = 0
        (choice, *_), number = self.answer.choices, self.id.removeprefix("resp_")
        self._text = _Message(choice, number)
        self._item = self._text if choice.call is None else _FunctionCall(choice.call, number)
        self._has_item = False

    def _frames(self, events: list[Event]) -> bytes:
        numbered = enumerate(events, self._number)
        self._number += len(events)
        return b"".join(
            event_frame({"type": event["type"], "sequence_number": number, **event})
            for number, event in numbered
        )

    def opening(self) -> bytes:
        """The first events, which unlike in chats are sent before the first token."""
        response = self._response("in_progress", [], None)
        kinds = ("response.created", "response.in_progress")
        return self._frames([{"type": kind, "response": response} for kind in kinds])

    def piece(self, piece: Piece) -> bytes:
        events = []
        if not self._has_item and self._item.begins(piece):
            self._has_item = True
            events = [self._item_event("added", "in_progress"), *self._item.begin()]
        return self._frames(events + (self._item.add(piece) if self._has_item else []))

    def closing(self) -> bytes:
        events: list[Event] = []
        if self._has_item:
            events = [*self._item.end(), self._item_event("done", "completed")]
        return self._frames([*events, {"type": "response.completed", "response": self.whole()}])

    def _item_event(self, what: str, status: str) -> Event:
        kind, item = f"response.output_item.{what}", self._item.document(status)
        return {"type": kind, "output_index": 0, "item": item}

    def failure(self, error: ApiError) -> bytes:
        """The event that OpenAI documents; vLLM 0.32 breaks the stream off instead."""
        message = error.document["error"]["message"]
        failed = {"code": "server_error", "message": message, "param": None}
        return self._frames([{"type": "error", **failed}])

    def whole(self) -> dict[str, Any]:
        """The response. A call that was cut off is a text, unless it has been streamed."""
        choice = self.answer.choices[0]
        status = "incomplete" if choice.finish == "length" else "completed"
        is_call = choice.whole_call is not None or self._has_item
        item = self._item if is_call else self._text
        return self._response(status, [item.document("completed")], self._response_usage())

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
