"""NIXL: prefill on one engine and decode on another, which gets the KV reference of the prefill's
reply.

The protocol is vLLM's NixlConnector (tests/v1/kv_connector/nixl_integration/toy_proxy_server.py,
0.11 to 0.33), or NixlPushConnector, which finds the decode engine's blocks by the id that both
requests have (docs/decisions/0033-push.md). The KV reference is opaque and forwarded byte for byte:
its keys and types differ by version.
"""

from collections.abc import Generator
from typing import Any

import orjson

from router.core.events import FellBack
from router.core.plans.by_reference import by_reference
from router.core.plans.prefill import KV_KEY, body_for_prefill, prefill
from router.core.plans.steps import Plan, Step
from router.core.request_facts import Facts
from router.core.values import PREFILL, RESPONSES, Reply
from router.core.wire.jsonspan import member, with_member

__all__ = ["nixl", "reference"]

PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""The `kv_transfer_params` of a prefill request: keep the KV cache for a decode engine. vLLM reads
only the first key (pull_scheduler.py); vLLM's example proxies send all of them."""


def nixl(facts: Facts) -> Plan:
    """Prefill remotely, then lease a decode engine, which loads the KV cache by the reference."""
    has_id = facts.route.kind is RESPONSES and facts.body.get("request_id") is not None
    return by_reference(facts, _prefill_body, _prefill_to_pull if has_id else prefill, reference)


def _prefill_to_pull(facts: Facts, body: bytes) -> Generator[Step, Any, Reply | None]:
    """The prefill leg of a request whose engine ids follow from the client's id. None in push mode:
    with the same id twice, a prefill engine could write another request's KV cache."""
    reply = yield from prefill(facts, body)
    found = None if reply is None else reference(reply)
    if found is not None and member(found, "transfer_mode") == b'"push"':
        yield FellBack(PREFILL, "given_id")
        return None
    return reply


def _prefill_body(facts: Facts) -> bytes | None:
    if facts.prefill:
        return with_member(facts.prefill[-1], KV_KEY, orjson.dumps(PREFILL_PARAMS))
    params: dict[str, Any] = PREFILL_PARAMS
    if facts.prompt_ids:
        params = PREFILL_PARAMS | {"prompt_token_ids": orjson.loads(facts.prompt_ids)}
    return body_for_prefill(facts, **{KV_KEY: params})


def reference(reply: Reply) -> bytes | None:
    """The KV reference in a prefill reply; None if there is none."""
    try:
        found = member(reply.body, KV_KEY)
    except ValueError:
        return None
    # Partial or empty parameters crash vLLM's decode engine, so only non-empty objects are
    # forwarded.
    if found is None or not found.startswith(b"{") or found[1:].lstrip() == b"}":
        return None
    return found
