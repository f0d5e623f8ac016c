"""Splices: what changes in a decode engine's answer because another engine computed the prompt.

`FirstToken`: the prefill engine has sampled the first token (LMCache). The client sees one answer:
one id, the first token's text as the first chunk, and the usage of its own prompt. (For the decode
engine the prompt was one token longer and the answer one shorter.) In a stream only the first chunk
and those with usage are parsed.

`PrefillSplice`: the decode engine counts what it loaded as cached, and does not know to which
experts the prompt's tokens were routed. The prefill engine's reply has both.
"""

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from router.core.errors import EngineFailed
from router.core.plans.steps import Splice
from router.core.request_facts import Facts
from router.core.values import Reply
from router.core.wire import sse
from router.core.wire.jsonspan import engine_json, redact
from router.core.wire.usage import USAGE, cached_tokens, with_cached_tokens

__all__ = ["FirstToken", "PrefillSplice", "prefill_splice", "whole_answer"]

Json = dict[str, Any]

# Quotes within a JSON string are escaped, so generated text cannot match.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')

_IDENTITY = ("id", "object", "created", "model")


@dataclass(slots=True)
class FirstToken:
    """The splice of one answer; `text` is the first token's text. What this splice has written
    goes through `then`."""

    text: str
    then: Splice | None = None
    _is_out: bool = field(default=False, init=False)

    def events(self, data: bytes) -> bytes:
        """Insert the first token's chunk before the first event, and correct each usage."""
        if self._is_out and USAGE not in data:
            return data
        events = sse.events(data)
        rest = data[sum(map(len, events)) :]
        data = b"".join([*map(self._event, events), rest])
        return data if self.then is None else self.then.events(data)

    def body(self, data: bytes) -> bytes:
        """Prepend the text to a unary answer, and correct its usage."""
        document = _chunk(data)
        if document is None:
            return data
        try:
            choice = document["choices"][0]
            choice["text"] = self.text + choice["text"]
        except (LookupError, TypeError):
            return data
        _correct_usage(document)
        try:
            data = orjson.dumps(document)
        except orjson.JSONEncodeError:  # orjson parses 1024 levels of nesting and writes 254
            return data
        return data if self.then is None else self.then.body(data)

    def _event(self, event: bytes) -> bytes:
        if self._is_out and not _USAGE.search(event):
            return event
        document = _chunk(sse.data_of(event))
        if document is None:
            return event
        is_corrected = _correct_usage(document)
        try:
            frames = _frame(document) if is_corrected else event
            if not self._is_out:
                frames = _frame(self._head(document)) + frames
        except orjson.JSONEncodeError:  # orjson parses 1024 levels of nesting and writes 254
            return event
        self._is_out = True
        return frames

    def _head(self, document: Json) -> Json:
        """The first token's chunk, shaped like the decode engine's first chunk (whose usage has
        been corrected)."""
        choice = dict.fromkeys(_members(document)) | {"index": 0, "text": self.text}
        head = {key: document[key] for key in _IDENTITY if key in document} | {"choices": [choice]}
        usage = document.get("usage")
        prompt = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if isinstance(prompt, int):
            head["usage"] = {
                "prompt_tokens": prompt,
                "total_tokens": prompt + 1,
                "completion_tokens": 1,
            }
        return head


def _chunk(data: bytes) -> Json | None:
    """Parse a chunk of an answer. None for anything else, such as `[DONE]` or an error."""
    try:
        document = engine_json(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "choices" in document else None


def _members(document: Json) -> Iterable[str]:
    """Names of the first choice's members; of a completion choice if there is none, as in a usage
    chunk."""
    choices = document["choices"]
    is_one = isinstance(choices, list) and choices and isinstance(choices[0], dict)
    return choices[0] if is_one else ("index", "text", "finish_reason")


def _correct_usage(document: Json) -> bool:
    """Count the first token as output instead of prompt. Returns False if there is no usage."""
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return False
    for key, change in (("prompt_tokens", -1), ("completion_tokens", 1)):
        if isinstance(count := usage.get(key), int):
            usage[key] = count + change
    return True


def _frame(document: Json) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)


# An answer that is complete with its first token.


def whole_answer(facts: Facts, reply: Reply) -> Reply:
    """The prefill engine's unary reply, in the form that the client asked for."""
    if not facts.stream:
        return Reply(reply.status, reply.headers, redact(reply.body))
    headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)
    options = facts.body.get("stream_options") or {}
    try:
        return Reply(reply.status, headers, _as_stream(orjson.loads(reply.body), options))
    except orjson.JSONEncodeError:
        raise EngineFailed("The engine's reply is nested too deeply.") from None


# A choice of a stream has fewer members than one of a unary reply.
_STREAMED = (
    *("index", "text", "logprobs", "finish_reason", "stop_reason"),
    *("prompt_token_ids", "token_ids"),
)


def _as_stream(document: Json, options: Mapping[str, Any]) -> bytes:
    """The events that the engine itself would have sent for a stream."""
    identity = {key: document[key] for key in _IDENTITY if key in document}
    fingerprint = "system_fingerprint"
    last = {fingerprint: document[fingerprint]} if fingerprint in document else {}
    # Unlike a unary reply, a stream omits null members.
    counts = document.get("usage")
    counts = counts if isinstance(counts, dict) else {}
    usage = {key: value for key, value in counts.items() if value is not None}
    given = document["choices"][0]
    choice = {key: given[key] for key in _STREAMED if key in given}
    chunk = {**identity, "choices": [choice]}
    if not options.get("include_usage"):
        return _frame({**chunk, **last}) + sse.DONE
    if options.get("continuous_usage_stats"):
        chunk["usage"] = usage
    return _frame(chunk) + _frame({**identity, "choices": [], "usage": usage, **last}) + sse.DONE


# The prompt's cached tokens and routed experts.

TOLD: Final = b'"remote_prefill_cached_tokens":'
"""Found in KV parameters since vLLM 0.32: the decode engine reports this number as its own."""

EXPERTS: Final = b'"routed_experts":"'
"""With --enable-return-routed-experts: rows by token, as a numpy file in base64. Only unary answers
have them. vLLM refuses the flag with NixlConnector (0.22 to 0.33) unless it is patched."""


@dataclass(frozen=True, slots=True)
class PrefillSplice:
    """`cached`: the prompt's cached tokens, None if the prefill engine does not state them.
    `experts`: its rows of routed experts; empty if there are none."""

    cached: int | None
    experts: bytes = field(default=b"", repr=False)

    def events(self, data: bytes) -> bytes:
        """Correct the usage in events."""
        return with_cached_tokens(data, self.cached)

    def body(self, data: bytes) -> bytes:
        """Correct the usage and the routed experts of a unary answer."""
        data = with_cached_tokens(data, self.cached)
        if not (self.experts and (own := _experts(data))):
            return data
        return data.replace(own, _merged(own, self.experts), 1)


def prefill_splice(facts: Facts, reply: Reply) -> PrefillSplice | None:
    """The splice of an answer to a prompt that was computed with this reply. None if the decode
    engine's answer needs none."""
    experts = b"" if facts.stream else _experts(reply.body)
    if not experts and reply.body.find(TOLD) >= 0:
        return None
    return PrefillSplice(cached_tokens(reply.body), experts)


def _experts(body: bytes) -> bytes:
    start = body.find(EXPERTS)
    return b"" if start < 0 else body[start + len(EXPERTS) : body.find(b'"', start + len(EXPERTS))]


HEADER: Final = 128
"""Bytes before the rows: numpy pads the header to a multiple of 64."""
HEADER_TEXT: Final = 172
"""Characters of base64 that contain the header and one byte of the rows."""
MAGIC: Final = b"\x93NUMPY\x01\x00" + bytes((HEADER - 10, 0))

_COUNT = re.compile(rb"'shape': \(\d+")


def _merged(own: bytes, prompt: bytes) -> bytes:
    """`own` with its first rows replaced by those of `prompt`; `own` itself if the two differ in
    more than the number of rows.

    The text is not decoded, because it has up to a hundred megabytes: headers of the same length
    put equal rows at equal places.
    """
    end = len(prompt.rstrip(b"=")) // 4 * 4
    try:
        head, given = a2b_base64(own[:HEADER_TEXT]), a2b_base64(prompt[:HEADER_TEXT])
        rest = a2b_base64(prompt[end:])  # up to two bytes
        border = rest + a2b_base64(own[end : end + 4])[len(rest) :]
    except ValueError:
        return own
    is_alike = _form(head) == _form(given) and head.startswith(MAGIC)
    if not is_alike or len(given) == HEADER or len(prompt) > len(own):
        return own
    return b"".join(
        (
            b2a_base64(head[:HEADER] + given[HEADER:], newline=False),
            prompt[HEADER_TEXT:end],
            b2a_base64(border, newline=False),
            own[end + 4 :],
        )
    )


def _form(head: bytes) -> bytes:
    """A header without its number of rows and its padding."""
    return _COUNT.sub(b"", head[:HEADER]).rstrip()
