"""How a stream goes from engine to engine."""

import orjson
import pytest

from router.core.continuation.handover import LEFT, Handover
from router.core.continuation.journal import Journal
from router.core.events import Continuation
from router.core.plans.direct import direct
from router.core.plans.steps import Lease
from router.core.values import Decision, Endpoint, Failure, FailureKind, Mode
from tests.core.fixtures import BROKEN, COMPLETIONS, D0, D1, reply, request, sample

DIRECT = Decision(Mode.DIRECT, "test")
STALLED = Failure(FailureKind.STALLED, "stalled")
FULL = reply(503, sample("queue_full.json"))


def begun(*engines: Endpoint, tokens: int = 1) -> Handover:
    """A stream of one event, with so many tokens, of the last of these engines."""
    journal = Journal(request(COMPLETIONS, prompt="hi", stream=True))
    choice = {"index": 0, "text": "a", "prompt_token_ids": [1], "token_ids": [2] * tokens}
    journal.events(b"data: %b\n\n" % orjson.dumps({"id": "a", "choices": [choice]}))
    handover = Handover(journal, lambda facts, decision: direct(facts))
    for engine in engines:
        handover.leased(engine)
    return handover


def test_the_pause_is_that_until_the_next_token() -> None:
    handover = begun(D0)
    handover.begun(0.5)
    for at in (1.0, 2.0, 4.0):  # two engines fail in between
        assert handover.journal.cut(BROKEN)
        assert handover.take_cut(at) == (D0, BROKEN)
        assert handover.is_cut
    handover.begun(5.0)
    handover.begun(9.0)
    assert not handover.is_cut
    assert handover.ended("continued") == Continuation("continued", 0, 0, 4.0)


def test_an_engine_that_failed_is_not_used_again_and_one_that_was_left_may_be() -> None:
    handover = begun(D0, D1)
    assert handover.journal.cut(BROKEN)
    handover.take_cut(1.0)
    assert not handover.try_slow()
    assert handover.engines == {D0, D1}
    assert handover.leave(is_drained=True)
    assert handover.take_cut(1.0) == (D1, LEFT)
    assert handover.engines == {D0}


@pytest.mark.parametrize("is_slow", [True, False])
def test_engines_that_were_slow_or_stalled_are_used_again_if_no_other_is_left(
    is_slow: bool,
) -> None:
    handover = begun(D0, D1)
    if is_slow:
        assert handover.leave(is_drained=False)
    else:
        assert handover.journal.cut(STALLED)
        handover.take_cut(1.0)
    assert handover.engines == {D0, D1}
    assert handover.try_slow()
    assert handover.engines == {D0}
    assert not handover.try_slow()


def test_no_engine_that_has_failed_is_asked_where_the_text_ends() -> None:
    handover = begun(D0, D1, tokens=2)
    plan = handover.plan(request(COMPLETIONS, prompt="hi", stream=True), lambda facts: DIRECT)
    question = next(plan)
    assert isinstance(question, Lease)
    assert question.exclude == {D0, D1}
    assert not question.is_attempt


def test_a_stream_waits_for_room_for_half_a_minute() -> None:
    handover = begun(D0)
    assert not handover.tries_again(FULL, 1.0)  # its engine still serves it
    assert handover.journal.cut(BROKEN)
    handover.take_cut(1.0)
    assert handover.tries_again(FULL, 30.9)
    assert not handover.tries_again(reply(500), 30.9)
    assert not handover.tries_again(FULL, 31.1)


def test_a_stream_returns_to_a_slow_engine_if_the_others_are_full() -> None:
    handover = begun(D0)
    assert handover.leave(is_drained=False)
    handover.take_cut(1.0)
    assert handover.engines == {D0}
    assert handover.tries_again(FULL, 40.0)
    assert handover.engines == frozenset()


def test_a_stream_that_cannot_be_continued_does_not_leave() -> None:
    handover = begun(D0)
    handover.journal.broken = "tool_call"
    assert not handover.leave(is_drained=True)
    assert handover.take_cut(1.0) is None
    assert handover.engines == {D0}
