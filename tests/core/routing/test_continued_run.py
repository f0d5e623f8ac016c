"""A run whose stream goes on with another engine."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from router.core.errors import EngineFailed, NoEngine
from router.core.events import Continuation, FellBack, LegFailed, Probed
from router.core.health import HealthSignal
from router.core.plans.direct import direct
from router.core.plans.nixl import nixl
from router.core.plans.steps import AwaitMove, BackOff, Call, Send, Stream
from router.core.routing.engine_timeouts import STALLED
from router.core.values import Endpoint, Role
from tests.core.fixtures import (
    BROKEN,
    CHAT,
    COMPLETIONS,
    D0,
    D1,
    D2,
    D3,
    P0,
    P1,
    RESET,
    changed,
    reply,
    request,
)
from tests.core.fleets import full
from tests.core.routing.run_shell import FULL, PREFILLED, Shell, spent

FIRST = (
    b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":null,'
    b'"prompt_token_ids":[1,2],"token_ids":[3]}]}\n\n'
)


PAIR = FIRST.replace(b'"x"', b'"xy"').replace(b"[3]", b"[3,4]")


def begun(*endpoints: Endpoint, **body: Any) -> Shell:
    """A stream of one token."""
    facts = request(prompt="x" * 400, stream=True, **body)
    shell = Shell(*endpoints, facts=facts, continues=True)
    shell.start(direct(facts))
    generates(shell)
    return shell


def generates(shell: Shell, event: bytes = FIRST) -> None:
    """The client gets the first token."""
    shell.run.begun(1.0)
    if shell.run.journal is not None:
        shell.run.journal.events(event)


def breaks(shell: Shell) -> object:
    """What follows when the engine of a stream fails."""
    journal = shell.run.journal
    if journal is not None:
        journal.cut(BROKEN)
    return moved(shell, shell.run.settle(None, BROKEN, 200, 1.0))


def moved(shell: Shell, action: object) -> object:
    """What follows when the stream may go on with another engine."""
    if not isinstance(action, AwaitMove):
        return action
    assert shell.run.awaits_move
    return shell.run.answer(None, 1.0)


def drained(shell: Shell) -> object:
    """What follows when a stream leaves its engine, which is drained meanwhile."""
    member = shell.fleet.member(shell.run.step.endpoint)
    member.is_drained = True
    assert shell.run.leave(None, 1.0)
    member.is_drained = False
    return moved(shell, shell.run.settle(None, None, 200, 1.0))


def test_the_next_engine_gets_the_tokens_so_far() -> None:
    shell = begun(D0, D1, max_tokens=9)
    step = breaks(shell)
    assert isinstance(step, Stream)
    assert step.endpoint == D1
    body = orjson.loads(step.body)
    assert (body["prompt"], body["max_tokens"]) == ([1, 2, 3], 8)
    assert shell.held == {D1}
    assert shell.run.journal is not None
    assert shell.run.journal.is_continued
    assert FellBack(Role.DECODE, "continued") in shell.events
    shell.run.begun(1.0)
    assert shell.run.settle(None, None, 200, 2.0) is None
    shell.run.close()
    assert shell.held == set()


def test_the_body_is_kept_once() -> None:
    shell = begun(D0, D1)
    facts = shell.run.facts
    assert facts is not None
    assert isinstance(shell.run.step, Stream)
    assert (facts.raw, facts.body, shell.run.step.body) == (b"", {}, b"")


def test_a_second_failure_excludes_both_engines() -> None:
    shell = begun(D0, D1)
    assert shell.asked(breaks(shell)) == D1
    shell.run.begun(1.0)
    with pytest.raises(NoEngine):
        shell.asked(breaks(shell))


def test_a_stream_that_breaks_engines_reaches_three_of_them() -> None:
    shell = begun(D0, D1, D2, D3)
    assert shell.asked(breaks(shell)) == D1
    shell.run.begun(1.0)
    assert shell.asked(breaks(shell)) == D2
    shell.run.begun(1.0)
    with pytest.raises(EngineFailed):
        breaks(shell)
    assert shell.record.continuation is not None
    assert shell.record.continuation.outcome == "attempts"


def test_engines_that_failed_before_the_first_token_count_too() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, D2, D3, facts=facts, continues=True)
    shell.start(direct(facts))
    assert shell.fails(RESET) == D1
    generates(shell)
    assert shell.asked(breaks(shell)) == D2
    with pytest.raises(EngineFailed):
        shell.fails(RESET)


def test_a_body_that_is_nested_too_deeply_ends_with_the_engine() -> None:
    facts = changed(
        request(prompt="x", stream=True),
        raw=b'{"prompt":"x","stream":true,"metadata":%b}' % (b"[" * 300 + b"]" * 300),
    )
    shell = Shell(D0, D1, facts=facts, continues=True)
    shell.start(direct(facts))
    generates(shell)
    with pytest.raises(EngineFailed):
        breaks(shell)


def test_ids_that_are_none_end_the_stream_with_the_engine() -> None:
    facts = request(prompt="x", stream=True)
    shell = Shell(D0, D1, facts=facts, continues=True)
    shell.start(direct(facts))
    generates(shell, FIRST.replace(b"[3]", b"[[3]]"))
    with pytest.raises(EngineFailed):
        breaks(shell)


def test_a_continuation_takes_a_retry_from_the_budget() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, facts=facts, continues=True, budget=spent())
    shell.start(direct(facts))
    generates(shell)
    with pytest.raises(NoEngine):
        breaks(shell)


def test_what_cannot_be_continued_ends_with_the_reason() -> None:
    shell = begun(D0, D1, echo=True)
    assert shell.run.journal is None
    assert breaks(shell) is None
    assert shell.record.continuation == Continuation("echo")


def test_streams_of_models_that_an_operator_names_are_not_continued() -> None:
    facts = request(prompt="x" * 400, stream=True, model="m")
    shell = Shell(D0, D1, facts=facts, continues=True, uncontinued_models=frozenset({"m"}))
    cards = ({"id": "m"}, {"id": "sql", "parent": "m"}, {"id": "n"})
    shell.fleet.observe(Probed(D0, HealthSignal.OK, cards), 0.0)
    for body, reason in (({"model": "m"}, "model"), ({"model": "sql"}, "model"), ({}, "model")):
        assert shell.scheduler.refusal(request(prompt="x", stream=True, **body)) == reason
    assert shell.scheduler.refusal(request(prompt="x", stream=True, model="n")) is None


def test_an_answer_that_is_no_stream_has_no_journal() -> None:
    facts = request(prompt="x" * 400)
    shell = Shell(D0, D1, facts=facts, continues=True)
    shell.start(direct(facts))
    assert shell.run.journal is None
    assert shell.run.settle(None, BROKEN, 200, 1.0) is None
    assert shell.record.continuation is None


def test_a_tool_call_ends_with_the_reason() -> None:
    shell = begun(D0, D1)
    assert shell.run.journal is not None
    shell.run.journal.events(FIRST.replace(b'"text"', b'"tool_calls":[],"text"'))
    assert breaks(shell) is None
    assert shell.record.continuation == Continuation("tool_call")


def test_a_continuation_is_recorded_with_its_pause() -> None:
    shell = begun(D0, D1)
    breaks(shell)
    assert shell.record.continuation is None
    shell.run.begun(3.5)
    shell.run.settle(None, None, 200, 9.0)
    assert shell.record.continuation == Continuation("continued", 1, 0, 2.5)


def test_a_stream_that_no_engine_is_left_for_is_recorded() -> None:
    shell = begun(D0)
    with pytest.raises(NoEngine):
        breaks(shell)
    assert shell.record.continuation == Continuation("no_engine", 1)


def test_an_undisturbed_stream_has_no_continuation() -> None:
    shell = begun(D0, D1)
    shell.run.settle(None, None, 200, 9.0)
    assert shell.record.continuation is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_long_prompt_is_prefilled_remotely_again(path: str) -> None:
    given = {"messages": [{"role": "user", "content": "x" * 400}]} if path == CHAT else {}
    facts = request(path, **{"prompt": "x" * 400, "stream": True} | given)
    shell = Shell(P0, P1, D0, D1, facts=facts, continues=True)
    shell.start(nixl(facts))
    assert shell.replies(PREFILLED) == D0
    shell.run.begun(1.0)
    assert shell.run.journal is not None
    first = (
        FIRST if path == COMPLETIONS else FIRST.replace(b'"text":"x"', b'"delta":{"content":"x"}')
    )
    shell.run.journal.events(first)
    call = breaks(shell)
    assert isinstance(call, Call)
    body = orjson.loads(call.body)
    assert (body["max_tokens"], body["stream"]) == (1, False)
    assert body["kv_transfer_params"]["do_remote_decode"] is True
    stream = shell.run.settle(PREFILLED, None, 200, 2.0)
    assert isinstance(stream, Stream)
    assert stream.endpoint == D1
    body = body, orjson.loads(stream.body)
    params = [each["kv_transfer_params"] for each in body]
    assert params[1]["remote_host"] == "p0"
    if path == CHAT:
        assert [each["prompt_token_ids"] for each in params] == [[1, 2, 3]] * 2
    else:
        assert [each["prompt"] for each in body] == [[1, 2, 3]] * 2


def test_a_continued_chat_without_prefill_engines_is_decoded_directly() -> None:
    facts = request(CHAT, messages=[{"role": "user", "content": "x" * 400}], stream=True)
    shell = Shell(D0, D1, facts=facts, continues=True)
    shell.start(direct(facts))
    generates(shell, FIRST.replace(b'"text":"x"', b'"delta":{"content":"x"}'))
    step = breaks(shell)
    assert isinstance(step, Stream)
    assert orjson.loads(step.body)["kv_transfer_params"] == {"prompt_token_ids": [1, 2, 3]}


def test_engines_are_asked_for_token_ids() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, facts=facts, continues=True)
    shell.start(direct(facts))
    assert isinstance(shell.run.step, Stream)
    assert orjson.loads(shell.run.step.body)["return_token_ids"] is True


def test_a_stream_leaves_the_engines_of_a_rolling_restart_one_by_one() -> None:
    """Neither attempts nor the retry budget end that, and no engine has failed."""
    facts = request(prompt="x" * 400, stream=True, max_tokens=9)
    shell = Shell(D0, D1, facts=facts, continues=True, budget=spent())
    shell.start(direct(facts))
    generates(shell)
    for endpoint in (D1, D0, D1, D0, D1):
        step = drained(shell)
        assert isinstance(step, Stream)
        assert step.endpoint == endpoint
        assert orjson.loads(step.body)["prompt"] == [1, 2, 3]
        assert shell.held == {endpoint}
        shell.run.begun(1.0)
    assert not [event for event in shell.events if isinstance(event, LegFailed)]
    assert [each.reason for each in shell.record.fallbacks] == ["moved"] * 5
    shell.run.settle(None, None, 200, 9.0)
    assert shell.record.continuation == Continuation("moved", 1, 0, 0.0)


def test_a_stream_that_has_failed_once_leaves_a_drained_engine_without_a_retry() -> None:
    budget = spent(1.0)
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, D2, facts=facts, continues=True, budget=budget)
    shell.start(direct(facts))
    generates(shell)
    assert shell.asked(breaks(shell)) == D1
    shell.run.begun(1.0)
    assert not budget.has_one(1.0)
    assert shell.asked(drained(shell)) == D2


def test_a_stream_stays_while_no_other_engine_can_take_it() -> None:
    shell = begun(D0)
    assert not shell.run.leave(None, 1.0)
    assert not shell.run.leave(STALLED, 1.0)
    shell = begun(D0, D1)
    full(shell.fleet, D1, 1.0)
    shell.fleet.member(D0).is_drained = True
    assert not shell.run.leave(None, 1.1)
    assert not shell.run.leave(STALLED, 1.1)
    assert shell.run.leave(None, 2.0)


def slow(shell: Shell, endpoint: Endpoint, *, answer: int = 1000) -> None:
    """Let an engine be 8 times slower than the others. `answer`: tokens of a mean one."""
    judge = shell.fleet.pools[Role.DECODE].judge
    judge._tokens, judge._streams = float(answer), 1.0
    for member in shell.fleet.pools[Role.DECODE].undrained:
        member.verdict = replace(member.verdict, median=0.02)
        member.view.slowdown = 8.0 if member.endpoint == endpoint else 1.0


def test_a_stream_leaves_a_slow_engine_once_and_does_not_return() -> None:
    shell = begun(D0, D1)
    slow(shell, D0)
    assert shell.run.leave(None, 1.0)
    assert shell.asked(moved(shell, shell.run.settle(None, None, 200, 1.0))) == D1
    assert shell.run.handover is not None
    assert shell.run.handover.engines == {D0, D1}
    shell.run.begun(1.0)
    slow(shell, D1)
    assert not shell.run.leave(None, 1.0)
    assert shell.run.leave(STALLED, 1.0) is False  # no other is left
    shell = begun(D0, D1, D2)
    slow(shell, D0)
    assert shell.run.leave(None, 1.0)
    assert shell.asked(moved(shell, shell.run.settle(None, None, 200, 1.0))) == D1
    shell.run.begun(1.0)
    slow(shell, D1)
    assert shell.asked(drained(shell)) == D2


def test_a_stream_returns_to_a_slow_engine_if_the_others_are_full() -> None:
    shell = begun(D0, D1)
    slow(shell, D0)
    assert shell.run.leave(None, 1.0)
    assert shell.asked(moved(shell, shell.run.settle(None, None, 200, 1.0))) == D1
    assert isinstance(shell.run.settle(FULL, None, FULL.status, 1.0), BackOff)
    assert shell.asked(shell.run.answer(None, 1.5)) == D0


def test_a_stream_stays_on_a_slow_engine_if_leaving_costs_more_than_it_saves() -> None:
    shell = begun(D0, D1)
    slow(shell, D0, answer=100)
    other = shell.fleet.member(D1)
    other.speed.per_prompt_token = 0.001
    assert shell.run.may_move(1.0)  # 0.2 s for 100 tokens, against 7 s
    other.view.load.add(40, 0, 0)
    assert not shell.run.may_move(1.0)  # 40 streams wait meanwhile


@pytest.mark.parametrize("event", [FIRST, PAIR])
@pytest.mark.parametrize("stop", [None, "xyz"])
def test_what_has_to_be_asked_for_is_no_reason_to_leave_an_engine_that_works(
    event: bytes, stop: str | None
) -> None:
    facts = request(prompt="x" * 400, stream=True, stop=stop)
    shell = Shell(D0, D1, facts=facts, continues=True)
    shell.start(direct(facts))
    generates(shell, event)
    slow(shell, D0)
    assert shell.run.may_move(1.0) == (event is FIRST and stop is None)
    shell.fleet.member(D0).is_drained = True
    assert shell.run.may_move(1.0) == (stop is None)


def test_a_stream_that_cannot_be_continued_stays() -> None:
    assert not begun(D0, D1, n=2).run.leave(None, 1.0)
    shell = begun(D0, D1)
    assert shell.run.journal is not None
    shell.run.journal.broken = "tool_call"
    assert not shell.run.leave(None, 1.0)


def test_the_next_engine_is_asked_where_the_text_of_several_tokens_ends() -> None:
    """That is neither an attempt nor a retry."""
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, D2, D3, facts=facts, continues=True, budget=spent(1.0))
    shell.start(direct(facts))
    generates(shell, PAIR)
    question = breaks(shell)
    assert isinstance(question, Call)
    assert (question.endpoint, shell.held) == (D1, {D1})
    assert orjson.loads(question.body)["tokens"] == [3, 4]
    assert shell.record.decode == D0
    step = shell.run.settle(reply(200, b'{"prompt":"xy"}'), None, 200, 1.0)
    assert isinstance(step, Stream)
    assert orjson.loads(step.body)["prompt"] == [1, 2, 3, 4]
    assert shell.run.handover is not None
    assert shell.run.handover.engines == {D0, step.endpoint}
    assert shell.held == {step.endpoint}


def test_an_engine_of_another_version_than_the_prefill_engine_can_be_asked() -> None:
    """It only decodes text, and loads no KV cache."""
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(P0, D0, D1, facts=facts, continues=True)
    for endpoint, version in ((P0, "0.32.0"), (D0, "0.32.0"), (D1, "0.33.0")):
        shell.fleet.observe(Probed(endpoint, HealthSignal.OK, version=version), 0.0)
    shell.start(nixl(facts))
    assert shell.replies(PREFILLED) == D0
    generates(shell, PAIR)
    question = breaks(shell)
    assert isinstance(question, Call)
    assert question.endpoint == D1


def test_a_stream_whose_seam_is_not_found_ends_with_the_reason() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, D2, facts=facts, continues=True)
    shell.start(direct(facts))
    generates(shell, PAIR)
    assert shell.asked(breaks(shell)) == D1
    assert shell.fails(RESET) == D2
    with pytest.raises(EngineFailed):
        shell.run.settle(reply(404), None, 404, 1.0)
    assert shell.record.continuation == Continuation("several_tokens", 0)


def test_a_stream_leaves_a_stalled_engine_by_an_attempt() -> None:
    shell = begun(D0, D1)
    assert shell.run.leave(STALLED, 1.0)
    assert shell.asked(moved(shell, shell.run.settle(None, STALLED, 200, 1.0))) == D1
    assert [each.reason for each in shell.record.fallbacks] == ["continued"]


def test_a_stream_goes_back_to_a_stalled_engine_if_no_other_is_left() -> None:
    """It may only have been slow, and without the feature the stream would have stayed there."""
    shell = begun(D0, D1)
    assert shell.run.leave(STALLED, 1.0)
    assert shell.asked(moved(shell, shell.run.settle(None, STALLED, 200, 1.0))) == D1
    shell.run.begun(1.0)
    wait = breaks(shell)
    assert isinstance(wait, BackOff)
    assert shell.held == set()
    assert shell.asked(shell.run.answer(None, 2.0)) == D0
    shell.run.begun(2.0)
    with pytest.raises(NoEngine):
        shell.asked(breaks(shell))


def test_a_stream_that_has_left_its_engine_waits_for_room() -> None:
    shell = begun(D0, D1, D2)
    assert shell.asked(breaks(shell)) == D1
    for _ in range(5):
        assert shell.replies(FULL) == D2
        wait = shell.run.settle(FULL, None, 503, 1.0)
        assert isinstance(wait, BackOff)
        assert shell.held == set()
        assert shell.asked(wait) == D1
    shell.run.begun(3.0)
    assert shell.run.settle(None, None, 200, 9.0) is None


def test_it_does_not_wait_for_ever() -> None:
    shell = begun(D0, D1)
    assert shell.asked(breaks(shell)) == D1
    assert isinstance(shell.run.settle(FULL, None, 503, 30.0), BackOff)
    assert shell.asked(shell.run.answer(None, 30.5)) == D1
    assert isinstance(shell.run.settle(FULL, None, 503, 31.0), Send)


def test_a_request_whose_answer_has_not_begun_does_not_wait() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, facts=facts, continues=True)
    shell.start(direct(facts))
    assert isinstance(shell.run.settle(FULL, None, 503, 1.0), Send)
