"""Series count what prometheus-client would have counted, and their rows outlive the process."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as TheirHistogram

from router.core.count_rows import CountRows, read_rows
from router.core.values import Endpoint, Role
from router.telemetry import families
from router.telemetry.series import Series

VALUES = [0.0, 0.1, 0.5, 1.0, 2.5, 120.0, 121.0]
D0 = Endpoint("http://d0", Role.DECODE)


def memory(size: int = 1 << 16) -> memoryview:
    return memoryview(bytearray(size))


@given(st.lists(st.lists(st.sampled_from(VALUES))))
def test_a_histogram_counts_as_if_prometheus_client_observed_each_value(
    batches: list[list[float]],
) -> None:
    shared, registry = memory(), CollectorRegistry()
    theirs = TheirHistogram("h", "text", buckets=families.TTFT_BUCKETS, registry=registry)
    series = Series(CountRows(shared))
    histogram = series.histogram(families.PREFILL)
    for batch in batches:
        for value in batch:
            theirs.observe(value)
            histogram.observe(value)
        series.publish()
    [(_, numbers)] = read_rows(shared)
    total = 0.0
    for bound, count in zip(families.PREFILL.bounds, numbers, strict=False):
        total += count
        le = "+Inf" if bound == float("inf") else str(bound)
        assert total == registry.get_sample_value("h_bucket", {"le": le})
    assert numbers[-1] == pytest.approx(registry.get_sample_value("h_sum"))


def test_a_bucket_has_the_trace_that_it_counted_last() -> None:
    series = Series(CountRows(memory()))
    histogram = series.histogram(families.PREFILL)
    for value, trace_id in ((0.5, "a"), (0.3, "b"), (0.4, None), (5.0, "c")):
        histogram.observe(value, trace_id)
    found = series.exemplars(families.PREFILL, ()).values()
    assert [(each.labels["trace_id"], each.value) for each in found] == [("b", 0.3), ("c", 5.0)]


def test_nothing_is_seen_before_it_is_published_and_nothing_twice() -> None:
    shared = memory()
    series = Series(CountRows(shared))
    counter = series.counter(families.CHUNKS)
    counter.value += 2
    assert dict(read_rows(shared)) == {b'["relayed_chunks"]': [0.0]}
    series.publish()
    series.publish()
    assert dict(read_rows(shared)) == {b'["relayed_chunks"]': [2.0]}


def test_the_same_series_is_found_again() -> None:
    series = Series(CountRows(memory()))
    assert series.counter(families.ANSWERS, *D0[::-1], "200") is series.counter(
        families.ANSWERS, "decode", "http://d0", "200"
    )


def test_an_engine_is_forgotten_with_all_its_series_also_with_those_of_a_predecessor() -> None:
    shared = memory()
    for _ in range(2):
        series = Series(CountRows(shared))
        for url in ("http://d0", "http://d1"):
            series.row(families.FAILURES, "decode", url, "reset")[0] += 1
        series.counter(families.CHUNKS)
    series = Series(CountRows(shared))
    assert {each.url for each in series.engines} == {"http://d0", "http://d1"}
    series.forget(D0)
    assert [name for name, _ in read_rows(shared) if b"d0" in name] == []
    assert len(list(read_rows(shared))) == 2


def test_series_without_room_are_left_out_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    shared = memory(1024)
    series = Series(CountRows(shared))
    counters = [series.counter(families.OF_MODELS, f"m{number}", "ok") for number in range(50)]
    for counter in counters:
        counter.value += 1
    series.publish()
    assert 0 < len(list(read_rows(shared))) < 50
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "counts are missing in this worker's metrics" in record.message
