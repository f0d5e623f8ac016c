"""OpenAI's formats with unnamed events: chat completions, completions and audio, with the keys of
vLLM 0.32.
"""

import math
from collections.abc import Sequence
from typing import Any

from router.simulator.api.answer import DONE, Choice, Dialect, Piece, data_frame
from router.simulator.api.prompts import seconds_of
from router.simulator.model.language import WORDS, bytes_of


def _shown(token: int) -> str:
    return bytes_of(token).decode("utf-8", "replace")


def _logprob(token: int) -> float:
    return -(token % 997) / 1000


def _alternatives(token: int, count: int) -> list[tuple[int, float]]:
    """The token itself first, then unlikelier words."""
    others = [WORDS[(token + place) % len(WORDS)] for place in range(1, count)]
    return [(token, _logprob(token)), *((word, -2.0 - word % 7) for word in others)][:count]


def chat_logprobs(tokens: Sequence[int], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {
        "content": [
            {
                **_entry(token, _logprob(token)),
                "top_logprobs": [_entry(*other) for other in _alternatives(token, top)],
            }
            for token in tokens
        ]
    }


def _entry(token: int, logprob: float) -> dict[str, Any]:
    return {"token": _shown(token), "logprob": logprob, "bytes": list(bytes_of(token))}


def completion_logprobs(tokens: Sequence[int], top: int, offset: int) -> dict[str, Any]:
    """The `logprobs` of a completions choice whose text begins at `offset`."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(_shown(token))
    tops = [{_shown(word): value for word, value in _alternatives(token, top)} for token in tokens]
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(token) for token in tokens],
        "tokens": [_shown(token) for token in tokens],
        "top_logprobs": tops if top else [None] * len(tokens),
    }


_FINGERPRINT = "vllm-0.32.0-simulator"
_NO_TRANSFER = {"ec_transfer_params": None, "metrics": None}


class _OpenAI(Dialect):
    """What both have in common."""

    kind = ""
    chunk_kind = ""

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def piece(self, piece: Piece) -> bytes:
        document = self._head(self.chunk_kind)
        document["choices"] = [self._choice(piece)]
        if self.request.continuous_usage and self.request.include_usage:
            document["usage"] = self.usage(stream=True)
        if not self.request.include_usage and self.answer.complete:
            document["system_fingerprint"] = _FINGERPRINT
        return data_frame(document)

    def closing(self) -> bytes:
        if not self.request.include_usage:
            return DONE
        document = self._head(self.chunk_kind)
        document |= {"choices": [], "usage": self.usage(stream=True)}
        return data_frame({**document, "system_fingerprint": _FINGERPRINT}) + DONE

    def _whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **self._head(self.kind),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": self.usage(),
        }


class Chat(_OpenAI):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> bytes:
        return b"".join(data_frame(self._role(choice)) for choice in self.answer.choices)

    def _role(self, choice: Choice) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        head = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {
            **self._head(self.chunk_kind),
            "choices": [head],
            "prompt_token_ids": self.token_ids(choice.sequence.prompt.tokens),
            "prompt_text": None,
        }

    def piece(self, piece: Piece) -> bytes:
        """Nothing, while the name of a tool is incomplete; as vLLM, unless a token has its own
        data."""
        is_silent = self._delta(piece) == {} and piece.choice.finish is None
        if is_silent and self.request.logprobs is None and not self.request.return_token_ids:
            return b""
        return super().piece(piece)

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": piece.choice.index,
            "delta": self._delta(piece),
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": _finish(piece.choice),
        }
        if piece.choice.finish is not None:
            choice["stop_reason"] = piece.choice.stop_reason
        choice["token_ids"] = self.token_ids(piece.tokens)
        return choice

    def _delta(self, piece: Piece) -> dict[str, Any]:
        call = piece.choice.call
        if call is None:
            return {"content": piece.text}
        if not (piece.names_tool or piece.arguments):
            return {}
        part: dict[str, Any] = {"id": call.id, "type": "function"} if piece.names_tool else {}
        function = {"name": call.name} if piece.names_tool else {}
        if piece.arguments:
            function["arguments"] = piece.arguments
        return {"content": None, "tool_calls": [{**part, "index": 0, "function": function}]}

    def _logprobs(self, tokens: list[int]) -> dict[str, Any] | None:
        top = self.request.logprobs
        return chat_logprobs(tokens, top) if top is not None else None

    def whole(self) -> dict[str, Any]:
        return {
            **self._whole([self._message(choice) for choice in self.answer.choices]),
            "prompt_logprobs": None,
            "prompt_token_ids": self.token_ids(list(self.request.prompts[0])),
            "prompt_text": None,
            "kv_transfer_params": self.answer.kv_params,
            **_NO_TRANSFER,
        }

    def _message(self, choice: Choice) -> dict[str, Any]:
        call = choice.whole_call
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if call is not None:
            function = {"name": call.name, "arguments": call.arguments}
            message["content"] = None if call.choice == "auto" else ""
            message["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
        return {
            "index": choice.index,
            "message": {**message, "reasoning": None},
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": _finish(choice),
            "stop_reason": choice.stop_reason,
            "token_ids": self.token_ids(choice.tokens),
            "routed_experts": None,
        }


def _finish(choice: Choice) -> str | None:
    """The finish reason. Like OpenAI's, that of a call of a named tool is stop."""
    call = choice.whole_call
    is_called = call is not None and call.choice != "named" and choice.finish == "stop"
    return "tool_calls" if is_called else choice.finish


class Completions(_OpenAI):
    kind = chunk_kind = "text_completion"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        prompt = self.token_ids(piece.choice.sequence.prompt.tokens) if piece.first else None
        offset = len(piece.choice.text) - len(piece.text)
        return {
            "index": piece.choice.index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.tokens, offset),
            "finish_reason": piece.choice.finish,
            "stop_reason": piece.choice.stop_reason,
            "prompt_token_ids": prompt,
            "token_ids": self.token_ids(piece.tokens),
        }

    def _logprobs(self, tokens: list[int], offset: int) -> dict[str, Any] | None:
        top = self.request.logprobs
        return completion_logprobs(tokens, top, offset) if top is not None else None

    def whole(self) -> dict[str, Any]:
        return {
            **self._whole([self._text(choice) for choice in self.answer.choices]),
            "kv_transfer_params": self.answer.kv_params,
            **_NO_TRANSFER,
        }

    def _text(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice.tokens, len(choice.echo)),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "token_ids": self.token_ids(choice.tokens),
            "prompt_logprobs": None,
            "prompt_token_ids": self.token_ids(choice.sequence.prompt.tokens),
            "routed_experts": None,
        }


class Transcription(Dialect):
    def _frame(self, choices: list[dict[str, Any]], **rest: Any) -> bytes:
        kind = "transcription.chunk" if self.request.api == "transcribe" else "translation.chunk"
        head = {"id": self.id, "object": kind, "created": self.created}
        return data_frame({**head, "model": self.request.model, "choices": choices, **rest})

    def piece(self, piece: Piece) -> bytes:
        choice: dict[str, Any] = {"delta": {"content": piece.text}}
        if piece.choice.finish is not None:
            choice |= {"finish_reason": piece.choice.finish, "stop_reason": None}
        return self._frame([choice]) if piece.text or len(choice) > 1 else b""

    def closing(self) -> bytes:
        usage = self._frame([], usage=self.answer.usage()) if self.request.include_usage else b""
        return usage + DONE

    def whole(self) -> dict[str, Any]:
        (choice,), body = self.answer.choices, self.request.body
        seconds, text = seconds_of(body["file"]), choice.text
        if body["response_format"] == "verbose_json":
            segment = {
                "id": 0,
                "avg_logprob": -0.2,
                "compression_ratio": 1.2,
                "end": seconds,
                "no_speech_prob": None,
                "seek": 0,
                "start": 0.0,
                "temperature": 0.0,
                "text": text,
                "tokens": choice.tokens,
            }
            language = body.get("language") or "en"
            head = {"duration": seconds, "language": language, "text": text}
            return {**head, "segments": [segment], "words": None}
        if self.request.api == "translate":
            return {"text": text}
        return {"text": text, "usage": {"type": "duration", "seconds": math.ceil(seconds)}}
