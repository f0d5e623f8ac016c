"""The prefill leg, common to all connectors: its request body and its retries."""

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import orjson

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.steps import Call, Lease, Outcome, Release, Step
from router.core.request_facts import Facts
from router.core.retry import BUSY, reason_of
from router.core.values import (
    GENERATE,
    MESSAGES,
    PREFILL,
    RESPONSES,
    Endpoint,
    Failure,
    FailureKind,
    Reply,
    RouteKind,
)
from router.core.wire.jsonspan import with_member

__all__ = [
    "KV_KEY",
    "PREFILLS",
    "Ask",
    "body_for_prefill",
    "kv_params",
    "own_body",
    "prefill",
    "prefill_by",
]

KV_KEY = "kv_transfer_params"

PREFILLS = 2
"""Most prefills per request; after two failed decodes the decode engine computes the prompt."""

PREFILL_ATTEMPTS = 2
"""Most prefill engines that are tried before the decode engine computes the prompt: each attempt
delays the first token."""


ELSEWHERE: Final = BUSY | {404}
"""Answers below 500 after which another engine may do what was asked."""


def kv_params(facts: Facts, given: bytes) -> bytes:
    """KV parameters with the tokens of a continued chat, which vLLM 0.32 takes from there."""
    ids = facts.prompt_ids
    return with_member(given, "prompt_token_ids", ids) if ids else given


Ask = Callable[[Endpoint], Generator[Step, Any, Outcome | None]]
"""The steps of one attempt on a leased prefill engine. Returns its outcome; None, with a fallback
event, if the engine cannot be asked."""


def prefill(facts: Facts, body: bytes) -> Generator[Step, Any, Reply | None]:
    """`prefill_by` with the same request for each engine. `body` is its body; for a large body the
    last piece."""
    lead = facts.prefill[:-1]

    def ask(endpoint: Endpoint) -> Generator[Step, Any, Outcome]:
        outcome: Outcome = yield Call(endpoint, facts.path, body, lead=lead)
        return outcome

    return prefill_by(facts, ask)


def prefill_by(facts: Facts, ask: Ask) -> Generator[Step, Any, Reply | None]:
    """The successful reply of a prefill engine, or its 4xx. None if the decode engine has to
    compute the prompt. A 404 counts as a failure, because an adapter may have been unloaded from
    this engine alone. So does any 4xx if a tool is forced, because it may be due to the one token
    that a prefill generates, which is no call.

    Each failed engine is recorded. The lease ends with the reply. If the router has no memory for a
    reply, no other engine is tried, because there would be none for its reply either.
    """
    tried: frozenset[Endpoint] = frozenset()
    for _ in range(PREFILL_ATTEMPTS):
        try:
            endpoint = yield Lease(PREFILL, tried)
        except NoEngine:
            if not tried:
                yield FellBack(PREFILL, "no_prefill_engine")
            return None
        outcome = yield from ask(endpoint)
        yield Release(endpoint)
        if isinstance(outcome, Reply) and outcome.status < 500 and outcome.status not in ELSEWHERE:
            if outcome.status >= 400 and facts.forces_tool:
                yield FellBack(PREFILL, "forced_tool")
                return None
            return outcome
        if outcome is not None:
            yield FellBack(PREFILL, reason_of(outcome))
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.NO_ROOM:
            return None
        tried |= {endpoint}
    return None


_ONE_TOKEN = {RESPONSES: "max_output_tokens"}
_DROP = frozenset(
    {
        "stream_options",  # 400 without `stream`
        "min_tokens",  # 400 when above max_tokens
        "min_completion_tokens",
        "stop",
        "stop_token_ids",
        "stop_sequences",  # what /v1/messages calls `stop`
        "best_of",
        "output_mode",  # of /inference/v1/generate: text takes a tokenizer
    }
)


DIGITS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
"""Table for bytes.translate: maps digits to 0 and everything else to spaces."""

LONG_NUMBER: Final = b"0" * 19
"""The fewest digits of an integer that does not fit into 64 bits."""


def own_body(facts: Facts) -> bytes | None:
    """The client's request for one token; for a large body its last piece. None if it cannot be
    written."""
    return facts.prefill[-1] if facts.prefill else body_for_prefill(facts)


def body_for_prefill(facts: Facts, **members: object) -> bytes | None:
    """The client's body changed to generate one token, with additional members. None if it cannot
    be written.

    orjson turns integers beyond 64 bits into floats. If they are part of the prompt, such as bounds
    in a tool's schema, the prefill engine would get another prompt than the decode engine, so the
    json module is used. Both modules preserve all other numbers. orjson parses 1024 levels of
    nesting and writes 254, json as many as Python's stack allows.
    """
    try:
        raw = b"".join((*facts.lead, facts.raw)) if facts.lead else facts.raw
        if _may_hold_long_integers(raw):
            exact = json.loads(raw)
            return json.dumps(_for_one_token(facts.route.kind, exact, members)).encode()
        return orjson.dumps(_for_one_token(facts.route.kind, facts.body, members))
    except (orjson.JSONEncodeError, RecursionError):
        return None


def _may_hold_long_integers(document: bytes) -> bool:
    """Whether there are 19 digits in a row. They may be within a string; then the slower module
    gives the same result.

    Among 19 digits at least three are at multiples of six, so checking only these bytes rules out
    most prompts in a quarter of the time. A regular expression takes ten times as long as checking
    all.
    """
    is_likely = b"000" in document[::6].translate(DIGITS)
    return is_likely and LONG_NUMBER in document.translate(DIGITS)


def _for_one_token(
    kind: RouteKind, given: Mapping[str, Any], members: dict[str, object]
) -> dict[str, Any]:
    """The client's body, changed to generate one token and to end with finish reason "length".

    Up to 0.20, vLLM hands over a KV cache only if the request ended that way, so nothing else may
    end it: no stop strings, no end-of-sequence token.
    """
    if kind is GENERATE:
        body = {key: value for key, value in given.items() if key not in _DROP}
        if isinstance(sampling := given.get("sampling_params"), dict):
            body["sampling_params"] = _limited(kind, sampling)
        return body | {"stream": False} | members
    body = _limited(kind, given)
    # Only the decode engine's answer may be stored; on /v1/responses storing is the default.
    if kind is RESPONSES or body.get("store"):
        body["store"] = False
    if kind is MESSAGES and KV_KEY not in members and _has_budget(body.get("thinking")):
        del body["thinking"]
    body["stream"] = False
    return body | members


def _limited(kind: RouteKind, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for one token."""
    body = {key: value for key, value in given.items() if key not in _DROP}
    body[_ONE_TOKEN.get(kind, "max_tokens")] = 1
    if "max_completion_tokens" in body:  # for chats it takes precedence over max_tokens
        body["max_completion_tokens"] = 1
    if "n" in body:
        body["n"] = 1
    body["ignore_eos"] = True
    return body


def _has_budget(thinking: object) -> bool:
    """Whether there is a budget of thinking tokens. vLLM requires it to be less than max_tokens,
    unless KV parameters mark the request as prefill only. It does not affect the prompt."""
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"
