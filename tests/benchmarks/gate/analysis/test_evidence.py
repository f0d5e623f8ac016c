from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.analysis.evidence import (
    Span,
    backed_up,
    longest,
    slowest,
    standstills,
    tokens_per_request,
)
from benchmarks.gate.analysis.timeline import Timeline, chunk_times
from tests.benchmarks.gate.runs import Stall, least_loaded, loop, request, round_robin, run


@given(st.lists(st.booleans(), max_size=40))
def test_the_longest_stretch_is_true_and_none_is_longer(flags: list[bool]) -> None:
    found = longest(np.array(flags, dtype=bool))
    text = "".join("x" if flag else " " for flag in flags)
    if found is None:
        assert not any(flags)
    else:
        length = found[1] - found[0] + 1
        assert text[found[0] : found[1] + 1] == "x" * length
        assert "x" * (length + 1) not in text


def held(*loads: Sequence[float]) -> Timeline:
    times = np.arange(len(loads[0]), dtype=float)
    return Timeline(times, {f"w{i}": np.array(load) for i, load in enumerate(loads)}, "router")


def test_published_kinds_of_worker_faults_are_distinguished() -> None:
    # The stalled worker at 1022 of 2048, and the healthy runs' highest peak, 296 (1.14).
    backup = held([256, 1022, 1022, 256], *[[256, 146, 146, 256]] * 7)
    assert backed_up(backup, "w0", 256, 9.0) == Span("w0", 1.0, 2.0)
    assert backed_up(backup, "w1", 256, 9.0) is None
    balanced = held([256, 296, 296, 256], *[[256, 250, 250, 256]] * 7)
    assert backed_up(balanced, "w0", 256, 9.0) is None
    skewed = held([303, 303, 303, 303], *[[1, 1, 1, 1]] * 7)
    assert backed_up(skewed, "w0", 256, 9.0) is not None


@pytest.mark.parametrize(
    ("load", "others"),
    [(340, 160), (500, 300)],
    ids=["little more than fair", "not twice the others"],
)
def test_uneven_is_not_backed_up(load: int, others: int) -> None:
    assert backed_up(held([load] * 4, *[[others] * 4] * 7), "w0", 256, 9.0) is None


def test_two_that_hold_much_are_another_kind_of_worker() -> None:
    decode, prefill = [512] * 4, [1] * 4
    assert backed_up(held(decode, decode, prefill, prefill), "w0", 256, 9.0) is None
    assert backed_up(held(decode, prefill, prefill, prefill), "w0", 256, 9.0) is not None


def test_chance_is_no_backup() -> None:
    few = held([4, 10, 10, 4], *[[4, 3, 3, 4]] * 7)
    assert backed_up(few, "w0", 4, 9.0) is None


def test_the_last_worker_to_finish_is_not_backed_up() -> None:
    tail = held([256, 256, 256, 256], [256, 256, 0, 0], [256, 256, 0, 0])
    assert backed_up(tail, "w0", 256, last_sent=1.5) is None


def test_a_hiccup_is_no_backup() -> None:
    load = [20.0] * 100
    load[50] = 80
    hiccup = held(load, *[[20.0] * 100] * 3)
    assert backed_up(hiccup, "w0", 20, 200.0) is None


def test_a_hung_worker_is_found_although_the_load_moves_away() -> None:
    found = standstills(loop(least_loaded, count=1280, stall=Stall(2, 1.0, 3.0)))
    assert [span.worker for span in found] == ["w2"]
    assert found[0].since == pytest.approx(1.0, abs=0.3)
    assert found[0].until == pytest.approx(3.0, abs=0.3)


def test_no_worker_hangs_if_all_are_idle_or_silent() -> None:
    assert standstills(loop(least_loaded)) == []
    assert standstills(loop(round_robin, ready=(2, 2, 2, 2))) == []
    assert standstills(loop(round_robin, workers=1)) == []
    assert standstills(run([request()])) == []
    assert standstills(run()) == []


def test_no_medians_are_computed_without_an_advantage_in_held_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a thousand workers they were most of the time that a verdict took."""

    def dear(*_: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(Timeline, "others", dear)
    assert backed_up(held([300, 290, 310], [310, 300, 290], [280, 300, 300]), "w0", 256, 9) is None


def test_the_slowest_are_a_hundredth() -> None:
    seen = run([request(number, first=0.001 * number) for number in range(1, 1001)])
    assert {each.number for each in slowest(seen)} == set(range(991, 1001))
    assert slowest(run()) == []


def test_a_workers_output_is_per_second_and_held_request() -> None:
    seen = run([request(n, sent=0.0, first=1.0, last=2.0, ended=4.0, gaps=(1.0,)) for n in (0, 1)])
    all_of, chunks = seen.requests, chunk_times(seen.requests)
    assert tokens_per_request(all_of, "w0", chunks, Span("w0", 0.0, 4.0)) == pytest.approx(4 / 8)
    assert tokens_per_request(all_of, "w0", chunks, Span("w0", 5.0, 6.0)) is None
