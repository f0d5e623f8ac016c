"""Short unary answers: duration by the prompt tokens ahead of them."""

import pytest

from router.core.speed.prompt_costs import Answers, AnswerTimes, reliable_answers
from router.core.speed.tuning import ANSWER_MAX_BUCKETS, RELIABLE_ANSWERS

BASE, PER_TOKEN = 0.05, 0.0001
OVERHEAD = BASE / PER_TOKEN
FEW = int(RELIABLE_ANSWERS)


def answered(
    times: AnswerTimes, works: list[int], *, factor: float = 1.0, ticks: int = 4
) -> float | None:
    """The measure after answers to prompts behind so many tokens."""
    for work in works:
        times.add(work, factor * (BASE + PER_TOKEN * work))
    for _ in range(ticks):
        times.tick()
    return times.per_prompt_token(OVERHEAD)


@pytest.mark.parametrize("work", [1, 100, 10_000])
def test_a_long_prompt_or_queue_is_no_slowness(work: int) -> None:
    assert answered(AnswerTimes(), [work] * 8) == pytest.approx(PER_TOKEN)
    assert answered(AnswerTimes(), [work] * 8, factor=8.0) == pytest.approx(8 * PER_TOKEN)


def test_few_answers_are_no_evidence() -> None:
    times = AnswerTimes()
    assert answered(times, [100] * (FEW - 1)) is None
    assert answered(times, [100]) is not None


def test_the_last_second_counts_where_there_are_enough() -> None:
    times = AnswerTimes()
    answered(times, [100] * 100)
    assert answered(times, [100] * FEW, factor=8.0) == pytest.approx(8 * PER_TOKEN)


def test_without_answers_it_is_forgotten() -> None:
    times = AnswerTimes()
    assert answered(times, [100] * 100, ticks=ANSWER_MAX_BUCKETS) is not None
    assert answered(times, [], ticks=1) is None


def test_another_engine_begins_anew() -> None:
    times = AnswerTimes()
    answered(times, [100] * 100)
    times.reset()
    assert times.per_prompt_token(OVERHEAD) is None
    assert times.fit.sums.samples == 0


def test_the_fit_has_one_answer_of_each_tick() -> None:
    """It costs as much as a tenth of a request."""
    times = AnswerTimes()
    for ticks in (1, 2, 3):
        answered(times, [100, 200, 300], ticks=1)
        samples = times.fit.sums.samples
        assert ticks - 0.1 < samples <= ticks


def of_seconds(*seconds: float) -> AnswerTimes:
    """Answers that took so long."""
    times = AnswerTimes()
    for each in seconds:
        times.add(100, each)
    times.tick()
    return times


def test_answers_of_different_length_measure_speed_only_together() -> None:
    """One in ten has thirty tokens."""
    engine = of_seconds(*[0.03] * 90, *[0.6] * 10)
    least = reliable_answers([engine])
    assert 50 < least < 200
    assert engine.per_prompt_token(OVERHEAD, least) is not None
    assert of_seconds(*[0.03] * 9, 0.6).per_prompt_token(OVERHEAD, least) is None


def test_that_an_engine_is_slower_than_others_is_no_difference_of_answers() -> None:
    engines = [of_seconds(*[0.03] * 20), of_seconds(*[0.24] * 20), AnswerTimes()]
    assert reliable_answers(engines) == RELIABLE_ANSWERS
    assert reliable_answers([]) == RELIABLE_ANSWERS
    assert reliable_answers([of_seconds(*[0.0] * 9)]) == RELIABLE_ANSWERS


def test_how_much_they_differed_is_forgotten() -> None:
    engine = of_seconds(*[0.03] * 9, 0.6)
    for _ in range(5 * ANSWER_MAX_BUCKETS):
        engine.add(100, 0.03)
        engine.tick()
    assert reliable_answers([engine]) == RELIABLE_ANSWERS
    for _ in range(ANSWER_MAX_BUCKETS):
        engine.tick()
    assert engine.recent == Answers()
