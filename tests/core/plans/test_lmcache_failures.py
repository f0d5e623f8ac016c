"""What becomes of failures of the lmcache plan's legs."""

import pytest

from router.core.errors import EngineFailed, EngineTimedOut, NoEngine
from router.core.events import FellBack
from router.core.plans.renamed import renamed
from router.core.plans.steps import AwaitKV, Call, Lease, Release, Retry, Send
from router.core.request_facts import Facts
from router.core.values import Reply, Role
from tests.core.fixtures import (
    BROKEN,
    BUSY,
    CHAT,
    COMPLETIONS,
    D0,
    D1,
    LOAD_FAILED,
    NO_ENGINE,
    P0,
    P1,
    REFUSED,
    RESET,
    SILENT,
    read,
    reply,
)
from tests.core.plans.conversation import END, Converse, Raises
from tests.core.plans.lmcache_dialogue import (
    IDS,
    TALK,
    TEXT,
    TOKENS,
    computes,
    decodes_ids,
    decodes_own,
    decodes_text,
    plan,
    prefilled,
    prefills_ids,
    prefills_talk,
    prefills_text,
    sampled,
    spec,
    tokenizes,
)

# Failures of the prefill leg.


def test_second_prefill_engine_gets_own_id_and_same_tokens(converse: Converse) -> None:
    (
        converse(plan(TEXT, notify=True))
        << (Lease(Role.DECODE, computes=False), D1)
        << (Lease(Role.PREFILL), P0)
        << (tokenizes(P0), TOKENS)
        << (Call(P0, COMPLETIONS, _to_d1(prefills_text(P0, "t1"))), RESET)
        << Release(P0)
        << FellBack(Role.PREFILL, "reset")
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << (Call(P1, COMPLETIONS, _to_d1(prefills_text(P1, "t2"))), sampled())
        << Release(P1)
        << (AwaitKV("t2", 1), True)
        << (decodes_text(D1), None)
        << END
    )


def _to_d1(call: Call) -> bytes:
    """The same prefill, into the other decode engine's receiver."""
    transfer_id = "t1" if b'"t1"' in call.body else "t2"
    return call.body.replace(
        spec(transfer_id).encode(), spec(transfer_id, "d1-kv", ranks=1).encode()
    )


@pytest.mark.parametrize("failure", [REFUSED, SILENT, reply(500), reply(503), reply(429)])
def test_an_engine_that_cannot_tokenise_is_passed_over(failure: object, converse: Converse) -> None:
    reason = "refused" if failure is REFUSED else "timeout"
    if isinstance(failure, Reply):
        reason = "status_5xx" if failure.status == 500 else "busy"
    (
        converse(plan(TEXT))
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (tokenizes(P0), failure)
        << Release(P0)
        << FellBack(Role.PREFILL, reason)
        << (Lease(Role.PREFILL, frozenset({P0})), P1)
        << (tokenizes(P1), TOKENS)
        << (prefills_text(P1), sampled())
        << Release(P1)
        << (decodes_text(D0), None)
        << END
    )


@pytest.mark.parametrize(
    "answer",
    [
        reply(404, TOKENS.body),
        reply(200, b"{}"),
        reply(200, b"nothing"),
        reply(200, b'{"tokens":[]}'),
        reply(200, b'{"tokens":[1,true]}'),
        reply(200, b'{"tokens":"567"}'),
    ],
)
def test_untokenised_request_goes_to_both_engines(answer: Reply, converse: Converse) -> None:
    own = (
        '{"model":"tiny","prompt":"Hello","max_tokens":1,"stream":false,"ignore_eos":true,'
        f'"kv_transfer_params":{{"disagg_spec":{spec("t1")}}}}}'
    )
    (
        converse(plan(TEXT))
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (tokenizes(P0), answer)
        << FellBack(Role.PREFILL, "tokenize_failed")
        << (Call(P0, COMPLETIONS, own.encode()), sampled(finish="stop"))
        << Release(P0)
        << (decodes_own(TEXT, D0), None)
        << END
    )


@pytest.mark.parametrize("facts", [IDS, TALK])
@pytest.mark.parametrize("status", [400, 401, 422])
def test_a_4xx_of_the_prefill_engine_is_the_clients(
    status: int, facts: Facts, converse: Converse
) -> None:
    answer = reply(status, b'{"error":{}}')
    _ = prefilled(converse, answer, facts) << Send(answer) << END


@pytest.mark.parametrize("facts", [IDS, TALK])
def test_without_prefill_engines_decode_computes(facts: Facts, converse: Converse) -> None:
    (
        converse(plan(facts))
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), NO_ENGINE)
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Release(D0)
        << (Lease(Role.DECODE), D0)
        << (computes(facts, D0), None)
        << END
    )


def test_without_decode_engines_there_is_no_answer(converse: Converse) -> None:
    _ = converse(plan(IDS)) << Lease(Role.DECODE, computes=False) >> NO_ENGINE << Raises(NoEngine)


def test_a_body_that_cannot_be_written_anew_is_computed(converse: Converse) -> None:
    deep = b"[" * 300 + b"]" * 300
    facts = read(CHAT, b'{"messages":[],"tools":%b}' % deep)
    (
        converse(plan(facts))
        << (Lease(Role.DECODE, computes=False), D0)
        << FellBack(Role.PREFILL, "nested_too_deep")
        << Release(D0)
        << (Lease(Role.DECODE), D0)
        << (computes(facts, D0), None)
        << END
    )


# Failures of the decode leg.


@pytest.mark.parametrize("status", [400, 404, 422, 499])
def test_a_refused_continuation_is_retried_with_the_clients_own_body(
    status: int, converse: Converse
) -> None:
    """A prompt that fills the context has no place for the first token: 400 to the longer one."""
    (
        prefilled(converse, sampled())
        << (decodes_ids(D0), reply(status))
        << FellBack(Role.DECODE, "splice_refused")
        << (computes(IDS, D0), None)
        << END
    )


def test_a_refused_continuation_of_an_aliased_request_is_retried_too() -> None:
    """The alias puts a splice of its own around the first token's."""
    steps = renamed(plan(IDS), IDS, "gpt")
    next(steps)
    for answer in (D0, P0, sampled(), None):
        steps.send(answer)
    assert steps.send(reply(400)) == FellBack(Role.DECODE, "splice_refused")


def test_an_error_event_for_the_own_request_is_the_clients(converse: Converse) -> None:
    refused = reply(400, b'data: {"error":{"code":400}}\n\n')
    _ = (
        prefilled(converse, sampled(), TALK)
        << (decodes_own(TALK, D0), refused)
        << Send(refused)
        << END
    )


@pytest.mark.parametrize("facts", [IDS, TALK])
def test_a_failed_load_is_worth_one_more_prefill(facts: Facts, converse: Converse) -> None:
    prefills, decodes = (
        (prefills_ids, decodes_ids(D0)) if facts is IDS else (prefills_talk, decodes_own(TALK, D0))
    )
    (
        prefilled(converse, sampled(), facts)
        << (decodes, LOAD_FAILED)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.PREFILL), P1)
        << (prefills(P1, "t2"), sampled())
        << Release(P1)
        << (decodes, LOAD_FAILED)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << Release(D0)
        << (Lease(Role.DECODE), D0)
        << (computes(facts, D0), None)
        << END
    )


def test_without_a_retry_left_a_failed_load_is_the_clients_answer(converse: Converse) -> None:
    (
        prefilled(converse, sampled())
        << (decodes_ids(D0), LOAD_FAILED)
        << (Retry(Role.DECODE), False)
        << Send(LOAD_FAILED)
        << END
    )


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(REFUSED, "refused"), (RESET, "reset"), (BUSY, "busy"), (reply(504), "status_5xx")],
)
@pytest.mark.parametrize("facts", [IDS, TALK])
def test_another_decode_engine_computes_the_prompt_itself(
    facts: Facts, outcome: object, reason: str, converse: Converse
) -> None:
    (
        prefilled(converse, sampled(), facts)
        << ((decodes_ids(D0) if facts is IDS else decodes_own(TALK, D0)), outcome)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << FellBack(Role.DECODE, reason)
        << (computes(facts, D1), None)
        << END
    )


def test_without_another_decode_engine_the_client_gets_the_failure(converse: Converse) -> None:
    (
        prefilled(converse, sampled())
        << (decodes_ids(D0), BROKEN)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), NO_ENGINE)
        << Raises(EngineFailed, "broken off")
    )


def test_a_silent_decode_engine_is_not_replaced(converse: Converse) -> None:
    talk = prefilled(converse, sampled())
    _ = talk << decodes_ids(D0) >> SILENT << Raises(EngineTimedOut)
