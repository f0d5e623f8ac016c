"""lmcache: the prefill engine pushes its KV cache to the decode engine, which finds it by tokens.

The protocol is that of LMCache's disaggregated prefill (examples/disagg_prefill/
disagg_proxy_server.py, 0.3.7 to 0.5.6). There are two kinds of requests:

- /v1/completions whose answer can be split exactly (`first_token.is_exact`): the prefill engine
  gets token ids and samples the first token, the decode engine continues after it.
- All others: both engines get the client's own request, so that messages, tools, response_format
  and logprobs mean what they mean on one engine. The decode engine samples the first token.

What this file guards:

- A transfer id is used for one attempt: the ranks' notifications are counted by it.
- The KV cache is at one decode engine. Any other gets the client's own body and computes the
  prompt; so does this one when anything fails, which is slow and always correct.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any

import orjson

from router.core.events import FellBack
from router.core.plans import first_token
from router.core.plans.direct import decode_directly, decode_elsewhere, finish_with
from router.core.plans.first_token import Sampled
from router.core.plans.prefill import KV_KEY, PREFILLS, own_body, prefill_by
from router.core.plans.splices import FirstToken, PrefillSplice, prefill_splice, whole_answer
from router.core.plans.steps import (
    AwaitKV,
    Call,
    Lease,
    Outcome,
    Plan,
    Release,
    Retry,
    Step,
    Stream,
)
from router.core.request_facts import Facts
from router.core.retry import BUSY, KEPT, LOAD_FAILED, may_replay
from router.core.values import Endpoint, Receiver, Reply, Role
from router.core.wire.jsonspan import with_member

__all__ = ["lmcache"]

REFUSALS = frozenset(range(400, 500)) - BUSY
"""Errors about a body that the router wrote, which the client must not get. For example, a prompt
of the model's full context length leaves no room for the first token."""


def lmcache(
    facts: Facts,
    receivers: Mapping[Endpoint, Receiver],
    new_transfer_id: Callable[[], str],
    *,
    notify: bool,
) -> Plan:
    """Lease a decode engine, prefill into its receiver, decode.

    `receivers`: by decode engine; one that was discovered may have none. `new_transfer_id` returns
    ids that are unique across routers. `notify`: whether the prefill engines report finished
    transfers.
    """
    # Leased before the prefill, because the prefill request names the receiver.
    decode = yield Lease(Role.DECODE, computes=False)
    receiver = receivers.get(decode)
    transfer = _Transfer(facts, receiver, new_transfer_id) if receiver is not None else None
    if transfer is None or not transfer.can_ask:
        yield FellBack(Role.PREFILL, "no_receiver" if transfer is None else "nested_too_deep")
        yield Release(decode)
        yield from decode_directly(facts)
        return
    failed_loads = 0
    for _ in range(PREFILLS):
        reply = yield from prefill_by(facts, transfer.ask)
        if reply is None:
            break
        answer = transfer.take(reply)
        if answer is not None:
            yield from finish_with(answer)
            return
        if not (yield from transfer.arrives(notify=notify)):
            break
        leg = transfer.decode(decode)
        is_split = isinstance(leg.splice, FirstToken)  # another splice may be put around it
        outcome = yield leg
        if outcome is None:
            return
        if is_split and _has(outcome, REFUSALS):
            yield FellBack(Role.DECODE, "splice_refused")
            yield from decode_directly(facts, leased=decode)  # it has the KV cache
            return
        is_failed_load = _has(outcome, LOAD_FAILED)
        if not (is_failed_load and (yield Retry(Role.DECODE))):
            elsewhere = decode_elsewhere(facts, decode, outcome)
            yield from finish_with(outcome) if is_failed_load else elsewhere
            return
        yield FellBack(Role.DECODE, "kv_load_failed")
        failed_loads += 1
    # Release and lease again, so that the engine that computes the prompt is chosen and counted as
    # such.
    yield Release(decode)
    yield from decode_directly(facts, failed_loads=failed_loads)


class _Transfer:
    """The prefill of one request into one receiver: the requests for it, and the decode request."""

    def __init__(
        self, facts: Facts, receiver: Receiver, new_transfer_id: Callable[[], str]
    ) -> None:
        self._facts = facts
        self._receiver = receiver
        self._new_id = new_transfer_id
        self._id = ""
        self._shares = first_token.is_exact(facts)
        """Whether the first token sampled by the prefill engine is sent to the client."""
        self._tokens = first_token.own_tokens(facts.body) if self._shares else None
        self._own_body = None if self._shares else own_body(facts)
        self._sampled: Sampled | None = None
        self._splice: PrefillSplice | None = None

    @property
    def can_ask(self) -> bool:
        """Whether the prefill request's body can be written."""
        return self._shares or self._own_body is not None

    def ask(self, endpoint: Endpoint) -> Generator[Step, Any, Outcome]:
        """Tokenize if needed, then prefill with a new transfer id."""
        if self._shares and self._tokens is None:
            failed = yield from self._tokenize(endpoint)
            if failed is not None:
                return failed
        self._id = self._new_id()
        lead = self._facts.prefill[:-1]
        outcome: Outcome = yield Call(endpoint, self._facts.path, self._prefill_body(), lead=lead)
        return outcome

    def _tokenize(self, endpoint: Endpoint) -> Generator[Step, Any, Outcome | None]:
        """Get the prompt's token ids. Returns the outcome if the engine failed."""
        body = first_token.tokenize_body(self._facts.body)
        outcome: Outcome = yield Call(endpoint, "/tokenize", body, is_prefill=False)
        if not isinstance(outcome, Reply) or outcome.status >= 500 or outcome.status in BUSY:
            return outcome
        self._tokens = first_token.read_tokens(outcome)
        if self._tokens is None:
            # The engine may be a gateway that only serves /v1. Both engines get the client's own
            # prompt.
            yield FellBack(Role.PREFILL, "tokenize_failed")
            self._shares = False
            self._own_body = own_body(self._facts)
        return None

    def _prefill_body(self) -> bytes:
        params: dict[str, Any] = {"disagg_spec": self._receiver.spec(self._id)}
        body = self._own_body
        if self._tokens is not None:
            body = orjson.dumps(first_token.prefill_body(self._facts.body, self._tokens))
            params = {"ret_first_tok": True, **params}
        assert body is not None  # checked by `can_ask`
        return with_member(body, KV_KEY, orjson.dumps(params))

    def take(self, reply: Reply) -> Reply | None:
        """Keep the sampled token. Returns a reply for the client if the answer is complete or an
        error."""
        if reply.status >= 400:
            return reply
        self._splice = prefill_splice(self._facts, reply)
        if not self._shares:
            return None
        self._sampled = first_token.read_sampled(reply)
        if self._sampled is not None and self._sampled.ends(first_token.limit(self._facts.body)):
            return whole_answer(self._facts, reply)
        return None

    def arrives(self, *, notify: bool) -> Generator[Step, Any, bool]:
        """Wait for the transfer. Returns False, with a fallback event, if the KV cache does not
        arrive."""
        if self._shares and (self._sampled is None or not self._sampled.goes_on):
            yield FellBack(Role.PREFILL, "no_first_tok")
            return False
        if notify and not (yield AwaitKV(self._id, self._receiver.ranks)):
            yield FellBack(Role.PREFILL, "kv_ready_timeout")
            return False
        return True

    def decode(self, endpoint: Endpoint) -> Stream:
        """The decode request: it continues after the first token if that can be sent, otherwise it
        is the client's own request."""
        facts, sampled = self._facts, self._sampled
        if self._tokens is None or sampled is None or sampled.token is None or not sampled.is_shown:
            replay, splice = may_replay(facts), self._splice
            return Stream(endpoint, facts.path, facts.raw, KEPT, True, replay, splice, facts.lead)
        body = orjson.dumps(first_token.decode_body(facts.body, self._tokens, sampled.token))
        first = FirstToken(sampled.text, self._splice)
        return Stream(endpoint, facts.path, body, KEPT | REFUSALS, hold=True, splice=first)


def _has(outcome: Outcome, statuses: frozenset[int]) -> bool:
    return isinstance(outcome, Reply) and outcome.status in statuses
