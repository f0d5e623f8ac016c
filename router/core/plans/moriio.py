"""moriio: the prefill engine writes the KV cache into the decode engine that its request names.

The protocol is that of vLLM's MoRIIOConnector (ROCm) in WRITE mode, its default (0.32,
moriio_connector.py, moriio_engine.py). The prefill engine keeps the blocks under a transfer id. The
decode engine sends it the blocks to write to, at the address in the prefill's reply. The plan is
that of NIXL. What this module guarantees beyond that:

- The legs run in turn (docs/decisions/0034-moriio.md), and the prefill request has all addresses
  that vLLM's proxy puts into the request id: without them the engine ends.
- Each prefill has an id of its own, and its reference goes to the named engine alone: the prefill
  engine would write into that one whatever engine asks.
"""

from collections.abc import Callable, Generator
from typing import Any

import orjson

from router.core.plans.by_reference import by_reference
from router.core.plans.nixl import reference
from router.core.plans.prefill import KV_KEY, kv_params, own_body, prefill_by
from router.core.plans.steps import Call, Outcome, Plan, Step
from router.core.request_facts import Facts
from router.core.values import Endpoint, Reply, TransferTarget
from router.core.wire.jsonspan import with_member

__all__ = ["moriio"]


def moriio(
    facts: Facts,
    target_of: Callable[[Endpoint], TransferTarget],
    new_transfer_id: Callable[[], str],
) -> Plan:
    """Lease a decode engine, prefill for it under a transfer id, decode.

    `target_of`: where a decode engine receives KV caches. `new_transfer_id` returns ids that are
    unique across routers.
    """
    transfer = _Transfer(target_of, new_transfer_id)
    return by_reference(facts, own_body, transfer.prefill, _reference, transfer.aim)


class _Transfer:
    """The latest prefill of one request."""

    def __init__(
        self,
        target_of: Callable[[Endpoint], TransferTarget],
        new_transfer_id: Callable[[], str],
    ) -> None:
        self._target_of = target_of
        self._new_id = new_transfer_id
        self._target: TransferTarget | None = None

    def aim(self, decode: Endpoint) -> None:
        """Name the decode engine in prefill requests from now on."""
        self._target = self._target_of(decode)

    def prefill(self, facts: Facts, body: bytes) -> Generator[Step, Any, Reply | None]:
        """The prefill leg, with a new transfer id for each engine."""
        target = self._target
        assert target is not None

        def ask(endpoint: Endpoint) -> Generator[Step, Any, Outcome]:
            params = orjson.dumps(
                {
                    "do_remote_decode": True,
                    "do_remote_prefill": False,
                    "remote_engine_id": None,
                    "remote_block_ids": None,
                    "remote_host": target.host,
                    "remote_handshake_port": target.handshake_port,
                    "remote_notify_port": target.notify_port,
                    "transfer_id": f"tx-{self._new_id()}",
                }
            )
            whole = with_member(body, KV_KEY, kv_params(facts, params))
            outcome: Outcome = yield Call(endpoint, facts.path, whole, lead=facts.prefill[:-1])
            return outcome

        return prefill_by(facts, ask)


def _reference(reply: Reply) -> bytes | None:
    """The reply's KV reference. Of a prefill engine's second data-parallel rank it would address
    the decode engine's second one alone; the leader asks in any case."""
    found = reference(reply)
    return None if found is None else with_member(found, "is_request_leader", b"true")
