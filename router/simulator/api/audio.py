"""Reads the forms of /v1/audio/transcriptions and translations: a text as long as what is heard."""

import io
import math
import wave
from collections.abc import Mapping
from email import message_from_bytes, policy
from random import Random
from typing import Any
from zlib import crc32

from router.simulator.api.errors import bad_request, not_valid
from router.simulator.api.template import render
from router.simulator.model.language import words
from router.simulator.model.sequence import Grammar

_WORDS_PER_SECOND = 2.5
"""As people speak."""
_BYTES_PER_SECOND = 16_000
"""128 kbit/s."""


def parse_form(headers: Mapping[str, str], raw: bytes) -> dict[str, Any]:
    """What is read of a multipart form; the file is bytes. Raises ApiError."""
    head = b"Content-Type: " + headers.get("content-type", "").encode("latin-1")
    message = message_from_bytes(head + b"\r\n\r\n" + raw, policy=policy.HTTP)
    fields: dict[str, Any] = {}
    for part in message.iter_parts():
        name = str(part.get_param("name", header="content-disposition"))
        content: Any = part.get_payload(decode=True)
        fields[name] = content if part.get_filename() is not None else content.decode()
    if not isinstance(fields.get("file"), bytes):
        raise not_valid("missing", "body.file", "Field required", list(fields))
    form = fields.get("response_format", "json")
    stream, with_usage = (
        fields.get(name, "").lower() in ("true", "1") for name in ("stream", "stream_include_usage")
    )
    if form not in ("json", "text", "verbose_json"):
        raise bad_request("Currently only support response_format: `text`, `json`, `verbose_json`")
    if stream and form == "verbose_json":
        raise bad_request("verbose_json format doesn't support streaming case")
    read = {name: fields.get(name) for name in ("file", "model", "language", "prompt")}
    options = {"include_usage": with_usage} if stream else None
    return {**read, "response_format": form, "stream": stream, "stream_options": options}


def audio_prompt(body: Mapping[str, Any]) -> list[int]:
    """The prompt: what the form says, and a number of the audio."""
    said = [body.get(name) for name in ("language", "prompt")]
    return render([{"role": "user", "content": f"{said} {crc32(body['file'])}"}])


def hear(body: Mapping[str, Any]) -> Grammar:
    """As many words as are spoken."""
    count = math.ceil(seconds_of(body["file"]) * _WORDS_PER_SECOND)
    return lambda seed: words(count, Random(seed))


def seconds_of(audio: bytes) -> float:
    """The length, read from a WAV file, else estimated from the size."""
    try:
        with wave.open(io.BytesIO(audio)) as file:
            return float(file.getnframes() / file.getframerate())
    except (wave.Error, EOFError, ZeroDivisionError):
        return len(audio) / _BYTES_PER_SECOND
