"""nixl: prefill on one engine, decode on another, the KV reference carried from reply to request.

The protocol is vLLM's NixlConnector in pull mode (tests/v1/kv_connector/nixl_integration/
toy_proxy_server.py, 0.11 to 0.33). What this file guards:

- The reference is opaque and goes on byte for byte: keys and types differ by version.
- It is used once. The decode engine's read frees the prefill engine's blocks, so a second use can
  read another request's cache (vllm#52234). Only a refused connection proves that it was not used.
- A failed KV load is not the client's business: prefill again once, then decode plainly.
"""

from collections.abc import Generator
from typing import Any

import orjson

from router.core.events import FellBack
from router.core.jsonspan import member, with_member
from router.core.plans.direct import conclude, move, plain
from router.core.plans.prefill import body_for_prefill, prefill
from router.core.plans.steps import Lease, Outcome, Plan, Step, Stream
from router.core.retry import ATTEMPTS, BUSY, may_move
from router.core.values import Endpoint, Facts, Failure, FailureKind, Reply, Role

__all__ = ["nixl"]

KV_KEY = "kv_transfer_params"

ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What makes a prefill engine keep its blocks. Only the first key is read (vLLM's
pull_scheduler.py); the rest is what every vLLM proxy sends."""

PREFILLS = 2
"""A failed decode is worth one more prefill; a second failure is no chance, and the decode engine
can compute the prompt itself."""

LOAD_FAILED = frozenset({500})
"""The status of a failed KV load under vLLM's default kv_load_failure_policy "fail"."""


def nixl(facts: Facts) -> Plan:
    """Lease a decode engine, prefill remotely, decode with the reference."""
    decode = yield Lease(Role.DECODE)
    tried: frozenset[Endpoint] = frozenset()
    body = yield from _prefill_body(facts)
    if body is None:
        yield from plain(facts, decode)
        return
    for _ in range(PREFILLS):
        reply = yield from prefill(facts, facts.path, body)
        if reply is not None and reply.status >= 400:
            yield from conclude(reply)
            return
        reference = yield from _reference(reply)
        if reference is None:
            break
        asked, tried, outcome = yield from _decode(facts, decode, tried, reference)
        if outcome is None:
            return
        following = yield from _follow(facts, asked, tried, outcome)
        if following is None:
            yield from conclude(outcome)
            return
        decode, tried = following
    yield from plain(facts, decode, tried)


def _prefill_body(facts: Facts) -> Generator[Step, Any, bytes | None]:
    try:
        return orjson.dumps({**body_for_prefill(facts), KV_KEY: ASK})
    except orjson.JSONEncodeError:  # it reads 1024 levels of nesting and writes 254
        yield FellBack(Role.PREFILL, "nested_too_deep")
        return None


def _reference(reply: Reply | None) -> Generator[Step, Any, bytes | None]:
    """The KV reference in a prefill reply; None, and counted, when there is none to use."""
    if reply is None:
        return None
    try:
        reference = member(reply.body, KV_KEY)
    except ValueError:
        reference = None
    # Partial or empty parameters kill vLLM's decode engine: what is no object is not passed on.
    if reference is None or not reference.startswith(b"{") or reference[1:].lstrip() == b"}":
        yield FellBack(Role.PREFILL, "no_kv_params")
        return None
    return reference


def _decode(
    facts: Facts, decode: Endpoint, tried: frozenset[Endpoint], reference: bytes
) -> Generator[Step, Any, tuple[Endpoint | None, frozenset[Endpoint], Outcome | None]]:
    """Send the client's own body with the reference.

    A refused connection leaves the reference unused, so it goes to another engine as it is. The
    engine that is returned is leased and has the outcome; None when nobody is left.
    """
    body = with_member(facts.raw, KV_KEY, reference)
    while True:
        outcome = yield Stream(
            decode, facts.path, body, keep=BUSY | LOAD_FAILED, hold=True, replay=False
        )
        if not _is_refused(outcome) or len(tried) + 1 >= ATTEMPTS:
            return decode, tried, outcome
        tried |= {decode}
        moved = yield from move(decode, tried, outcome)
        # Python 3.11 traces no frame that goes on after a throw() into a generator below it.
        if moved is None:  # pragma: no cover - test_with_no_other_decode_engine_...
            return None, tried, outcome
        decode = moved


def _follow(
    facts: Facts, asked: Endpoint | None, tried: frozenset[Endpoint], outcome: Outcome
) -> Generator[Step, Any, tuple[Endpoint, frozenset[Endpoint]] | None]:
    """The leased engine that decodes next, after a failure that another prefill can mend."""
    if asked is None:
        return None
    if _is_load_failure(outcome):
        yield FellBack(Role.DECODE, "kv_load_failed")
        return asked, tried
    if not may_move(outcome, facts):
        return None
    tried |= {asked}
    moved = yield from move(asked, tried, outcome)
    return None if moved is None else (moved, tried)


def _is_refused(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.REFUSED


def _is_load_failure(outcome: Outcome) -> bool:
    return isinstance(outcome, Reply) and outcome.status in LOAD_FAILED
