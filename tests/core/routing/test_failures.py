"""A request's run: the retry budget, failed KV loads, and engines that are full."""

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import EngineFailed
from router.core.events import Event, FellBack, LegAnswered, LegDone, LegFailed, RequestEnded
from router.core.fleet.fleet import Fleet
from router.core.limits.budgets import RetryBudget
from router.core.plans.direct import direct
from router.core.plans.nixl import nixl
from router.core.plans.steps import BackOff, Send, Stream
from router.core.policies import POLICIES
from router.core.retry import ATTEMPTS
from router.core.routing.request_run import RequestRun
from router.core.routing.schedule import Scheduler
from router.core.values import Endpoint, Failure, FailureKind, Reply, Role
from tests.core.fixtures import (
    BROKEN,
    CHAT,
    D0,
    D1,
    D2,
    D3,
    LOAD_FAILED,
    P0,
    P1,
    REFUSED,
    RESET,
    SILENT,
    reply,
    request,
)
from tests.core.fleets import full
from tests.core.routing.run_shell import ALL, FACTS, FULL, PREFILLED, Shell, spent


def test_with_a_budget_a_request_moves_and_brings_its_share() -> None:
    budget = spent(1.0)
    shell = Shell(D0, D1, budget=budget)
    assert shell.start(direct(FACTS)) == D0
    assert shell.fails(REFUSED) == D1
    assert not budget.has_one(1.0)


def test_without_any_left_the_client_gets_the_engines_own_failure() -> None:
    shell = Shell(D0, D1, budget=spent())
    shell.start(direct(FACTS))
    with pytest.raises(EngineFailed):
        shell.fails(REFUSED)
    assert shell.record.decode == D0
    assert FellBack(Role.DECODE, "retry_budget") in shell.events


def test_without_any_left_nothing_is_prefilled_for_another_engine() -> None:
    shell = Shell(P0, D0, D1, budget=spent())
    shell.start(nixl(FACTS))
    assert shell.replies(PREFILLED) == D0
    with pytest.raises(EngineFailed):
        shell.fails(RESET)
    assert FellBack(Role.DECODE, "retry_budget") in shell.events


def test_each_further_try_after_a_failed_load_takes_one() -> None:
    budget = spent(2.0)
    shell = Shell(P0, D0, budget=budget)
    shell.start(nixl(FACTS))
    assert shell.replies(PREFILLED) == D0
    assert shell.replies(LOAD_FAILED) == P0
    assert budget.has_one(1.0)
    assert shell.replies(PREFILLED) == D0
    assert shell.replies(LOAD_FAILED) == D0
    assert not budget.has_one(1.0)


def test_without_any_left_the_client_gets_the_failed_load() -> None:
    shell = Shell(P0, D0, budget=spent())
    shell.start(nixl(FACTS))
    shell.replies(PREFILLED)
    assert shell.run.settle(LOAD_FAILED, None, 500, 1.0) == Send(LOAD_FAILED)
    assert FellBack(Role.DECODE, "retry_budget") in shell.events


def test_a_failed_load_that_is_not_tried_again_is_a_failure_of_the_decode_engine() -> None:
    for budget, failures in ((spent(), 1), (None, 0)):
        shell = Shell(P0, D0, budget=budget)
        shell.start(nixl(FACTS))
        shell.replies(PREFILLED)
        shell.run.answered(500, 0.5)
        shell.run.settle(LOAD_FAILED, None, 500, 1.0)
        failed = [event for event in shell.events if isinstance(event, LegFailed)]
        assert failed == [FAILED_LOAD] * failures


FAILED_LOAD = LegFailed(D0, FailureKind.BROKEN, 1.0, "it answered a request with 500")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("engines", "failures"), [((P0, D0), 0), ((P0, D0, D1), 1)])
def test_failed_kv_load_blames_decode_engine_if_retry_succeeds(
    engines: tuple[Endpoint, ...], failures: int, is_stream: bool
) -> None:
    shell = Shell(*engines)
    shell.start(nixl(FACTS))
    assert shell.replies(PREFILLED) == D0
    assert shell.replies(LOAD_FAILED) == P0
    assert shell.replies(PREFILLED) == engines[-1]
    assert not any(isinstance(event, LegFailed) for event in shell.events)
    if is_stream:
        shell.run.begun(1.0)
    shell.run.settle(None, None, 200, 2.0)
    failed = [event for event in shell.events if isinstance(event, LegFailed)]
    assert failed == [FAILED_LOAD] * failures


def test_where_the_prompt_is_computed_in_the_end_the_transfers_may_be_at_fault() -> None:
    shell = Shell(*ALL)
    shell.start(nixl(FACTS))
    for decode in (D0, D1):
        assert shell.replies(PREFILLED) == decode
        shell.replies(LOAD_FAILED)
    shell.run.settle(None, None, 200, 2.0)
    assert shell.record.decode == D2
    assert not any(isinstance(event, LegFailed) for event in shell.events)


def test_a_client_error_counts_against_no_engine() -> None:
    shell = Shell(P0, D0, D1)
    shell.start(nixl(FACTS))
    assert shell.replies(PREFILLED) == D0
    shell.replies(LOAD_FAILED)
    assert shell.replies(PREFILLED) == D1
    shell.run.settle(None, None, 400, 2.0)
    assert not any(isinstance(event, LegFailed) for event in shell.events)


@pytest.mark.parametrize(
    ("status", "counts_against_engine"), [(500, False), (501, True), (502, True)]
)
def test_only_a_500_may_be_the_prefill_engines_fault(
    status: int, counts_against_engine: bool
) -> None:
    shell = Shell(P0, D0)
    shell.start(nixl(FACTS))
    shell.replies(PREFILLED)
    shell.run.answered(status, 1.5)
    assert shell.events[-1] == LegAnswered(D0, status, 0.5, counts_against_engine)


def test_without_any_left_nothing_leaves_a_stalled_engine() -> None:
    for budget, may_leave in ((spent(), False), (RetryBudget(0.0), True), (None, True)):
        shell = Shell(D0, D1, budget=budget)
        shell.start(direct(FACTS))
        assert shell.run.may_leave_stalled(1.0) is may_leave


def test_a_stalled_prefill_engine_may_always_be_left() -> None:
    """There is another way to serve the request: the decode engine computes the prompt."""
    shell = Shell(P0, D0, budget=spent())
    assert shell.start(nixl(FACTS)) == P0
    assert shell.run.may_leave_stalled(1.0)
    assert shell.replies(PREFILLED) == D0
    assert not shell.run.may_leave_stalled(1.0)


def test_a_first_attempt_needs_none() -> None:
    shell = Shell(P0, D0, budget=spent())
    assert shell.start(nixl(FACTS)) == P0
    assert shell.replies(PREFILLED) == D0


@pytest.mark.parametrize("are_full", [False, True])
def test_to_leave_an_engine_that_is_full_takes_none(are_full: bool) -> None:
    shell = Shell(D0, D1, D2, D3, budget=spent())
    for engine in (D0, D1, D2, D3) if are_full else ():
        full(shell.fleet, engine, 1.0)
    assert shell.start(direct(FACTS)) == D0
    assert shell.replies(FULL) == D1
    assert shell.replies(FULL) == D2
    assert shell.run.settle(FULL, None, 503, 1.0) == Send(FULL)  # the third try is the last one
    assert FellBack(Role.DECODE, "retry_budget") not in shell.events


def test_to_leave_a_full_prefill_engine_takes_none() -> None:
    shell = Shell(P0, P1, D0, budget=spent())
    assert shell.start(nixl(FACTS)) == P0
    assert shell.replies(FULL) == P1
    assert shell.replies(PREFILLED) == D0


def test_a_failure_after_a_full_engine_takes_one_still() -> None:
    shell = Shell(D0, D1, D2, budget=spent())
    shell.start(direct(FACTS))
    assert shell.replies(FULL) == D1
    with pytest.raises(EngineFailed):
        shell.fails(REFUSED)
    assert FellBack(Role.DECODE, "retry_budget") in shell.events


@pytest.mark.parametrize("are_full", [False, True])
def test_another_prefill_needs_a_decode_engine_with_room(are_full: bool) -> None:
    shell = Shell(P0, D0, D1, budget=spent())
    shell.start(nixl(FACTS))
    assert shell.replies(PREFILLED) == D0
    if are_full:
        full(shell.fleet, D1, 1.0)
        assert shell.run.settle(FULL, None, 503, 1.0) == Send(FULL)
    else:
        assert shell.replies(FULL) == P0
        assert shell.replies(PREFILLED) == D1


E0 = Endpoint("http://e0:8000", Role.ENCODE)
ERROR_500, ERROR_502, ERROR_504 = reply(500), reply(502), reply(504)


@pytest.mark.parametrize("said", [ERROR_500, ERROR_502, ERROR_504])
def test_request_that_breaks_engines_meets_two_at_most(said: Reply) -> None:
    shell = Shell(D0, D1, D2, D3)
    assert shell.start(direct(FACTS)) == D0
    assert shell.replies(said) == D1
    assert shell.run.settle(LOAD_FAILED, None, 500, 1.0) == Send(LOAD_FAILED)
    assert shell.run.answer(None, 1.0) is None
    assert shell.record.fallbacks == (FellBack(Role.DECODE, "status_5xx"),)
    assert shell.record.decode == D1


def test_an_encode_engines_server_error_leaves_the_decode_engines_theirs() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}}
    facts = request(CHAT, messages=[{"role": "user", "content": [image]}])
    shell = Shell(E0, D0, D1, D2, facts=facts)
    assert shell.start(shell.scheduler.encoding(direct(facts), facts, 0.0)) == E0
    assert shell.replies(ERROR_500) == D0
    assert shell.replies(ERROR_500) == D1
    assert shell.run.settle(ERROR_500, None, 500, 1.0) == Send(ERROR_500)


def test_where_it_is_switched_off_the_first_server_error_is_the_clients_answer() -> None:
    shell = Shell(D0, D1, retries_on_5xx=0)
    shell.start(direct(FACTS))
    assert shell.run.settle(ERROR_502, None, 502, 1.0) == Send(ERROR_502)
    assert shell.run.answer(None, 1.0) is None
    assert not any(isinstance(event, FellBack) for event in shell.events)


def test_other_failures_are_retried_even_then() -> None:
    shell = Shell(D0, D1, retries_on_5xx=0)
    shell.start(direct(FACTS))
    assert shell.fails(RESET) == D1


@pytest.mark.parametrize(("budget", "engines"), [(spent(), (D0, D1)), (None, (D0,))])
def test_without_another_engine_the_client_gets_the_server_error(
    budget: RetryBudget | None, engines: tuple[Endpoint, ...]
) -> None:
    shell = Shell(*engines, budget=budget)
    shell.start(direct(FACTS))
    assert shell.run.settle(ERROR_500, None, 500, 1.0) == Send(ERROR_500)


@pytest.mark.parametrize("last", [REFUSED, RESET, SILENT])
def test_a_server_error_is_the_clients_answer_where_the_others_give_none(last: Failure) -> None:
    shell = Shell(D0, D1)
    shell.start(direct(FACTS))
    assert shell.replies(ERROR_500) == D1
    action = shell.run.settle(last, last, 0, 1.0)
    if isinstance(action, BackOff):  # before a third engine, which there is not
        action = shell.run.answer(None, 1.0)
    assert action == Send(ERROR_500)
    assert shell.run.answer(None, 1.0) is None
    assert (shell.run.step.endpoint, shell.record.decode) == (D0, D0)


def test_a_server_error_of_a_prefill_engine_is_one_of_the_request() -> None:
    shell = Shell(P0, D0, D1)
    assert shell.start(nixl(FACTS)) == P0
    assert shell.replies(ERROR_500) == D0
    assert shell.run.settle(ERROR_500, None, 500, 1.0) == Send(ERROR_500)


def test_a_failed_load_is_none_of_the_request() -> None:
    shell = Shell(P0, D0, D1)
    shell.start(nixl(FACTS))
    shell.replies(PREFILLED)
    assert shell.replies(LOAD_FAILED) == P0
    assert shell.replies(reply(200, b"{}")) == D1  # no reference: it computes the prompt
    assert shell.replies(ERROR_500) == D0


@pytest.mark.parametrize("is_event", [False, True])
def test_an_error_of_the_second_engine_too_is_no_evidence_against_it(is_event: bool) -> None:
    shell = Shell(D0, D1, D2)
    shell.start(direct(FACTS))
    for _ in range(2):
        shell.run.answered(200 if is_event else 500, 1.0)
        shell.run.settle(ERROR_500, BROKEN if is_event else None, 500, 1.0)
    accused = [
        event.endpoint
        for event in shell.events
        if isinstance(event, LegFailed)
        or (isinstance(event, LegAnswered) and event.status == 500 and event.counts_against_engine)
    ]
    assert accused == [D0]


def test_an_error_event_is_a_failure_of_its_engine_and_the_next_one_answers() -> None:
    shell = Shell(D0, D1)
    shell.start(direct(FACTS))
    shell.run.answered(200, 0.5)
    assert shell.asked(shell.run.settle(ERROR_500, BROKEN, 500, 1.0)) == D1
    shell.run.settle(None, None, 200, 2.0)
    ends = [event for event in shell.events if isinstance(event, LegFailed | LegDone)]
    assert ends == [LegFailed(D0, FailureKind.BROKEN, 0.0, BROKEN.cause), LegDone(D1)]


POOL = [Endpoint(f"http://e{number}", Role.DECODE) for number in range(40)]


@settings(max_examples=20)  # of up to 60 requests each
@given(
    engines=st.integers(2, 40),
    room=st.integers(0, 39),
    strategy=st.sampled_from(sorted(POLICIES)),
    gaps=st.lists(st.floats(0.0, 3.0), min_size=30, max_size=60),
)
def test_no_request_fails_while_one_engine_has_room_and_the_others_are_full(
    engines: int, room: int, strategy: str, gaps: list[float]
) -> None:
    pool, has_room = POOL[:engines], POOL[room % engines]
    shell = Shell(*pool, budget=spent())
    policies = dict.fromkeys(Role, POLICIES[strategy])
    scheduler = Scheduler(shell.fleet, policies, 0, Random(0), retry_budget=spent())
    now, failed, asked = 0.0, 0, 0
    for gap in gaps:
        now += gap
        shell.fleet.tick(now)
        run = RequestRun(
            scheduler,
            partial(observe, shell.fleet, now),
            RequestEnded("id", "/v1/completions", now),
            Random(0),
        )
        facts = request(prompt="x", stream=True)
        action = run.start(facts, direct(facts), now)
        tries = 0
        while not isinstance(action, Send | None):
            if isinstance(action, BackOff):
                action = run.answer(None, now)
                continue
            assert isinstance(action, Stream)
            tries += 1
            if action.endpoint == has_room:
                run.answered(200, now)
                action = run.settle(None, None, 200, now)
            else:
                asked += 1
                action = run.settle(FULL, None, 503, now)
        failed += isinstance(action, Send)
        assert tries <= ATTEMPTS
        run.close()
    # Each failure reveals at least two engines that were not known to be full.
    assert failed <= (engines - 1) / 2
    # Each that does not asks one that was full some time ago, at most, and two of which it was not
    # known.
    assert asked <= len(gaps) + engines - 1


def observe(fleet: Fleet, now: float, event: Event) -> None:
    """The router's way of an event to its fleet, without a clock."""
    fleet.observe(event, now)


SHUTDOWN = reply(
    500,
    b'{"error":{"message":"cannot schedule new futures after shutdown",'
    b'"type":"InternalServerError","param":null,"code":500}}',
)
"""As vLLM 0.32 answers new requests after SIGTERM, with --shutdown-timeout."""


def test_engines_that_shut_down_take_no_requests_and_cost_none_its_retry_of_a_5xx() -> None:
    shell = Shell(D0, D1, D2, retries_on_5xx=0)
    assert shell.start(direct(FACTS)) == D0
    assert shell.replies(SHUTDOWN) == D1
    assert shell.replies(SHUTDOWN) == D2
    [first, second] = [event for event in shell.events if isinstance(event, LegFailed)]
    assert (first.endpoint, second.endpoint) == (D0, D1)
    assert {first.kind, second.kind} == {FailureKind.SHUTTING_DOWN}
