"""A request's run: leases, record, retries, and the state at its end."""

from random import Random
from typing import Any

import orjson
import pytest

from router.core.errors import EngineFailed, NoEngine
from router.core.events import Decided, FellBack, LegAnswered, LegDone, LegFailed, Probed
from router.core.health import HealthSignal
from router.core.plans.direct import direct
from router.core.plans.nixl import nixl
from router.core.plans.renamed import renamed
from router.core.plans.steps import AwaitKV, BackOff, Call, Lease, LeaseHealthy, Plan, Send, Stream
from router.core.plans.store import store
from router.core.request_facts import Facts
from router.core.retry import AT_ONCE_SECONDS, BACK_OFF_SECONDS, FULL_SECONDS
from router.core.routing.request_run import RequestRun
from router.core.values import (
    Decision,
    Endpoint,
    Failure,
    FailureKind,
    Mode,
    PromptDelay,
    Reply,
    Role,
)
from tests.core.fixtures import (
    CHAT,
    D0,
    D1,
    D2,
    LOAD_FAILED,
    P0,
    P1,
    REFUSED,
    RESET,
    changed,
    reply,
    request,
)
from tests.core.fleets import up
from tests.core.routing.run_shell import ALL, FACTS, PREFILLED, STALLED, STORED, Shell


def test_an_answer_ends_the_run_and_its_lease() -> None:
    shell = Shell(D0)
    assert shell.start(direct(FACTS)) == D0
    assert shell.held == {D0}
    shell.run.answered(200, 0.5)
    assert shell.run.settle(None, None, 200, 2.0) is None
    shell.run.close()
    shell.run.close()
    assert shell.held == set()
    assert shell.events == [LegAnswered(D0, 200, 0.5), LegDone(D0)]
    assert shell.record.decode == D0


def test_a_first_token_after_the_plan_has_ended_drops_nothing() -> None:
    shell = Shell(D0)
    shell.start(direct(FACTS))
    assert shell.run.settle(None, None, 200, 1.0) is None
    shell.run.begun(1.0)
    shell.run.begun(1.0)
    assert shell.run.facts is None


def test_decisions_are_recorded_and_compared_ones_are_sampled_for_the_log() -> None:
    shell = Shell(D0)
    rule = Decision(Mode.DIRECT, "below_threshold")
    compared = Decision(Mode.REMOTE, "cheaper_remote", PromptDelay(0.5, 0.25))
    for decision in (rule, compared):
        shell.run.decided(decision)
    assert (shell.record.mode, shell.record.reason) == (Mode.REMOTE, "cheaper_remote")
    assert shell.events == []
    sampled = RequestRun(shell.scheduler, shell.events.append, shell.record, Random(0), sample=1.0)
    for decision in (rule, compared):
        sampled.decided(decision)
    assert shell.events == [Decided("id", compared)]


def test_a_prefill_engine_reports_the_prompt_length() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.replies(reply(200, b'{"usage":{"prompt_tokens":123},"kv_transfer_params":{"a":1}}'))
    assert shell.record.prompt_tokens == 123


def test_the_blocks_of_a_long_prompt_do_not_hide_how_long_it_is() -> None:
    """As vLLM has them: behind the usage."""
    blocks = b",".join(b"%d" % number for number in range(100_000, 101_000))
    usage = b'{"usage":{"prompt_tokens":16000,"total_tokens":16001,"completion_tokens":1}'
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.replies(
        reply(200, usage + b',"kv_transfer_params":{"remote_block_ids":[[%b]]}}' % blocks)
    )
    assert shell.record.prompt_tokens == 16_000


def test_a_prefill_engine_may_omit_the_prompt_length() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.replies(reply(200, b'{"prompt_tokens":123,"kv_transfer_params":{"a":1}}'))
    assert shell.record.prompt_tokens == 0


E0 = Endpoint("http://e0:8000", Role.ENCODE)
ENCODED = b'{"ec_transfer_params":{"a":{"item_indices":[0]}}}'
CARDS: list[dict[str, Any]] = [{"id": "adapter", "parent": "base"}, {"id": "base", "parent": None}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}}


def seeing() -> Facts:
    """A request with an image."""
    return request(CHAT, messages=[{"role": "user", "content": [IMAGE]}])


def test_media_are_encoded_first_and_count_on_the_encode_engine() -> None:
    facts = seeing()
    shell = Shell(E0, D0, facts=facts)
    assert shell.start(shell.scheduler.encoding(direct(facts), facts, 0.0)) == E0
    assert shell.held == {E0}
    assert shell.pending(E0) == facts.media_tokens
    assert shell.replies(reply(200, ENCODED)) == D0
    assert shell.held == {D0}
    assert (shell.record.encode, shell.record.decode) == (E0, D0)
    assert shell.record.prefill_seconds is None
    assert isinstance(shell.run.step, Stream)
    assert shell.run.step.body.endswith(b"," + ENCODED[1:])


@pytest.mark.parametrize("model", ["adapter", None])
def test_media_of_adapters_and_without_a_model_are_encoded_under_the_base_model(
    model: str | None,
) -> None:
    facts = seeing()
    facts.model = model
    other = Endpoint("http://e1:8000", Role.ENCODE)
    shell = Shell(other, E0, D0, facts=facts)
    cards: dict[Endpoint, list[dict[str, Any]]]
    cards = {other: [{"id": "other"}], E0: [{"id": "base"}], D0: CARDS}
    for endpoint, listed in cards.items():
        shell.fleet.observe(up(endpoint, *listed), 0.0)
    assert shell.start(shell.scheduler.encoding(direct(facts), facts, 0.0)) == E0
    assert isinstance(shell.run.step, Call)
    assert orjson.loads(shell.run.step.body)["model"] == "base"


def test_an_encode_engine_that_has_been_down_encodes_again() -> None:
    facts = seeing()
    for is_down in (False, True):
        shell = Shell(E0, D0, facts=facts)
        shell.start(shell.scheduler.encoding(direct(facts), facts, 0.0))
        shell.replies(reply(200, ENCODED))
        if is_down:
            for signal in (HealthSignal.UNAVAILABLE, HealthSignal.OK):
                shell.fleet.observe(Probed(E0, signal), 5.0)
        first = next(shell.scheduler.encoding(direct(facts), facts, 6.0))
        assert isinstance(first, LeaseHealthy) is is_down


def test_an_encode_engine_that_is_down_is_a_fallback() -> None:
    facts = seeing()
    shell = Shell(E0, D0, facts=facts)
    for _ in range(3):
        shell.up(E0, HealthSignal.FAILED)
    assert shell.start(shell.scheduler.encoding(direct(facts), facts, 0.0)) == D0
    assert shell.record.fallbacks == (FellBack(Role.ENCODE, "no_encode_engine"),)


def test_without_an_encode_pool_the_plan_stays() -> None:
    facts = seeing()
    plan = direct(facts)
    assert Shell(D0, facts=facts).scheduler.encoding(plan, facts, 0.0) is plan


def test_a_failed_prefill_is_no_measurement() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.fails(REFUSED)
    assert shell.record.prompt_tokens == 0


def test_prompts_count_where_they_are_computed() -> None:
    shell = Shell(P0, D0)
    assert shell.start(nixl(FACTS)) == P0
    assert shell.held == {P0}
    assert (shell.pending(P0), shell.pending(D0)) == (FACTS.tokens, 0)
    assert shell.replies(PREFILLED) == D0
    assert shell.held == {D0}
    assert shell.pending(D0) == 0
    assert shell.record.prefill_seconds == 1.0


def test_a_prompt_that_no_prefill_engine_takes_counts_on_the_decode_engine() -> None:
    shell = Shell(D0)
    assert shell.start(nixl(FACTS)) == D0
    assert shell.pending(D0) == FACTS.tokens
    assert shell.record.fallbacks == (FellBack(Role.PREFILL, "no_prefill_engine"),)
    assert shell.run.leg(0.0).counts.open == 1


def test_a_prompt_whose_prefill_failed_counts_on_the_decode_engine() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    assert shell.fails(REFUSED) == D0
    assert (shell.pending(P0), shell.pending(D0)) == (0, FACTS.tokens)
    assert shell.events[0] == LegFailed(P0, FailureKind.REFUSED, 0.0)


def test_a_decode_pool_that_empties_during_the_prefill_is_a_503() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.up(D0, HealthSignal.UNAVAILABLE)
    with pytest.raises(NoEngine):
        shell.replies(PREFILLED)
    shell.run.close()
    assert shell.held == set()


def test_no_prompt_is_prefilled_that_no_engine_could_decode() -> None:
    shell = Shell(P0, D0)
    shell.up(D0, HealthSignal.UNAVAILABLE)
    with pytest.raises(NoEngine):
        shell.start(nixl(FACTS))
    assert shell.events == []


def test_prefills_do_not_count_as_decode_engines_tried() -> None:
    shell = Shell(*ALL)
    shell.start(nixl(FACTS))
    assert shell.fails(RESET) == P1
    assert shell.replies(PREFILLED) == D0
    assert shell.run.may_leave_stalled(2.0)
    assert shell.fails(STALLED) == P0
    assert shell.replies(PREFILLED) == D1
    assert shell.run.may_leave_stalled(3.0)


def test_the_second_engine_is_tried_at_once_and_the_third_after_a_random_wait() -> None:
    shell = Shell(D0, D1, D2)
    shell.start(direct(FACTS))
    assert shell.fails(REFUSED) == D1
    assert shell.waits == []
    assert shell.fails(REFUSED) == D2  # not one that has failed
    [seconds] = shell.waits
    assert 0.0 < seconds <= 2 * BACK_OFF_SECONDS
    assert shell.held == {D2}


def test_no_lease_is_held_during_the_wait_and_a_later_failure_is_reported() -> None:
    shell = Shell(D0, D1, D2)
    shell.start(direct(FACTS))
    shell.fails(REFUSED)
    assert isinstance(shell.run.settle(REFUSED, REFUSED, 0, 1.0), BackOff)
    assert D2 not in shell.held
    shell.up(D2, HealthSignal.FAILED)
    for _ in range(3):
        shell.up(D2, HealthSignal.FAILED)
    with pytest.raises(EngineFailed):
        shell.run.answer(None, 1.1)
    shell.run.close()
    assert shell.held == set()


def test_a_client_that_leaves_during_the_wait_leaves_nothing_behind() -> None:
    shell = Shell(D0, D1, D2)
    shell.start(direct(FACTS))
    shell.fails(REFUSED)
    assert isinstance(shell.run.settle(REFUSED, REFUSED, 0, 1.0), BackOff)
    shell.run.close()
    assert shell.held == set()


def test_a_request_leaves_the_queue_of_an_engine_in_time() -> None:
    shell = Shell(D0, D1, D2)
    shell.start(direct(FACTS))
    shell.fails(REFUSED)
    action = shell.run.settle(REFUSED, REFUSED, 0, 1.0 + AT_ONCE_SECONDS)
    assert shell.asked(action) == D2
    assert shell.waits == []


def test_the_third_decode_engine_is_the_last() -> None:
    shell = Shell(D0, D1, D2, Endpoint("http://d9", Role.DECODE))
    shell.start(direct(FACTS))
    assert shell.fails(STALLED) == D1
    assert shell.run.may_leave_stalled(1.0)
    assert shell.fails(STALLED) == D2
    assert not shell.run.may_leave_stalled(1.0)


def test_after_two_failed_loads_the_next_decode_engine_is_the_last() -> None:
    shell = Shell(*ALL)
    shell.start(nixl(FACTS))
    assert shell.replies(PREFILLED) == D0
    assert shell.replies(LOAD_FAILED) == P1
    assert shell.replies(PREFILLED) == D1
    assert shell.run.may_leave_stalled(1.0)
    assert shell.replies(LOAD_FAILED) == D2
    assert not shell.run.may_leave_stalled(1.0)


def test_a_request_does_not_leave_for_an_engine_that_has_failed_it() -> None:
    shell = Shell(D0, D1)
    shell.start(direct(FACTS))
    assert shell.fails(REFUSED) == D1
    assert not shell.run.may_leave_stalled(1.0)


def test_a_request_that_leaves_traces_waits_for_a_stalled_engine() -> None:
    shell = Shell(D0, D1, facts=STORED)
    shell.start(direct(STORED))
    assert not shell.run.may_leave_stalled(1.0)


@pytest.mark.parametrize(
    ("facts", "outcome", "is_reused", "again"),
    [
        (FACTS, RESET, True, True),
        (FACTS, RESET, False, False),
        (FACTS, REFUSED, True, False),
        (FACTS, None, True, False),
        (STORED, RESET, True, False),
    ],
)
def test_only_a_reset_of_a_reused_connection_is_replayed(
    facts: Facts, outcome: Failure | None, is_reused: bool, again: bool
) -> None:
    shell = Shell(D0, facts=facts)
    shell.start(direct(facts))
    assert shell.run.replays(outcome, is_reused=is_reused) is again


def test_a_prefill_may_always_be_replayed() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    assert shell.run.replays(RESET, is_reused=True)


def test_unfixable_errors_are_raised() -> None:
    shell = Shell(D0)
    shell.start(direct(FACTS))
    with pytest.raises(EngineFailed, match="refused"):
        shell.fails(REFUSED)


def test_an_engines_own_answer_is_sent_from_memory() -> None:
    shell = Shell(D0)
    shell.start(direct(FACTS))
    busy = reply(503)
    assert shell.run.settle(busy, None, 503, 1.0) == Send(busy)
    assert shell.run.answer(None, 1.0) is None


@pytest.mark.parametrize(
    ("body", "is_fault", "seconds"),
    [
        (b'{"error":{"message":"full"}}', False, FULL_SECONDS),
        *((body, True, 0.0) for body in (b"<html>", b"[]", b"{}")),
    ],
)
def test_an_engine_that_is_full_is_at_no_fault(body: bytes, is_fault: bool, seconds: float) -> None:
    shell = Shell(D0)
    shell.start(direct(FACTS))
    shell.run.answered(503, 0.5)
    assert shell.events == []
    shell.run.settle(reply(503, body), None, 503, 1.0)
    assert shell.events == [LegAnswered(D0, 503, 1.0, is_fault, full_seconds=seconds)]


def test_an_errors_doer_is_the_engine_unless_it_loads_anothers_cache() -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.run.answered(500, 1.0)
    shell.replies(PREFILLED)
    shell.run.answered(500, 1.0)
    assert [
        event.counts_against_engine for event in shell.events if isinstance(event, LegAnswered)
    ] == [
        True,
        False,
    ]


def test_a_stream_that_has_begun_keeps_nothing_of_its_prompt_and_breaks_for_good() -> None:
    shell = Shell(D0, D1)
    shell.start(direct(FACTS))
    shell.run.begun(1.0)
    assert shell.run.facts is None
    assert shell.run.step.body == b""
    broken = Failure(FailureKind.BROKEN, "broken off")
    assert shell.run.settle(None, broken, 200, 1.0) is None
    assert shell.events == [LegFailed(D0, FailureKind.BROKEN, 0.0)]
    shell.run.close()
    assert shell.held == set()


def test_a_kv_cache_is_waited_for() -> None:
    shell = Shell(D0)

    def plan() -> Plan:
        ready = yield AwaitKV("t", 1)
        assert ready is True
        yield Send(reply(200))

    assert shell.run.start(FACTS, plan(), 0.0) == AwaitKV("t", 1)
    assert shell.run.answer(True, 1.0) == Send(reply(200))


def test_sampled_choices_are_logged_in_full() -> None:
    shell = Shell(D0, D1)
    shell.run._sample = 1.0
    shell.start(direct(FACTS))
    (chosen,) = shell.events
    assert len(chosen.candidates) == 2  # type: ignore[union-attr]


def test_a_prefill_is_one_sequence_and_its_decode_as_many_as_answers() -> None:
    facts = changed(FACTS, body={**FACTS.body, "n": 4})
    shell = Shell(P0, D0, facts=facts)
    assert shell.start(nixl(facts)) == P0
    assert shell.run.leg(0.0).sequences == 1
    assert shell.replies(PREFILLED) == D0
    assert shell.run.leg(1.0).sequences == 4


def test_tokenizing_is_not_timed_and_leaves_the_prompt_to_be_computed() -> None:
    shell = Shell(P0)

    def plan() -> Plan:
        endpoint = yield Lease(Role.PREFILL)
        yield Call(endpoint, "/tokenize", b"", is_prefill=False)
        yield Call(endpoint, "/v1/completions", b"")

    shell.run.start(FACTS, plan(), 0.0)
    tokenizing = shell.run.leg(0.0)
    tokenizing.unary_answer(1.0)
    tokenizing.end(1.0)
    shell.run.settle(Reply(200), None, 200, 1.0)
    assert shell.record.prefill_seconds is None
    assert shell.run.leg(1.0).work == FACTS.tokens


@pytest.mark.parametrize("is_alias", [False, True])
@pytest.mark.parametrize(("cached", "missed"), [(0, 1), (99, 0)])
def test_a_prompt_that_was_not_in_the_store_is_recorded_at_the_answers_end(
    cached: int, missed: int, is_alias: bool
) -> None:
    """After the first token the plan is gone; the usage is in the last events."""
    shell = Shell(P0, D0)
    shell.start(renamed(store(FACTS), FACTS, "alias") if is_alias else store(FACTS))
    assert shell.replies(reply(200)) == D0
    shell.run.begun(2.0)
    assert isinstance(shell.run.step, Stream)
    assert shell.run.step.splice is not None
    usage = b'"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":%d}}' % cached
    shell.run.step.splice.events(b'data: {"choices":[],' + usage + b"}\n\n")
    assert shell.run.settle(None, None, 200, 3.0) is None
    assert shell.record.fallbacks == (FellBack(Role.DECODE, "store_miss"),) * missed
