"""The nixl plan up to the decode engine: the order of the legs, and failures of the prefill leg."""

from dataclasses import replace

import pytest

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.nixl import PREFILL_PARAMS, nixl
from router.core.plans.prefill import KV_KEY, body_for_prefill
from router.core.plans.steps import Call, Check, Lease, Release, Send, Stream
from router.core.values import Failure, Reply, Role
from tests.core.fixtures import (
    BROKEN,
    BUSY,
    CHAT,
    D0,
    D1,
    LOAD_FAILED,
    NO_ENGINE,
    P0,
    P1,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    changed,
    read,
    reply,
    request,
    sample,
)
from tests.core.plans.conversation import END, Conversation, Converse, Raises
from tests.core.plans.nixl_dialogue import (
    FACTS,
    PREFILL_BODY,
    RAW,
    REFERENCE,
    after_prefill,
    computes,
    decodes,
    p0_answers,
    prefilled,
    prefills,
)


def test_prefill_engine_computes_prompt_decode_answers(converse: Converse) -> None:
    after_prefill(converse) << decodes(D0) >> None << END


@pytest.mark.parametrize("name", ["prefill_chat.json", "prefill_completions.json"])
def test_a_recorded_reference_goes_on_byte_for_byte(name: str) -> None:
    recorded = sample(name)
    plan = nixl(FACTS)
    for answer in (None, None, P0, reply(200, recorded), None):
        plan.send(answer)
    step = plan.send(D0)
    assert isinstance(step, Stream)
    begin = recorded.index(b'"kv_transfer_params":') + len(b'"kv_transfer_params":')
    end = recorded.index(b',"ec_transfer_params"')
    assert step.body == RAW[:-1] + b',"kv_transfer_params":' + recorded[begin:end] + b"}"
    plan.close()


def test_references_of_engines_with_one_id_are_distinguished() -> None:
    """Data-parallel engines that all call themselves the same: an id is nothing to the router, and
    each reference names its own host."""
    for prefill in (P0, P1):
        plan = nixl(FACTS)
        told = b'{"remote_engine_id":"same","remote_host":"%b"}' % prefill.url.encode()
        for answer in (None, None, prefill, prefilled(told), None):
            plan.send(answer)
        step = plan.send(D0)
        assert isinstance(step, Stream)
        assert step.body == RAW[:-1] + b',"kv_transfer_params":' + told + b"}"
        plan.close()


def test_a_large_body_is_sent_in_pieces(converse: Converse) -> None:
    facts = read(CHAT, RAW)
    facts.lead, facts.raw = (RAW[:9], RAW[9:20]), RAW[20:]
    made = b'{"max_tokens":1}'
    facts.prefill = (made[:5], made[5:])
    ask = b',"kv_transfer_params":' + PREFILL_BODY.partition(b'"kv_transfer_params":')[2]
    decode = RAW[20:-1] + b',"kv_transfer_params":' + REFERENCE + b"}"
    (
        converse(nixl(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (Call(P0, CHAT, made[5:-1] + ask, lead=(made[:5],)), prefilled(REFERENCE))
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D0)
        << (replace(decodes(D0), body=decode, lead=facts.lead), BUSY)
        << Release(D0)
        << (Check(Role.DECODE, frozenset({D0})), None)
        << FellBack(Role.DECODE, "busy")
        << (Lease(Role.PREFILL), NO_ENGINE)
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << (replace(computes(D1, facts), lead=facts.lead), None)
        << END
    )


def test_without_a_decode_engine_nothing_is_prefilled(converse: Converse) -> None:
    converse(nixl(FACTS)) << Check(Role.DECODE) >> NO_ENGINE << Raises(NoEngine)


def test_decode_engines_that_went_away_during_the_prefill_are_a_503(converse: Converse) -> None:
    (
        p0_answers(converse, prefilled(REFERENCE))
        << (Lease(Role.DECODE, computes=False), NO_ENGINE)
        << Raises(NoEngine)
    )


def test_no_decode_engine_after_failed_prefill_is_503(converse: Converse) -> None:
    (
        converse(nixl(FACTS))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), NO_ENGINE)
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << (Lease(Role.DECODE), NO_ENGINE)
        << Raises(NoEngine)
    )


def test_decode_engines_that_went_away_after_a_failed_load_are_a_503(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), NO_ENGINE)
        << Raises(NoEngine)
    )


# The prefill leg.


@pytest.mark.parametrize("status", [400, 401, 422])
def test_a_prefill_engines_4xx_passes_through(converse: Converse, status: int) -> None:
    (p0_answers(converse, reply(status, b"its words")) << Send(reply(status, b"its words")) << END)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (reply(500), "status_5xx"),
        (BUSY, "busy"),
        (REFUSED, "refused"),
        (RESET, "reset"),
        (BROKEN, "broken"),
        (SILENT, "timeout"),
    ],
)
class TestAPrefillEngineThatFails:
    """It is replaced once; then the decode engine computes the prompt."""

    def test_is_followed_by_another(
        self, converse: Converse, outcome: Reply | Failure, reason: str
    ) -> None:
        (
            p0_answers(converse, outcome)
            << FellBack(Role.PREFILL, reason)
            << (Lease(Role.PREFILL, frozenset({P0})), P1)
            << (prefills(P1), prefilled(REFERENCE))
            << Release(P1)
            << (Lease(Role.DECODE, computes=False), D0)
            << (decodes(D0), None)
            << END
        )

    def test_twice_leaves_it_to_the_decode_engine(
        self, converse: Converse, outcome: Reply | Failure, reason: str
    ) -> None:
        (
            p0_answers(converse, REFUSED)
            << FellBack(Role.PREFILL, "refused")
            << (Lease(Role.PREFILL, frozenset({P0})), P1)
            << (prefills(P1), outcome)
            << Release(P1)
            << FellBack(Role.PREFILL, reason)
            << (Lease(Role.DECODE), D0)
            << (computes(D0), None)
            << END
        )

    def test_alone_leaves_it_to_the_decode_engine(
        self, converse: Converse, outcome: Reply | Failure, reason: str
    ) -> None:
        (
            p0_answers(converse, outcome)
            << FellBack(Role.PREFILL, reason)
            << (Lease(Role.PREFILL, frozenset({P0})), NO_ENGINE)
            << (Lease(Role.DECODE), D0)
            << (computes(D0), None)
            << END
        )


def test_without_prefill_engine_decode_computes_the_prompt(converse: Converse) -> None:
    (
        converse(nixl(FACTS))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), NO_ENGINE)
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"x"}',
        b'{"id":"x","kv_transfer_params":null}',
        b'{"kv_transfer_params":{}}',
        b'{"kv_transfer_params":{ \r\n }}',
        b'{"kv_transfer_params":[1]}',
        b'{"kv_transfer_params":"x"}',
        b'{"kv_transfer_params":7}',
        b'{"kv_transfer_params":{"remote_port":1',
        b'[{"kv_transfer_params":{"remote_port":1}}]',
        b"",
        b"\xff",
        b"data: {}\n\n",
    ],
)
def test_unusable_reference_leaves_it_to_decode(converse: Converse, body: bytes) -> None:
    (
        p0_answers(converse, reply(200, body))
        << FellBack(Role.PREFILL, "no_kv_params")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


@pytest.mark.parametrize("status", [400, 422])
def test_refused_forced_tool_is_left_to_decode(converse: Converse, status: int) -> None:
    """Its parser may not take one token for a call. If the request is wrong, the client learns it
    from the decode engine."""
    facts = changed(FACTS, forces_tool=True)
    (
        converse(nixl(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0), reply(status))
        << Release(P0)
        << FellBack(Role.PREFILL, "forced_tool")
        << (Lease(Role.DECODE), D0)
        << (computes(D0, facts), None)
        << END
    )


def after_named_prefill(converse: Converse, path: str, answer: Reply | Failure) -> Conversation:
    """A conversation about a request with a `request_id`, up to its prefill's end."""
    facts = request(path, request_id="mine")
    body = body_for_prefill(facts, **{KV_KEY: PREFILL_PARAMS})
    assert body is not None
    return (
        converse(nixl(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (Call(P0, path, body), answer)
        << Release(P0)
    )


PUSHED = b'{"remote_host":"p0","transfer_mode":"push"}'


def test_in_push_mode_a_response_with_the_clients_id_is_left_to_decode(converse: Converse) -> None:
    """The id may be that of another request, whose KV cache the engine would get."""
    (
        after_named_prefill(converse, RESPONSES, prefilled(PUSHED))
        << FellBack(Role.PREFILL, "given_id")
        << (Lease(Role.DECODE), D0)
        << (computes(D0, request(RESPONSES, request_id="mine")), None)
        << END
    )


@pytest.mark.parametrize(
    ("path", "reference"),
    [(CHAT, PUSHED), (RESPONSES, PUSHED.replace(b"push", b"pull")), (RESPONSES, REFERENCE)],
    ids=["another route", "pull mode", "no mode"],
)
def test_otherwise_a_clients_id_changes_nothing(
    converse: Converse, path: str, reference: bytes
) -> None:
    """On other routes vLLM prefers X-Request-Id."""
    raw = request(path, request_id="mine").raw[:-1] + b',"kv_transfer_params":' + reference + b"}"
    (
        after_named_prefill(converse, path, prefilled(reference))
        << (Lease(Role.DECODE, computes=False), D0)
        << (replace(decodes(D0), path=path, body=raw), None)
        << END
    )


@pytest.mark.parametrize("answer", [reply(400), reply(200, b"{}")])
def test_a_refusal_of_such_a_request_and_a_reply_without_reference_are_as_usual(
    converse: Converse, answer: Reply
) -> None:
    talk = after_named_prefill(converse, RESPONSES, answer)
    if answer.status == 400:
        talk << Send(answer) << END
    else:
        talk << FellBack(Role.PREFILL, "no_kv_params") << (Lease(Role.DECODE), D0)
        talk << (computes(D0, request(RESPONSES, request_id="mine")), None) << END


def test_without_a_reply_such_a_request_is_left_to_decode(converse: Converse) -> None:
    (
        after_named_prefill(converse, RESPONSES, REFUSED)
        << FellBack(Role.PREFILL, "refused")
        << (Lease(Role.PREFILL, frozenset({P0})), NO_ENGINE)
        << (Lease(Role.DECODE), D0)
        << (computes(D0, request(RESPONSES, request_id="mine")), None)
        << END
    )


def test_the_engine_that_a_response_names_is_leased_before_its_prefill(converse: Converse) -> None:
    facts = changed(FACTS, names_keeper=True)
    (
        converse(nixl(facts))
        << (Check(Role.DECODE), None)
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0), prefilled(REFERENCE))
        << Release(P0)
        << (decodes(D0), None)
        << END
    )
