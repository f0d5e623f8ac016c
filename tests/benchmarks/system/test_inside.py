from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from benchmarks.system import inside
from benchmarks.system.inside import Lag, Stalls


def text(fast: int, slow: int, longest: float, process: str = "1") -> str:
    """A histogram of so many lags up to 20 ms and above, and the gauge, of one process."""
    name = "pd_router_event_loop_lag_seconds"
    edges = ((0.005, fast), (0.02, fast), (0.05, fast + slow), ("+Inf", fast + slow))
    rows = [f'{name}_bucket{{le="{edge}",worker="{process}"}} {n}.0' for edge, n in edges]
    gauge = f'pd_router_event_loop_lag_max_seconds{{worker="{process}"}} {longest}'
    return "\n".join(["# HELP ...", *rows, f"{name}_sum 1.0", gauge, ""])


def test_several_processes_are_one_router() -> None:
    seen = inside.parse(text(5, 0, 0.004) + text(7, 1, 0.03, process="2"))
    assert seen == Lag(0.03, {0.005: 12, 0.02: 12, 0.05: 13, float("inf"): 13})


def test_other_values_are_ignored() -> None:
    assert inside.parse("# TYPE up gauge\nup 1\n") is None
    assert inside.between(None, None) is None


@pytest.mark.parametrize(
    ("before", "after", "stalls"),
    [
        (None, text(9, 2, 0.03), Stalls(0.03, 2.0)),
        # It rose: it is of this turn.
        (text(5, 1, 0.025), text(9, 3, 0.03), Stalls(0.03, 2.0)),
        # It is of before, and all that came since was below 5 ms.
        (text(5, 1, 0.03), text(9, 1, 0.03), Stalls(0.005, 0.0)),
    ],
)
def test_only_new_counts_matter(before: str | None, after: str, stalls: Stalls) -> None:
    first = None if before is None else inside.parse(before)
    assert inside.between(first, inside.parse(after)) == stalls


def test_without_the_gauge_or_the_edge_it_is_absent() -> None:
    assert inside.between(None, Lag(None, {0.05: 1.0})) == Stalls(None, None)


def waits(*counts: int) -> dict[float, float]:
    """A histogram of waits up to 10 ms, 100 ms and above."""
    return dict(zip((0.01, 0.1, float("inf")), map(float, counts), strict=True))


@pytest.mark.parametrize(
    ("counts", "p99_s"),
    [
        (waits(100, 100, 100), 0.0099),
        (waits(0, 0, 0), None),
        # The 99th of 100 is in the middle of the second bucket.
        (waits(98, 100, 100), 0.055),
        # Nobody knows how much longer than the highest edge.
        (waits(98, 98, 100), 0.1),
        ({}, None),
    ],
)
def test_quantiles_are_those_of_prometheus(counts: dict[float, float], p99_s: float | None) -> None:
    assert inside.quantile(counts, 0.99) == (None if p99_s is None else pytest.approx(p99_s))


def test_only_connections_of_the_turn_count() -> None:
    name = "pd_router_accept_delay_seconds_bucket"
    rows = [f'{name}{{le="{edge}"}} {count}' for edge, count in waits(3, 3, 3).items()]
    seen = inside.parse("\n".join(rows))
    assert seen == Lag(None, {}, waits(3, 3, 3))
    stalls = inside.between(seen, Lag(None, {}, waits(3, 103, 103)))
    assert stalls is not None
    assert stalls.accept_p99_s == pytest.approx(0.01 + 0.09 * 0.99)


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text(1, 0, 0.001).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_router_is_queried_over_http(closed_port: int) -> None:
    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        Thread(target=server.handle_request, daemon=True).start()
        seen = inside.look(f"http://127.0.0.1:{server.server_port}")
    assert seen is not None
    assert seen.max_s == 0.001
    assert inside.look(f"http://127.0.0.1:{closed_port}") is None
