"""The Mooncake plan: what differs from NIXL's (`test_by_reference.py`)."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from unittest.mock import ANY

import orjson
import pytest

from router.core.events import FellBack
from router.core.plans.mooncake import mooncake
from router.core.plans.splices import PrefillSplice
from router.core.plans.steps import Call, Check, Lease, Plan, Release, Retry, Send, Stream
from router.core.request_facts import Facts
from router.core.urls import with_rank
from router.core.values import Endpoint, Reply, Role, TransferSource
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    D0,
    D1,
    KEPT,
    LOAD_FAILED,
    P0,
    P1,
    REFUSED,
    RESET,
    RESPONSES,
    changed,
    read,
    reply,
    request,
)
from tests.core.plans.conversation import END, Conversation, Converse
from tests.core.plans.nixl_dialogue import FACTS, RAW, computes

SOURCES = {
    P0: TransferSource("http://p0:8998", "id-0"),
    P1: TransferSource("http://p1:8998", "id-1"),
}
PREFILLED = reply(
    200, b'{"choices":[{"finish_reason":"length"}],"usage":null,"kv_transfer_params":null}'
)
ONE_TOKEN = (
    b'{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":false,'
    b'"max_tokens":1,"ignore_eos":true'
)


def keep(number: int) -> bytes:
    """The parameters of a prefill request."""
    return b'{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-%d"}' % number


def load(number: int, source: TransferSource) -> bytes:
    """The parameters of a decode request."""
    return (
        b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_bootstrap_addr":"%b",'
        b'"remote_engine_id":"%b","transfer_id":"xfer-%d"}'
    ) % (source.bootstrap.encode(), source.engine_id.encode(), number)


def plan(facts: Facts = FACTS, known: dict[Endpoint, TransferSource] = SOURCES) -> Plan:
    """The plan, with ids from 0 on."""
    numbers = count()
    return mooncake(facts, known.get, lambda: str(next(numbers)))


def prefills(endpoint: Endpoint, number: int) -> Call:
    """The request to a prefill engine."""
    return Call(endpoint, CHAT, ONE_TOKEN + b',"kv_transfer_params":' + keep(number) + b"}")


def loads(endpoint: Endpoint, number: int, source: TransferSource) -> Stream:
    """The client's bytes with the parameters at their end."""
    body = RAW[:-1] + b',"kv_transfer_params":' + load(number, source) + b"}"
    splice = PrefillSplice(None)
    return Stream(endpoint, CHAT, body, KEPT, hold=True, replay=False, splice=splice, keeps_id=True)


def p0_answers(converse: Converse, answer: Reply = PREFILLED) -> Conversation:
    """A conversation up to where P0 has answered."""
    return (
        converse(plan())
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0, 0), answer)
        << Release(P0)
    )


def after_prefill(converse: Converse) -> Conversation:
    """A conversation up to the request to the decode engine."""
    return p0_answers(converse) << (Lease(Role.DECODE, computes=False), D0)


def test_both_requests_have_the_transfer_id_each_in_its_role(converse: Converse) -> None:
    after_prefill(converse) << (loads(D0, 0, SOURCES[P0]), None) << END


def test_each_prefill_has_an_id_of_its_own(converse: Converse) -> None:
    """Another prefill engine is another source, too."""
    (
        converse(plan())
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0, 0), RESET)
        << Release(P0)
        << FellBack(Role.PREFILL, "reset")
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << (prefills(P1, 1), PREFILLED)
        << Release(P1)
        << (Lease(Role.DECODE, computes=False), D0)
        << (loads(D0, 1, SOURCES[P1]), None)
        << END
    )


def test_an_id_that_a_decode_engine_may_have_asked_for_is_not_used_again(
    converse: Converse,
) -> None:
    (
        after_prefill(converse)
        << (loads(D0, 0, SOURCES[P0]), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0, 1), PREFILLED)
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D0)
        << (loads(D0, 1, SOURCES[P0]), None)
        << END
    )


def test_an_id_that_nobody_has_asked_for_goes_to_the_next_engine(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (loads(D0, 0, SOURCES[P0]), REFUSED)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << FellBack(Role.DECODE, "refused")
        << (loads(D1, 0, SOURCES[P0]), None)
        << END
    )


def test_an_engine_whose_id_is_not_known_computes_nothing(converse: Converse) -> None:
    (
        converse(plan(known={P1: SOURCES[P1]}))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << FellBack(Role.PREFILL, "no_engine_id")
        << Release(P0)
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << (prefills(P1, 0), PREFILLED)
        << Release(P1)
        << (Lease(Role.DECODE, computes=False), D0)
        << (loads(D0, 0, SOURCES[P1]), None)
        << END
    )


def test_without_any_id_the_decode_engine_computes_the_prompt(converse: Converse) -> None:
    (
        converse(plan(known={}))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << FellBack(Role.PREFILL, "no_engine_id")
        << Release(P0)
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << FellBack(Role.PREFILL, "no_engine_id")
        << Release(P1)
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


RANK = Endpoint(with_rank(P0.url, 1), Role.PREFILL)


def test_a_rank_computes_what_is_pinned_to_it(converse: Converse) -> None:
    (
        converse(plan(known={RANK: SOURCES[P0]}))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), RANK)
        << (prefills(RANK, 0), PREFILLED)
        << Release(RANK)
        << (Lease(Role.DECODE, computes=False), D0)
        << (loads(D0, 0, SOURCES[P0]), None)
        << END
    )


def test_responses_of_which_the_engine_chooses_the_rank_go_to_others(converse: Converse) -> None:
    """A decode engine would wait at the leased rank for what another rank keeps."""
    facts = request(RESPONSES, model="tiny", input="Hello")
    one_token = b'"max_output_tokens":1,"ignore_eos":true,"store":false,"stream":false'
    body = facts.raw[:-1] + b"," + one_token + b',"kv_transfer_params":' + keep(0) + b"}"
    (
        converse(plan(facts, {RANK: SOURCES[P0], P1: SOURCES[P1]}))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), RANK)
        << FellBack(Role.PREFILL, "unpinned_rank")
        << Release(RANK)
        << (Lease(Role.PREFILL, frozenset({RANK})), P1)
        << (Call(P1, RESPONSES, body), RESET)
        << Release(P1)
        << FellBack(Role.PREFILL, "reset")
        << (Lease(Role.DECODE), D0)
        << (computes(D0, facts), None)
        << END
    )


def test_a_restart_during_the_prefill_does_not_lead_to_the_new_engine(converse: Converse) -> None:
    """It does not know the transfer id, and would let the decode engine wait."""
    known = dict(SOURCES)
    numbers = count()
    conversation = (
        converse(mooncake(FACTS, known.get, lambda: str(next(numbers))))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << prefills(P0, 0)
    )
    known[P0] = TransferSource("http://p0:8998", "id-9")
    (
        conversation
        >> PREFILLED
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D0)
        << (loads(D0, 0, SOURCES[P0]), None)
        << END
    )


ENDS: Iterable[tuple[bytes, bool]] = (
    (b'{"choices":[{"finish_reason":"length"}]}', True),
    (b'{"choices":[{"finish_reason": "tool_calls"}]}', True),
    (b'{"type":"message","stop_reason":"max_tokens"}', True),
    (b'{"object":"response","status":"incomplete"}', True),
    (b'{"choices":[{"finish_reason":"abort"}]}', False),
    (b'{"choices":[{"finish_reason":"stop"}]}', False),
    (b'{"choices":[{"finish_reason":"repetition"}]}', False),
    (b'{"type":"message","stop_reason":null}', False),
    (b'{"object":"response","status":"completed"}', False),
    (b'{"metadata":{"status":"incomplete"},"status":"failed"}', False),
    (b'{"tools":[{"finish_reason":"length"}],"status":"failed"}', False),
    (b'{"choices":[{"text":"\\"finish_reason\\":\\"length\\"","finish_reason":"stop"}]}', False),
    (b"no JSON", False),
)


@pytest.mark.parametrize(("body", "is_kept"), ENDS)
def test_only_a_prefill_that_its_limit_ended_is_asked_for(
    converse: Converse, body: bytes, is_kept: bool
) -> None:
    """vLLM drops the blocks of any other, and the decode engine would wait for them."""
    conversation = p0_answers(converse, reply(200, body))
    if is_kept:
        (
            conversation
            << (Lease(Role.DECODE, computes=False), D0)
            << (
                replace(loads(D0, 0, SOURCES[P0]), splice=ANY),
                None,
            )
            << END
        )
        return
    (
        conversation
        << FellBack(Role.PREFILL, "no_kv_params")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


def test_a_prefill_engines_4xx_passes_through(converse: Converse) -> None:
    p0_answers(converse, reply(400, b"its words")) << Send(reply(400, b"its words")) << END


def test_a_continued_chat_has_its_tokens_in_both_requests(converse: Converse) -> None:
    facts = changed(FACTS, prompt_ids=b"[5,6]")
    tokens = b',"prompt_token_ids":[5,6]}'
    asked = replace(prefills(P0, 0), body=prefills(P0, 0).body[:-2] + tokens + b"}")
    decode = loads(D0, 0, SOURCES[P0])
    (
        converse(plan(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (asked, PREFILLED)
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D0)
        << (replace(decode, body=decode.body[:-2] + tokens + b"}"), None)
        << END
    )


def test_a_large_body_is_sent_in_pieces(converse: Converse) -> None:
    facts = read(CHAT, RAW)
    facts.lead, facts.raw = (RAW[:9],), RAW[9:]
    facts.prefill = (ONE_TOKEN[:5], ONE_TOKEN[5:] + b"}")
    asked = ONE_TOKEN[5:] + b',"kv_transfer_params":' + keep(0) + b"}"
    decode = loads(D0, 0, SOURCES[P0])
    (
        converse(plan(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (Call(P0, CHAT, asked, lead=(ONE_TOKEN[:5],)), PREFILLED)
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D0)
        << (replace(decode, body=decode.body[9:], lead=facts.lead), None)
        << END
    )


def test_parameters_of_clients_never_reach_an_engine(converse: Converse) -> None:
    """They would name hosts, or end an engine by the other role."""
    raw = b'{"prompt":"Hi","kv_transfer_params":{"do_remote_decode":true,"transfer_id":"mine"}}'
    facts = read(COMPLETIONS, raw)
    step = next(plan(facts))
    assert isinstance(step, Check)
    assert b"mine" not in facts.raw
    assert "kv_transfer_params" not in orjson.loads(facts.raw)
