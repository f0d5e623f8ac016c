"""From a bucket that a real Prometheus shows to a trace that a real receiver has."""

from functools import partial
from pathlib import Path

from tests.deploy.site import Site, needs_prometheus, running
from tests.telemetry.otlp import Collector, collector

FIRST_BYTE = "pd_router_time_to_first_byte_seconds_bucket"
OF_ENGINES = 'pd_router_endpoint_time_to_first_token_seconds_bucket{role="%s"}'


def exported(site: Site, query: str, receiver: Collector) -> bool:
    """Whether the series of a query have exemplars, and the receiver has their traces."""
    named = {labels["trace_id"] for labels in site.exemplars(query)}
    return bool(named) and named <= {span.trace_id for span in receiver.spans}


@needs_prometheus
def test_the_exemplars_of_first_tokens_are_traces_that_were_exported(tmp_path: Path) -> None:
    with (
        collector() as receiver,
        running(
            tmp_path,
            f"--routing-threshold 1 --otlp-traces-endpoint {receiver.url}",
            prefill=1,
        ) as site,
    ):
        for query in (FIRST_BYTE, OF_ENGINES % "prefill", OF_ENGINES % "decode"):
            site.until(partial(exported, site, query, receiver), f"no exported traces: {query}")
