"""/v1/audio/transcriptions and translations in the format of vLLM 0.32."""

import math
from typing import Any

from router.simulator.api.audio import seconds_of
from router.simulator.api.choices import Piece
from router.simulator.api.dialect import DONE, Dialect, data_frame


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
