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
from router.core.retry import BUSY, may_move
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
    for _ in range(PREFILLS):
        reply = yield from prefill(facts, facts.path, _prefill_body(facts))
        if reply is not None and reply.status >= 400:
            yield from conclude(reply)
            return
        reference = yield from _reference(reply)
        if reference is None:
            break
        decode, outcome = yield from _decode(facts, decode, reference)
        if outcome is None:
            return
        if not _may_repeat(outcome, facts):
            yield from conclude(outcome)
            return
        if _is_load_failure(outcome):
            yield FellBack(Role.DECODE, "kv_load_failed")
        else:
            tried |= {decode}
            moved = yield from move(decode, tried, outcome)
            if moved is None:
                yield from conclude(outcome)
                return
            decode = moved
    yield from plain(facts, decode, tried)


def _prefill_body(facts: Facts) -> bytes:
    return orjson.dumps({**body_for_prefill(facts), KV_KEY: ASK})


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
    facts: Facts, decode: Endpoint, reference: bytes
) -> Generator[Step, Any, tuple[Endpoint, Outcome | None]]:
    """Send the client's own body with the reference; a refused connection leaves it unused."""
    body = with_member(facts.raw, KV_KEY, reference)
    tried: frozenset[Endpoint] = frozenset()
    while True:
        outcome = yield Stream(
            decode, facts.path, body, keep=BUSY | LOAD_FAILED, hold=True, replay=False
        )
        if not _is_refused(outcome):
            return decode, outcome
        tried |= {decode}
        moved = yield from move(decode, tried, outcome)
        if moved is None:
            return decode, outcome
        decode = moved


def _is_refused(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.REFUSED


def _is_load_failure(outcome: Outcome) -> bool:
    return isinstance(outcome, Reply) and outcome.status not in BUSY


def _may_repeat(outcome: Outcome, facts: Facts) -> bool:
    return _is_load_failure(outcome) or may_move(outcome, facts)
