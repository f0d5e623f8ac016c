from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.inputs.datasets import Conversation, Dataset, Shape, Turn, synthetic
from benchmarks.gate.traffic.arrivals import Arrivals, Pattern
from benchmarks.gate.traffic.pace import UNLIMITED, Pace, RequestTemplate, lateness
from benchmarks.streaming.client import Seen

DATASET = synthetic(Shape(conversations=4, input_tokens=3, output_tokens=5), 1)
TRACE = replace(DATASET, stamps=(2.0, 3.0, 5.0, 9.0))


def test_the_body_is_aiperfs() -> None:
    talk = Conversation((Turn("one"), Turn("two", 9)))
    template = RequestTemplate(DATASET, "m", 128, 0.0, {"ignore_eos": True})
    assert template.body(talk, 0) == (
        b'{"messages":[{"role":"user","content":"one"}],"model":"m","stream":true,'
        b'"max_completion_tokens":128,"temperature":0,"stream_options":{"include_usage":true},'
        b'"ignore_eos":true}'
    )
    second = replace(template, temperature=0.5).body(talk, 1, ["said"])
    assert b'{"role":"assistant","content":"said"},{"role":"user","content":"two"}]' in second
    assert b'"max_completion_tokens":9,"temperature":0.5' in second


def of(pace: Pace, dataset: Dataset, count: int, offset: int = 0, parts: int = 1) -> list[float]:
    found = [pace.schedule(dataset, count, offset, part, parts) for part in range(parts)]
    return sorted(np.concatenate(found).tolist())


@given(st.integers(1, 5), st.integers(0, 40), st.sampled_from(Pattern))
def test_processes_share_one_schedule(parts: int, count: int, pattern: Pattern) -> None:
    pace = Pace(Arrivals(10, pattern), seed=3)
    assert of(pace, DATASET, count, parts=parts) == of(pace, DATASET, count)
    assert len(of(pace, DATASET, count)) == count


def test_a_duration_alone_ends_an_open_loop() -> None:
    pace = Pace(Arrivals(10, Pattern.CONSTANT), duration=1.0)
    assert len(of(pace, DATASET, UNLIMITED)) == 10
    assert len(of(pace, DATASET, 3)) == 3


def test_a_trace_keeps_its_own_times_and_ends_where_it_ends() -> None:
    assert of(Pace(replay=1.0), TRACE, 3) == [0, 1, 3]
    assert of(Pace(replay=2.0), TRACE, UNLIMITED, parts=2) == [0, 0.5, 1.5, 3.5]
    assert of(Pace(replay=1.0, duration=3.0), TRACE, 4, offset=1) == [0, 2]


@given(st.integers(1, 100), st.integers(1, 8))
def test_processes_share_the_cap(cap: int, parts: int) -> None:
    found = [Pace(cap=cap).cap_of(part, parts) for part in range(parts)]
    assert sum(found) == max(cap, parts)
    assert min(found) >= 1
    assert Pace().cap_of(0, parts) == UNLIMITED


def test_lateness_covers_requests_with_an_intended_time() -> None:
    assert lateness([Seen(0, 0, 0.0)]) is None
    found = lateness([Seen(0, 0, 0.0), *(Seen(0, 0, 0.0, late=n / 1e3) for n in range(101))])
    assert found is not None
    assert found.requests == 101
    assert [found.p50_ms, found.p99_ms, found.max_ms] == pytest.approx([50, 99, 100])
