"""APIs whose streams have named events: /v1/responses and Anthropic's /v1/messages."""

from typing import Any

import orjson

from router.simulator.api.answer import Choice, Dialect, Piece, event_frame
from router.simulator.api.errors import ApiError
from router.simulator.api.grammar import CallReader

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
        failed = {"type": "internal_error", "message": error.document["error"]["message"]}
        return event_frame({"type": "error", "error": failed})

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
