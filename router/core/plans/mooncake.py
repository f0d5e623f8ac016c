"""mooncake: the decode engine asks for the KV cache by an id that the router has given to both
requests.

The protocol is vLLM's MooncakeConnector since 0.17 (examples/disaggregated/mooncake_connector/
mooncake_connector_proxy.py, mooncake_connector.py). The prefill engine keeps the blocks of a
request under its transfer id. The decode engine looks up the prefill engine in its bootstrap
server, asks it for the id, and gets the blocks written into its memory. The plan is that of NIXL,
with a reference that the router writes. What this module guarantees beyond that:

- The legs run in turn (docs/decisions/0033-push.md). A decode engine that asks for an id under
  which nothing is kept waits for eight minutes, so none is asked before a prefill has kept it.
- Each prefill has an id of its own, because blocks are sent once.
- The source is that of the engine at the time of its prefill, so that a restart in between fails
  the load instead of leading to an engine that does not know the id.
- On /v1/responses vLLM chooses the data-parallel rank, so an engine with ranks prefills none.
- Each leg has the parameters of its role alone: in the other role they end the engine.
"""

import re
from collections.abc import Callable, Generator
from typing import Any, Final

import orjson

from router.core.events import FellBack
from router.core.plans.by_reference import by_reference
from router.core.plans.prefill import KV_KEY, kv_params, own_body, prefill_by
from router.core.plans.steps import Call, Outcome, Plan, Step
from router.core.request_facts import Facts
from router.core.urls import split_rank
from router.core.values import PREFILL, RESPONSES, Endpoint, Reply, TransferSource
from router.core.wire.jsonspan import member, with_member

__all__ = ["mooncake"]

KEPT: Final = re.compile(
    rb'"(?:finish|stop)_reason":\s*"(?:length|max_tokens|tool_calls|tool_use)"'
)
"""The end of a prefill whose blocks are kept: only its limit of one token. A pause of the engine,
say, ends requests with 200 and "abort". (A call that is complete within one token hides the end.)
"""


def mooncake(
    facts: Facts,
    source_of: Callable[[Endpoint], TransferSource | None],
    new_transfer_id: Callable[[], str],
) -> Plan:
    """Prefill remotely under a transfer id, then lease a decode engine, which asks for it.

    `source_of`: where decode engines find a prefill engine; None if unknown. `new_transfer_id`
    returns ids that are unique across routers.
    """
    transfer = _Transfer(source_of, new_transfer_id)
    return by_reference(facts, own_body, transfer.prefill, transfer.reference)


class _Transfer:
    """The latest prefill of one request."""

    def __init__(
        self,
        source_of: Callable[[Endpoint], TransferSource | None],
        new_transfer_id: Callable[[], str],
    ) -> None:
        self._source_of = source_of
        self._new_id = new_transfer_id
        self._source: TransferSource | None = None
        self._id = ""

    def prefill(self, facts: Facts, body: bytes) -> Generator[Step, Any, Reply | None]:
        """The prefill leg, with a new transfer id for each engine."""

        def ask(endpoint: Endpoint) -> Generator[Step, Any, Outcome | None]:
            self._source = self._source_of(endpoint)
            if self._source is None:
                yield FellBack(PREFILL, "no_engine_id")
                return None
            if facts.route.kind is RESPONSES and split_rank(endpoint.url)[1] is not None:
                yield FellBack(PREFILL, "unpinned_rank")  # the source may be that of another rank
                return None
            self._id = f"xfer-{self._new_id()}"
            params = orjson.dumps(
                {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": self._id}
            )
            whole = with_member(body, KV_KEY, kv_params(facts, params))
            outcome: Outcome = yield Call(endpoint, facts.path, whole, lead=facts.prefill[:-1])
            return outcome

        return prefill_by(facts, ask)

    def reference(self, reply: Reply) -> bytes | None:
        """The parameters of the decode request; None if the prefill engine kept nothing."""
        source = self._source
        if source is None or not _is_kept(reply.body):
            return None
        return orjson.dumps(
            {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_bootstrap_addr": source.bootstrap,
                "remote_engine_id": source.engine_id,
                "transfer_id": self._id,
            }
        )


def _is_kept(body: bytes) -> bool:
    """Whether the blocks of a prefill with this reply are kept. A reply of /v1/responses repeats
    what the client wrote, so only its own `status` counts."""
    try:
        status = member(body, "status")
    except ValueError:
        return False
    return KEPT.search(body) is not None if status is None else status == b'"incomplete"'
