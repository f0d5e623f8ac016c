"""Batched counts are what prometheus-client would have counted itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.samples import Sample

from router.telemetry.batched import BatchedCounter, BatchedHistogram

BUCKETS = (0.1, 1.0, 10.0)


def _histogram() -> tuple[CollectorRegistry, Histogram]:
    registry = CollectorRegistry()
    return registry, Histogram("h", "text", buckets=BUCKETS, registry=registry)


def _samples(registry: CollectorRegistry) -> list[Sample]:
    found = (sample for family in registry.collect() for sample in family.samples)
    return [each for each in found if not each.name.endswith("_created")]


@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 10.0, 11.0]))))
def test_a_histogram_counts_as_if_each_value_were_observed(batches: list[list[float]]) -> None:
    expected, plain = _histogram()
    registry, child = _histogram()
    batched = BatchedHistogram(child)
    for batch in batches:
        for value in batch:
            plain.observe(value)
            batched.observe(value)
        batched.flush()
    samples = zip(_samples(registry), _samples(expected), strict=True)
    for mine, theirs in samples:
        assert (mine.name, mine.labels) == (theirs.name, theirs.labels)
        assert mine.value == pytest.approx(theirs.value)


def test_a_bucket_has_the_trace_that_it_counted_last() -> None:
    registry, child = _histogram()
    batched = BatchedHistogram(child)
    for value, trace_id in ((0.5, "a"), (0.2, "b"), (0.3, None), (5.0, "c")):
        batched.observe(value, trace_id)
    batched.flush()
    batched.observe(0.6)
    batched.flush()
    exemplars = [each.exemplar for each in _samples(registry) if each.name == "h_bucket"]
    assert [each and (each.labels, each.value) for each in exemplars] == [
        None,
        ({"trace_id": "b"}, 0.2),
        ({"trace_id": "c"}, 5.0),
        None,
    ]


def test_nothing_is_seen_before_a_flush_and_nothing_twice() -> None:
    registry = CollectorRegistry()
    batched = BatchedCounter(Counter("c", "text", registry=registry))
    batched.value += 2
    assert registry.get_sample_value("c_total") == 0
    batched.flush()
    batched.flush()
    assert registry.get_sample_value("c_total") == 2
