"""Prompts: the chat template, and what is read of audio forms.

The template includes everything that a real one shows to the model (roles, contents, tools, tool
calls, template arguments), so that a router that loses any of these changes the answer.
"""

import io
import math
import wave
from collections.abc import Callable, Mapping, Sequence
from email import message_from_bytes, policy
from random import Random
from typing import Any
from zlib import crc32

import orjson

from router.core.wire.media import media_tokens
from router.simulator.api.errors import bad_request, invalid, not_valid
from router.simulator.model.language import ASSISTANT, BOS, EOS, encode, in_vocabulary, words
from router.simulator.model.sequence import Grammar


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: object = None,
    arguments: object = None,
    *,
    generate: bool = True,
) -> list[int]:
    """The prompt tokens of a chat. `generate` opens the assistant's turn at the end."""
    tokens: list[int] = []
    if tools:
        tokens += _turn("tools", _plain(tools))
    if arguments:
        tokens += _turn("arguments", _plain(arguments))
    for message in messages:
        tokens += _message(message)
    return [*tokens, ASSISTANT] if generate else tokens


def _message(message: Mapping[str, Any]) -> list[int]:
    role, content = str(message.get("role", "")), _content(message.get("content"))
    rest = {
        key: value
        for key, value in message.items()
        if key not in ("role", "content") and value is not None
    }
    if rest:
        content += _plain(rest)
    if role == "assistant":
        return [ASSISTANT, *encode(content), EOS]
    return _turn(role, content)


def _turn(role: str, content: str) -> list[int]:
    return [BOS, *encode(f"{role}\n"), *encode(content), EOS]


def _content(content: object) -> str:
    """The text of a message: a string, or the concatenated parts of a list."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    return _plain(content)


def _part(part: object) -> str:
    """The text of a part; of media a hash, repeated to as many tokens as the router estimates."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    tokens = media_tokens(part) if isinstance(part, dict) else 0
    return f"{crc32(_plain(part).encode()):08x}" * math.ceil(tokens / 2) if tokens else _plain(part)


def _plain(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


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


# The prompts of each API.


def tokens_of(body: Mapping[str, Any]) -> list[int]:
    """The prompt of a chat, or of /tokenize with messages."""
    return render(
        body["messages"],
        body.get("tools"),
        body.get("chat_template_kwargs"),
        generate=body.get("add_generation_prompt", True) is not False,
    )


def _chat(body: Mapping[str, Any]) -> list[list[int]]:
    for place, message in enumerate(body["messages"]):
        if not isinstance(message, dict):
            where = f"body.messages.{place}"
            raise not_valid("dict_type", where, "Input should be a valid dictionary", message)
    return [tokens_of(body)]


def _completions(body: Mapping[str, Any]) -> list[list[int]]:
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [encode(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, int) for part in prompt):
            return [_ids("prompt", prompt)]
        if all(isinstance(part, str) for part in prompt):
            return [encode(part) for part in prompt]
        if all(isinstance(part, list) for part in prompt):
            return [_ids("prompt", part) for part in prompt]
    message = "Either prompt or prompt_embeds must be provided and non-empty."
    raise invalid("prompt", message)


def _ids(name: str, tokens: list[Any]) -> list[int]:
    for token in tokens:
        if not in_vocabulary(token):
            raise invalid(name, f"Token id {token} is out of vocabulary", token)
    return tokens


def _responses(body: Mapping[str, Any]) -> list[list[int]]:
    given = body["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    if body.get("instructions"):
        messages = [{"role": "system", "content": body["instructions"]}, *messages]
    return [render(messages, body.get("tools"))]


def _messages(body: Mapping[str, Any]) -> list[list[int]]:
    messages = list(body["messages"])
    if body.get("system"):
        messages = [{"role": "system", "content": body["system"]}, *messages]
    return [render(messages, body.get("tools"))]


_PROMPTS: Mapping[str, Callable[[Mapping[str, Any]], list[list[int]]]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _messages,
    "transcribe": lambda body: [audio_prompt(body)],
    "translate": lambda body: [audio_prompt(body)],
}


def prompts_of(api: str, body: Mapping[str, Any], ids: list[Any] | None = None) -> list[list[int]]:
    """The prompts of a request, `ids` in place of a chat's messages. Raises ApiError.

    vLLM ignores the ids with `echo` and with media; here only with `echo`.
    """
    if ids is None or api == "completions" or body.get("echo"):
        return _PROMPTS[api](body)
    return [_ids("kv_transfer_params.prompt_token_ids", ids)]
