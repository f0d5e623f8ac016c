"""A fleet with its metrics, read back from the exposition."""

from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from router.core.events import FellBack, LegAnswered, LegFailed, Probed, RequestEnded, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthSignal, HealthThresholds
from router.core.shared_table import SharedTable
from router.core.values import Endpoint, FailureKind, Gauges, Mode, Role
from router.telemetry.metrics import Metrics, WorkerGroup

P0 = Endpoint("http://p0", Role.PREFILL)
D0 = Endpoint("http://d0", Role.DECODE)
ODD = Endpoint('http://[::1]:8000/a"b\\c', Role.DECODE)

FELL_BACK = "pd_router_fallbacks_total"
SCRAPE_AGE = "pd_router_endpoint_scrape_age_seconds"

COUNT_BYTES = 1 << 20

Labels = dict[str, str]


class Bench:
    """A fleet with its metrics, and a reader of the exposition."""

    def __init__(self, endpoints: Iterable[Endpoint] = (P0, D0)) -> None:
        self.fleet = Fleet(endpoints, Ledger(), HealthThresholds(), stale_after=3.0)
        self.connections: list[tuple[Endpoint, int, int]] = []
        self.metrics = Metrics(self.fleet, lambda: self.connections)

    def families(self) -> dict[str, Metric]:
        text = self.metrics.exposition().decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def samples(self, name: str) -> list[tuple[Labels, float]]:
        """The samples of that name; absent and without samples look alike."""
        every = (sample for family in self.families().values() for sample in family.samples)
        return [(sample.labels, sample.value) for sample in every if sample.name == name]

    def value(self, name: str, **labels: str) -> float | None:
        found = [value for given, value in self.samples(name) if labels.items() <= given.items()]
        assert len(found) <= 1
        return found[0] if found else None


def worker_group(number: int = 0, memory: Sequence[memoryview] = ()) -> WorkerGroup:
    """A worker of a router with as many as there are parts of `memory`; one if there are none."""
    counts = memory or [memoryview(bytearray(COUNT_BYTES))]
    size = SharedTable.size(len(counts), 1)
    return WorkerGroup(number, counts, SharedTable(memoryview(bytearray(size)), len(counts), 1))


def a_request(**changes: object) -> RequestEnded:
    record = RequestEnded("id-1", "/v1/completions", started=100.0)
    record.ended = 104.0
    story = {
        "mode": Mode.REMOTE,
        "reason": "at_or_above_threshold",
        "status": 200,
        "outcome": "ok",
        "tokens": 300,
        "first_byte": 101.0,
        "prefill_seconds": 0.5,
        "chunks": 3,
        "bytes_out": 99,
    }
    for name, value in {**story, **changes}.items():
        setattr(record, name, value)
    return record


def full(bench: Bench) -> Bench:
    """Every kind of event, so that every family has samples."""
    for endpoint in (P0, D0):
        bench.fleet.observe(Probed(endpoint, HealthSignal.OK), 0.0)
        bench.fleet.observe(Scraped(endpoint, Gauges(3, 1, 0.5), own=1), 0.0)
    bench.connections = [(endpoint, 3, 2) for endpoint in (P0, D0)]
    for event in (
        LegAnswered(P0, 200, 0.1),
        LegFailed(D0, FailureKind.TIMEOUT),
        FellBack(Role.PREFILL, "busy"),
        a_request(),
        a_request(mode=None, reason="", status=0, outcome="client_left", first_byte=None),
    ):
        bench.metrics.observe([event])
    return bench
