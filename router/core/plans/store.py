"""store: engines share a store of KV caches, in which each finds a prompt by its tokens.

Connectors of this kind: ExampleConnector, LMCache with a shared backend (multi-process mode too),
MooncakeStoreConnector, FlexKVConnectorV1, HF3FSKVConnector, and offloading to a shared file system.
The prefill engine computes the prompt, which puts its KV cache into the store. Then the decode
engine gets the client's own body. There are no KV parameters.

What this module guarantees:

- An answer is right whether or not the store has the prompt: a decode engine that does not find it
  computes it. So nothing is waited for, and a decode engine may be asked again.
- A prompt that the decode engine did not find is counted: its answer states how much was cached. A
  store may publish late, be full, or not be the same one.
"""

from dataclasses import dataclass, field
from typing import Final

from router.core.errors import NoPartner
from router.core.events import FellBack
from router.core.plans.direct import decode_directly, decode_elsewhere, finish_with
from router.core.plans.prefill import own_body, prefill
from router.core.plans.splices import prefill_splice
from router.core.plans.steps import Check, Lease, Plan, Splice, Stream
from router.core.request_facts import Facts
from router.core.retry import KEPT, may_replay
from router.core.values import DECODE, PREFILL
from router.core.wire.usage import cached_tokens, prefilled_tokens

__all__ = ["StoreSplice", "store"]

FOUND: Final = 0.5
"""The least share of a prompt that is cached if the store had it. The end of a prompt is always
computed: stores keep whole blocks or chunks, LMCache's of 256 tokens."""


@dataclass(slots=True)
class StoreSplice:
    """Notes whether the decode engine found the prompt, before `then` replaces its count of cached
    tokens by the prefill engine's."""

    then: Splice | None
    is_missed: bool = field(default=False, init=False)
    """Whether it states that it has not. False if it states nothing."""

    def events(self, data: bytes) -> bytes:
        """Look for a usage in the events."""
        self._note(data)
        return data if self.then is None else self.then.events(data)

    def body(self, data: bytes) -> bytes:
        """Look for the usage of a unary answer."""
        self._note(data)
        return data if self.then is None else self.then.body(data)

    def _note(self, data: bytes) -> None:
        cached = cached_tokens(data)
        if cached is not None:
            self.is_missed = cached < FOUND * prefilled_tokens(data)


def store(facts: Facts) -> Plan:
    """Prefill remotely, then lease a decode engine, which looks for the KV cache in the store.

    A continued stream needs no other prefill: the store has its prompt.
    """
    if facts.tried:
        yield from decode_directly(facts)
        return
    yield Check(DECODE)
    body = own_body(facts)
    if body is None:
        yield FellBack(PREFILL, "nested_too_deep")
        yield from decode_directly(facts)
        return
    reply = yield from prefill(facts, body)
    if reply is None:
        yield from decode_directly(facts)
        return
    if reply.status >= 400:
        yield from finish_with(reply)
        return
    splice = StoreSplice(prefill_splice(facts, reply))
    try:
        decode = yield Lease(DECODE, computes=False)
    except NoPartner:
        yield FellBack(DECODE, "no_partner")
        yield from decode_directly(facts)
        return
    replay = may_replay(facts)
    outcome = yield Stream(decode, facts.path, facts.raw, KEPT, True, replay, splice, facts.lead)
    if outcome is not None:
        yield from decode_elsewhere(facts, decode, outcome)
