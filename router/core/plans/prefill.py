"""The prefill leg, common to all connectors: its request body, and its retries."""

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import orjson

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.steps import Call, Lease, Outcome, Release, Step
from router.core.retry import BUSY, reason_of
from router.core.values import (
    MESSAGES,
    PREFILL,
    RESPONSES,
    Endpoint,
    Facts,
    Failure,
    FailureKind,
    Reply,
    RouteKind,
)

__all__ = [
    "KV_KEY",
    "LOAD_FAILED",
    "PREFILLS",
    "Ask",
    "body_for_prefill",
    "prefill",
    "prefill_by",
]

KV_KEY = "kv_transfer_params"

PREFILLS = 2
"""Prefills per request, at most; after two failed decodes the decode engine computes the prompt."""

LOAD_FAILED = frozenset({500})
"""The status of a failed KV load under vLLM's default kv_load_failure_policy "fail"."""

PREFILL_ATTEMPTS = 2
"""Prefill engines tried before the decode engine computes the prompt: each attempt delays the first
token."""


Ask = Callable[[Endpoint], Generator[Step, Any, Outcome]]
"""The steps of one attempt on a leased prefill engine; returns its outcome."""


def prefill(facts: Facts, path: str, body: bytes) -> Generator[Step, Any, Reply | None]:
    """`prefill_by` with the same request for each engine; `body` is its body, or of a large one the
    last piece."""
    lead = facts.prefill[:-1]

    def ask(endpoint: Endpoint) -> Generator[Step, Any, Outcome]:
        outcome: Outcome = yield Call(endpoint, path, body, lead=lead)
        return outcome

    return prefill_by(ask)


def prefill_by(ask: Ask) -> Generator[Step, Any, Reply | None]:
    """A prefill engine's good reply, or its 4xx; None when the decode engine must do without.

    Each engine that fails is recorded. The lease ends with the reply. For a reply that the router
    has no room for it would have none from another engine either.
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
        if isinstance(outcome, Reply) and outcome.status < 500 and outcome.status not in BUSY:
            return outcome
        yield FellBack(PREFILL, reason_of(outcome))
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.NO_ROOM:
            return None
        tried |= {endpoint}
    return None


_ONE_TOKEN = {RESPONSES: "max_output_tokens"}
_DROP = frozenset(
    {
        "stream_options",  # 400 without stream
        "min_tokens",  # 400 when above max_tokens
        "min_completion_tokens",
        "stop",
        "stop_token_ids",
        "stop_sequences",  # the name of `stop` on /v1/messages
        "best_of",
    }
)


DIGITS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
"""For bytes.translate: all digits become 0, and all else spaces."""

LONG_NUMBER: Final = b"0" * 19
"""Digits, at least, of an integer that does not fit in 64 bits."""


def body_for_prefill(facts: Facts, **members: object) -> bytes | None:
    """The client's body for one token, with more members; None when it cannot be written.

    orjson makes floats of integers beyond 64 bits. Where they are in the prompt, as the bounds in
    a tool's schema are, the prefill engine would read another prompt than the decode engine: the
    json module keeps them. Both modules keep all other numbers. orjson reads 1024 levels of nesting
    and writes 254, json reads and writes what Python's stack allows.
    """
    try:
        if _may_hold_long_integers(facts.raw):
            exact = json.loads(facts.raw)
            return json.dumps(_for_one_token(facts.route.kind, exact, members)).encode()
        return orjson.dumps(_for_one_token(facts.route.kind, facts.body, members))
    except (orjson.JSONEncodeError, RecursionError):
        return None


def _may_hold_long_integers(document: bytes) -> bool:
    """Digits in a string look like one: then the slower module does the same.

    Of every sixth byte at least three are among 19 digits: looking at these first takes a quarter
    of the time, and rules most prompts out. A regular expression takes ten times as long as all.
    """
    is_likely = b"000" in document[::6].translate(DIGITS)
    return is_likely and LONG_NUMBER in document.translate(DIGITS)


def _for_one_token(
    kind: RouteKind, given: Mapping[str, Any], members: dict[str, object]
) -> dict[str, Any]:
    """The client's body, made to produce one token and to end for its length.

    Up to vLLM 0.20 an engine hands its KV cache over only when it ended for length, so nothing
    else may end it: no stop strings, no end-of-sequence.
    """
    body = {key: value for key, value in given.items() if key not in _DROP}
    body[_ONE_TOKEN.get(kind, "max_tokens")] = 1
    if "max_completion_tokens" in body:  # on chat it takes precedence over max_tokens
        body["max_completion_tokens"] = 1
    if "n" in body:
        body["n"] = 1
    # Only the decode engine's answer is to be stored; on /v1/responses that is the default.
    if kind is RESPONSES or body.get("store"):
        body["store"] = False
    if kind is MESSAGES and KV_KEY not in members and _has_budget(body.get("thinking")):
        del body["thinking"]
    body["ignore_eos"] = True
    body["stream"] = False
    return body | members


def _has_budget(thinking: object) -> bool:
    """Thinking tokens that vLLM wants to be less than max_tokens, unless KV parameters tell it that
    it only prefills. It makes no difference to the prompt."""
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"
