"""The store plan: a prefill, then the client's own body, and what shows whether the prompt was
found."""

from dataclasses import replace

import pytest

from router.core.errors import EngineTimedOut, NoEngine, NoPartner
from router.core.events import FellBack
from router.core.plans.splices import PrefillSplice
from router.core.plans.steps import Call, Check, Lease, Release, Send, Stream
from router.core.plans.store import StoreSplice, store
from router.core.values import Endpoint, Failure, Reply, Role
from tests.core.fixtures import (
    BUSY,
    CHAT,
    COMPLETIONS,
    D0,
    D1,
    KEPT,
    LOAD_FAILED,
    NO_ENGINE,
    P0,
    P1,
    REFUSED,
    RESET,
    SILENT,
    changed,
    read,
    reply,
)
from tests.core.plans.conversation import END, Conversation, Converse, Raises
from tests.core.plans.nixl_dialogue import FACTS, RAW, computes

PREFILL_BODY = (
    b'{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":false,'
    b'"max_tokens":1,"ignore_eos":true}'
)
PREFILLED = reply(200, b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}')


def loads(endpoint: Endpoint) -> Stream:
    """The decode engine gets the client's bytes as they came."""
    splice = StoreSplice(PrefillSplice(3))
    return Stream(endpoint, CHAT, RAW, KEPT, hold=True, replay=True, splice=splice)


def p0_answers(converse: Converse, outcome: Reply | Failure) -> Conversation:
    return (
        converse(store(FACTS))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (Call(P0, CHAT, PREFILL_BODY), outcome)
        << Release(P0)
    )


def after_prefill(converse: Converse) -> Conversation:
    return p0_answers(converse, PREFILLED) << (Lease(Role.DECODE, computes=False), D0)


def test_both_engines_get_the_prompt_and_no_parameters(converse: Converse) -> None:
    after_prefill(converse) << (loads(D0), None) << END


def test_a_large_body_is_sent_in_pieces(converse: Converse) -> None:
    facts = read(CHAT, RAW)
    facts.lead, facts.raw = (RAW[:9],), RAW[9:]
    facts.prefill = (PREFILL_BODY[:5], PREFILL_BODY[5:])
    (
        converse(store(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (Call(P0, CHAT, PREFILL_BODY[5:], lead=(PREFILL_BODY[:5],)), PREFILLED)
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D0)
        << (replace(loads(D0), body=RAW[9:], lead=facts.lead), None)
        << END
    )


def test_without_a_decode_engine_nothing_is_prefilled(converse: Converse) -> None:
    converse(store(FACTS)) << Check(Role.DECODE) >> NO_ENGINE << Raises(NoEngine)


def test_a_prefill_engines_4xx_passes_through(converse: Converse) -> None:
    p0_answers(converse, reply(400, b"its words")) << Send(reply(400, b"its words")) << END


def test_failed_prefills_leave_the_prompt_to_decode(converse: Converse) -> None:
    (
        p0_answers(converse, RESET)
        << FellBack(Role.PREFILL, "reset")
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << (Call(P1, CHAT, PREFILL_BODY), BUSY)
        << Release(P1)
        << FellBack(Role.PREFILL, "busy")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


def test_a_body_that_cannot_be_rewritten_is_left_to_decode(converse: Converse) -> None:
    body = b'{"model":"m","prompt":[1],"x":' + b"[" * 300 + b"]" * 300 + b"}"
    (
        converse(store(read(COMPLETIONS, body)))
        << (Check(Role.DECODE), None)
        << FellBack(Role.PREFILL, "nested_too_deep")
        << (Lease(Role.DECODE), D0)
        << (Stream(D0, COMPLETIONS, body, KEPT), None)
        << END
    )


def test_an_engine_of_another_version_computes_the_prompt(converse: Converse) -> None:
    (
        p0_answers(converse, PREFILLED)
        << (Lease(Role.DECODE, computes=False), NoPartner("versions differ"))
        << FellBack(Role.DECODE, "no_partner")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(REFUSED, "refused"), (RESET, "reset"), (BUSY, "busy"), (LOAD_FAILED, "status_5xx")],
)
def test_failed_decode_is_asked_elsewhere_without_another_prefill(
    converse: Converse, outcome: Reply | Failure, reason: str
) -> None:
    (
        after_prefill(converse)
        << (loads(D0), outcome)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << FellBack(Role.DECODE, reason)
        << (computes(D1), None)
        << END
    )


def test_a_decode_engine_that_is_silent_for_too_long_is_final(converse: Converse) -> None:
    after_prefill(converse) << (loads(D0), SILENT) << Raises(EngineTimedOut, "sent nothing")


def test_a_continued_stream_finds_its_prompt_in_the_store(converse: Converse) -> None:
    facts = changed(FACTS, tried=frozenset({D0}))
    (
        converse(store(facts))
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << (computes(D1, facts), None)
        << END
    )


# Whether the prompt was found.


def usage(prompt: int, cached: object) -> bytes:
    details = b'{"cached_tokens":%b}' % str(cached).encode() if cached is not None else b"null"
    return b'{"usage":{"prompt_tokens":%d,"completion_tokens":2,"prompt_tokens_details":%b}}' % (
        prompt,
        details,
    )


@pytest.mark.parametrize(
    ("cached", "is_missed"), [(0, True), (499, True), (500, False), (999, False), (None, False)]
)
@pytest.mark.parametrize("then", [PrefillSplice(3), None])
def test_a_prompt_that_is_hardly_cached_was_not_found(
    cached: int | None, is_missed: bool, then: PrefillSplice | None
) -> None:
    answer = usage(1000, cached)
    unary, streamed = StoreSplice(then), StoreSplice(then)
    expected = answer if then is None or cached is None else usage(1000, 3)
    assert unary.body(answer) == expected
    assert unary.is_missed is is_missed
    event = b'data: {"choices":[]}\n\ndata: ' + answer + b"\n\n"
    assert streamed.events(event) == event.replace(answer, expected)
    assert streamed.is_missed is is_missed


def test_an_answer_without_usage_says_nothing() -> None:
    splice = StoreSplice(None)
    assert splice.events(b'data: {"choices":[{"text":"\\"usage\\""}]}\n\n')
    assert not splice.is_missed


def test_messages_state_what_was_read_from_the_cache() -> None:
    splice = StoreSplice(PrefillSplice(0))
    splice.body(b'{"usage":{"input_tokens":90,"output_tokens":2,"cache_read_input_tokens":10}}')
    assert splice.is_missed
    splice.body(b'{"usage":{"input_tokens":10,"output_tokens":2,"cache_read_input_tokens":90}}')
    assert not splice.is_missed
