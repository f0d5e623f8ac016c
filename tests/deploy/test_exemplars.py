"""From a bucket that a real Prometheus shows to a trace that a real receiver has."""

from pathlib import Path

from tests.deploy.site import needs_prometheus, running
from tests.telemetry.otlp import collector

TTFT = "pd_router_time_to_first_byte_seconds_bucket"


@needs_prometheus
def test_the_exemplars_of_time_to_first_byte_are_traces_that_were_exported(tmp_path: Path) -> None:
    with (
        collector() as receiver,
        running(tmp_path, f"--otlp-traces-endpoint {receiver.url}") as site,
    ):
        site.until(lambda: site.exemplars(TTFT) != [], "no exemplars")
        named = {labels["trace_id"] for labels in site.exemplars(TTFT)}
        site.until(
            lambda: named <= {span.trace_id for span in receiver.spans}, "traces are not exported"
        )
