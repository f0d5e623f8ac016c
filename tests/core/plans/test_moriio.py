"""The MoRIIO plan: what differs from NIXL's (`test_by_reference.py`)."""

from dataclasses import replace
from itertools import count

import orjson

from router.core.errors import NoPartner
from router.core.events import FellBack
from router.core.plans.moriio import moriio
from router.core.plans.splices import PrefillSplice
from router.core.plans.steps import Call, Check, Lease, Plan, Release, Retry, Send, Stream
from router.core.request_facts import Facts
from router.core.values import Endpoint, Role, TransferTarget
from tests.core.fixtures import (
    CHAT,
    D0,
    D1,
    KEPT,
    LOAD_FAILED,
    P0,
    P1,
    REFUSED,
    RESET,
    changed,
    reply,
)
from tests.core.plans.conversation import END, Conversation, Converse
from tests.core.plans.nixl_dialogue import FACTS, RAW, computes

TARGETS = {D0: TransferTarget("d0", 6301, 61005), D1: TransferTarget("d1", 6311, 61015)}
PREFILLED = reply(200, b'{"usage":null,"kv_transfer_params":{"remote_host":"p0","tp_size":1}}')
REFERENCE = b'{"remote_host":"p0","tp_size":1,"is_request_leader":true}'
ONE_TOKEN = (
    b'{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":false,'
    b'"max_tokens":1,"ignore_eos":true'
)


def keep(number: int, target: TransferTarget) -> bytes:
    """The parameters of a prefill request."""
    return orjson.dumps(
        {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": target.host,
            "remote_handshake_port": target.handshake_port,
            "remote_notify_port": target.notify_port,
            "transfer_id": f"tx-{number}",
        }
    )


def plan(facts: Facts = FACTS) -> Plan:
    """The plan, with ids from 0 on."""
    numbers = count()
    return moriio(facts, TARGETS.__getitem__, lambda: str(next(numbers)))


def prefills(endpoint: Endpoint, number: int, decode: Endpoint = D0) -> Call:
    """The request to a prefill engine."""
    params = keep(number, TARGETS[decode])
    return Call(endpoint, CHAT, ONE_TOKEN + b',"kv_transfer_params":' + params + b"}")


def loads(endpoint: Endpoint) -> Stream:
    """The client's bytes with the reference at their end."""
    body = RAW[:-1] + b',"kv_transfer_params":' + REFERENCE + b"}"
    splice = PrefillSplice(None)
    return Stream(endpoint, CHAT, body, KEPT, hold=True, replay=False, splice=splice, keeps_id=True)


def named(converse: Converse, facts: Facts = FACTS) -> Conversation:
    """A conversation up to where D0 is leased."""
    return (
        converse(plan(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
    )


def after_prefill(converse: Converse) -> Conversation:
    """A conversation up to the request to D0."""
    return named(converse) << (prefills(P0, 0), PREFILLED) << Release(P0)


def test_the_prefill_request_names_the_decode_engine_that_gets_the_reference(
    converse: Converse,
) -> None:
    after_prefill(converse) << (loads(D0), None) << END


def test_each_prefill_has_an_id_of_its_own(converse: Converse) -> None:
    (
        named(converse)
        << (prefills(P0, 0), RESET)
        << Release(P0)
        << FellBack(Role.PREFILL, "reset")
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << (prefills(P1, 1), PREFILLED)
        << Release(P1)
        << (loads(D0), None)
        << END
    )


def test_another_decode_engine_needs_another_prefill_even_after_a_refused_connection(
    converse: Converse,
) -> None:
    """The prefill engine would write into the memory of the first one."""
    (
        after_prefill(converse)
        << (loads(D0), REFUSED)
        << Release(D0)
        << (Check(Role.DECODE, frozenset({D0})), None)
        << FellBack(Role.DECODE, "refused")
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0, 1, D1), PREFILLED)
        << Release(P0)
        << (loads(D1), None)
        << END
    )


def test_after_a_failed_load_the_same_decode_engine_may_be_named_again(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (loads(D0), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0, 1), PREFILLED)
        << Release(P0)
        << (loads(D0), None)
        << END
    )


def test_without_a_reference_the_prompt_is_computed_by_an_engine_leased_for_that(
    converse: Converse,
) -> None:
    (
        named(converse)
        << (prefills(P0, 0), reply(200, b'{"kv_transfer_params":null}'))
        << Release(P0)
        << FellBack(Role.PREFILL, "no_kv_params")
        << Release(D0)
        << (Lease(Role.DECODE), D1)
        << (computes(D1), None)
        << END
    )


def test_a_prefill_engines_4xx_passes_through_and_nothing_stays_leased(converse: Converse) -> None:
    (
        named(converse)
        << (prefills(P0, 0), reply(400, b"its words"))
        << Release(P0)
        << Release(D0)
        << Send(reply(400, b"its words"))
        << END
    )


def test_without_a_decode_engine_of_its_kind_there_is_no_prefill(converse: Converse) -> None:
    (
        converse(plan())
        << (Check(Role.DECODE), None)
        << (Lease(Role.DECODE, computes=False), NoPartner("none"))
        << FellBack(Role.DECODE, "no_partner")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


def test_a_continued_chat_has_its_tokens_in_both_requests(converse: Converse) -> None:
    facts = changed(FACTS, prompt_ids=b"[5,6]")
    tokens = b',"prompt_token_ids":[5,6]}}'
    asked, decode = prefills(P0, 0), loads(D0)
    (
        named(converse, facts)
        << (replace(asked, body=asked.body[:-2] + tokens), PREFILLED)
        << Release(P0)
        << (replace(decode, body=decode.body[:-2] + tokens), None)
        << END
    )
