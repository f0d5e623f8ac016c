"""The counts of all workers, in pieces, as prometheus-client would write those of one process."""

import itertools
from collections.abc import Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest

from router.core.count_rows import CountRows
from router.core.values import Endpoint, Role
from router.telemetry import families
from router.telemetry.exposition import PIECE_SAMPLES, PLAIN, text_in_pieces
from router.telemetry.families import Family
from router.telemetry.series import Series
from router.telemetry.sums import PIECE_ROWS, Totals, WorkerSums, totals_of

D0 = Endpoint("http://d0:8000", Role.DECODE)
KINDS = {
    "counter": prometheus_client.Counter,
    "gauge": prometheus_client.Gauge,
    "histogram": prometheus_client.Histogram,
}


class Workers:
    """Some worker processes that count."""

    def __init__(self, number: int = 3, size: int = 4 << 20) -> None:
        self.memory = [memoryview(bytearray(size)) for _ in range(number)]
        self.series = [Series(CountRows(each)) for each in self.memory]

    def sums(self, *engines: Endpoint) -> WorkerSums:
        """All of them, published, as the last one exports them."""
        for each in self.series:
            each.publish()
        found = WorkerSums(self.memory, self.series[-1])
        found.engines = frozenset(engines)
        return found


def labels_of(family: Family) -> Iterator[tuple[str, ...]]:
    """Two series of a family, in a decode engine's case of one engine."""
    odd = 'a "b" \\ \n c'
    values = [
        ["decode"] if each == "role" else [D0.url] if each == "endpoint" else ["x", odd]
        for each in family.labels
    ]
    yield from itertools.islice(itertools.product(*values), 2)


def theirs(workers: int) -> bytes:
    """What prometheus-client writes if one process counts everything."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for family in families.ALL:
        options = {"buckets": family.bounds} if family.bounds else {}
        metric = KINDS[family.type](
            *(family.full_name, family.help, family.labels), registry=registry, **options
        )
        for labels in labels_of(family):
            one = metric.labels(*labels) if labels else metric
            for number in range(workers):
                if family.type == "histogram":
                    one.observe(number)
                elif family.is_maximum:
                    one.set(number)
                else:
                    one.inc(number)
    return generate_latest(registry)


def test_their_text_is_that_of_prometheus_client() -> None:
    workers = Workers()
    for number, series in enumerate(workers.series):
        for family in families.ALL:
            for labels in labels_of(family):
                if family.type == "histogram":
                    series.histogram(family, *labels).observe(number)
                else:
                    series.row(family, *labels)[0] += number
    ours = b"".join(text_in_pieces(workers.sums(D0).metrics(), PLAIN))
    assert sorted(ours.splitlines()) == sorted(theirs(3).splitlines())


def test_the_exemplars_are_those_of_the_worker_that_is_asked() -> None:
    workers = Workers(2)
    for series, trace_id in zip(workers.series, "ab", strict=True):
        series.histogram(families.PREFILL).observe(0.4, trace_id)
    samples = [
        sample
        for metric in workers.sums().metrics()
        if metric is not None and metric.name == families.PREFILL.full_name
        for sample in metric.samples
    ]
    found = {each.labels["le"]: each.exemplar for each in samples if each.exemplar}
    [(bound, exemplar)] = found.items()
    assert (bound, exemplar.labels, exemplar.value) == ("0.5", {"trace_id": "b"}, 0.4)
    assert samples[-2].value == 2.0


def test_no_piece_takes_long() -> None:
    engines = [Endpoint(f"http://e{number}", Role.DECODE) for number in range(2 * PIECE_SAMPLES)]
    workers = Workers()
    for series in workers.series:
        for _, url in ((each.role, each.url) for each in engines):
            for kind in ("reset", "timeout", "refused"):
                series.row(families.FAILURES, "decode", url, kind)
    found = list(workers.sums(*engines).metrics())
    rows = len(workers.series) * len(engines) * 3
    assert sum(piece is None for piece in found) >= rows / PIECE_ROWS
    assert max(len(piece.samples) for piece in found if piece is not None) == PIECE_SAMPLES


def test_engines_that_are_gone_are_left_out() -> None:
    workers = Workers()
    for series in workers.series:
        for url in (D0.url, "http://gone"):
            series.row(families.ANSWERS, "decode", url, "200")[0] += 1
    samples = [each for metric in workers.sums(D0).metrics() if metric for each in metric.samples]
    assert [(each.labels["endpoint"], each.value) for each in samples] == [(D0.url, 3.0)]


def test_the_live_pages_counts_are_added_over_the_labels_that_it_does_not_show() -> None:
    workers = Workers(2)
    for series in workers.series:
        for mode, status, outcome, count in (
            ("direct", "200", "ok", 2),
            ("remote_prefill", "200", "ok", 3),
            ("none", "503", "error", 1),
        ):
            labels = "/v1/completions", mode, status, outcome
            series.row(families.REQUESTS, *labels)[0] += count
        series.row(families.FAILED)[0] += 6
        for status, count in (("200", 4), ("500", 1)):
            series.row(families.ANSWERS, "decode", D0.url, status)[0] += count
        series.row(families.DECISIONS, "direct", "below_threshold")[0] += 7
        series.row(families.FALLBACKS, "decode", "stalled")[0] += 1
    assert totals_of(workers.sums(D0)) == Totals(
        requests={"ok": 10, "error": 2},
        failures=12,
        decisions={("direct", "below_threshold"): 14},
        fallbacks={("decode", "stalled"): 2},
        answers={D0: 10},
    )


def test_the_live_pages_times_to_first_token_are_those_of_streams() -> None:
    workers = Workers(1)
    [series] = workers.series
    series.histogram(families.TTFT, "direct", "true").observe(0.5)
    series.histogram(families.TTFT, "remote_prefill", "true").observe(0.05)
    series.histogram(families.TTFT, "direct", "false").observe(0.5)
    series.histogram(families.ENDPOINT_TTFT, "decode", D0.url).observe(0.5)
    found = totals_of(workers.sums(D0))
    assert [found.ttft[bound] for bound in (0.025, 0.05, 0.25, 0.5, float("inf"))] == [
        *(0, 1, 1, 2, 2)
    ]
    assert found.endpoint_ttft[D0][0.25] == 0
    assert found.endpoint_ttft[D0][0.5] == 1


def test_nothing_is_counted_before_anything_happens() -> None:
    assert totals_of(Workers().sums()) == Totals()
    pieces = [piece for piece in Workers().sums().metrics() if piece is not None]
    assert [piece.name for piece in pieces] == [family.full_name for family in families.ALL]
