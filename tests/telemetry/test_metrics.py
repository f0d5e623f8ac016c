"""The exposition as a whole, and its gauges: valid for Prometheus, with the right values."""

import math
import re
import time

import pytest

from router import __version__
from router.core.events import LegAnswered, Probed, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.probing import NO_GAUGES
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.membership.entry import Entry
from router.core.request_facts import PrefixKeys
from router.core.speed.capacity import Capacity
from router.core.values import Endpoint, Gauges, Role
from router.telemetry.metrics import Metrics
from tests.core.fleets import down, eject
from tests.telemetry.metrics_bench import D0, ODD, P0, SCRAPE_AGE, Bench, a_request, full


def test_every_name_is_the_routers_own(bench):
    assert {name for name in full(bench).families() if not name.startswith("pd_router_")} == set()


def test_no_family_and_no_series_appears_twice(bench):
    text = full(bench).metrics.exposition().decode()
    types = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(types)) == len(types)
    assert len(set(series)) == len(series)


def test_every_family_is_described_in_base_units(bench):
    for name, family in full(bench).families().items():
        assert family.documentation.endswith("."), name
        words = name.split("_")
        assert not {"ms", "milliseconds", "kb", "mb", "percent", "minutes"} & set(words), name
        times = {"duration", "time"} & set(words)
        assert not times or words[-1] == "seconds", name


def test_counters_end_in_total_and_nothing_else_does(bench):
    text = full(bench).metrics.exposition().decode()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        assert name.endswith("_total") is (kind == "counter"), name
    assert "_created" not in text


def test_labels_survive_whatever_a_url_holds():
    bench = Bench([ODD])
    bench.metrics.observe([LegAnswered(ODD, 200, 0.1)])
    [(labels, value)] = bench.samples("pd_router_engine_answers_total")
    assert (labels, value) == ({"role": "decode", "endpoint": ODD.url, "status": "200"}, 1.0)


def test_nothing_that_a_client_sent_is_in_it(bench):
    for number in range(50):
        bench.metrics.observe(
            [a_request(request_id=f"sent-{number}", model=f"sent-{number}", error=f"sent-{number}")]
        )
    assert b"sent-" not in bench.metrics.exposition()
    assert len(bench.samples("pd_router_requests_total")) == 1


def test_a_thousand_requests_make_no_more_series_than_one(bench):
    def count() -> int:
        return sum(len(family.samples) for family in bench.families().values())

    full(bench)
    before = count()
    for number in range(1000):
        bench.metrics.observe([a_request(request_id=f"id-{number}", model=f"model-{number}")])
    assert count() == before


def test_two_routers_in_one_process_do_not_share_counts():
    one, other = Bench(), Bench()
    one.metrics.observe([a_request()])
    assert one.samples("pd_router_requests_total")
    assert not other.samples("pd_router_requests_total")


def test_the_version_is_shown(bench):
    [(labels, value)] = bench.samples("pd_router_build_info")
    assert (labels["version"], value) == (__version__, 1.0)


def test_the_configuration_is_in_labels():
    bench = Bench()
    config = {"connector": "nixl", "workers": "2"}
    bench.metrics = Metrics(bench.fleet, list, None, config)
    assert bench.samples("pd_router_config_info") == [(config, 1.0)]


def test_one_process_has_no_workers_that_restart(bench):
    assert bench.value("pd_router_worker_restarts_total") == 0.0


def test_the_process_is_described(bench):
    assert (bench.value("pd_router_process_open_fds") or 0) > 0
    assert (bench.value("pd_router_process_resident_memory_bytes") or 0) > 0


# Gauges.


DISCOVERY = "pd_router_discovery_last_answer_timestamp_seconds"


def test_a_source_without_any_answer_is_reported(bench):
    assert bench.samples(DISCOVERY) == []
    bench.metrics.begin_discovery(("kubernetes", "dns d"))
    before = time.time()
    bench.metrics.discovery_answered("kubernetes")
    assert bench.value(DISCOVERY, source="kubernetes") >= before
    assert bench.value(DISCOVERY, source="dns d") == 0


def test_the_age_of_a_scrape_grows_until_the_next_good_one(bench):
    assert bench.samples(SCRAPE_AGE) == []
    now = time.monotonic()
    bench.fleet.observe(Scraped(D0, Gauges(3, 1, 0.5), own=1), now - 50)
    bench.fleet.observe(Scraped(D0, None, own=1), now)
    age = bench.value(SCRAPE_AGE, endpoint="http://d0")
    assert age is not None
    assert age >= 50


def test_gauges_that_could_never_be_read_are_infinitely_old_while_the_engine_is_up(bench):
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 1.0)
    assert bench.samples(SCRAPE_AGE) == []  # without attempts
    bench.fleet.observe(Scraped(D0, None, own=0), 2.0)
    [(labels, age)] = bench.samples(SCRAPE_AGE)
    assert (labels["endpoint"], age) == (D0.url, math.inf)
    bench.fleet.observe(Probed(D0, HealthSignal.UNAVAILABLE), 3.0)
    assert bench.samples(SCRAPE_AGE) == []  # without readers


def test_an_engine_that_has_no_gauges_has_no_age_of_gauges(bench):
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 1.0)
    bench.fleet.observe(Scraped(D0, None, own=0, error=NO_GAUGES), 2.0)
    assert bench.samples(SCRAPE_AGE) == []
    bench.fleet.observe(Scraped(D0, None, own=0, error="status 503"), 3.0)
    assert [age for _, age in bench.samples(SCRAPE_AGE)] == [math.inf]


def test_predicted_and_found_cache_tokens_are_shown_together(bench):
    labels = {"role": "decode", "endpoint": "http://d0"}
    name = "pd_router_endpoint_prefix_cache_"
    assert bench.samples(f"{name}trust") == []
    prefixes = bench.fleet.member(D0).prompts.sent
    prefixes.claim(PrefixKeys((1,), (900,))).confirm()
    for number in range(1, 3):
        prefixes.prompt_tokens, prefixes.predicted_tokens = 20_000 * number, 10_000 * number
        gauges = Gauges(cache_queries=20_000 * number, cache_hits=2_500 * number)
        bench.fleet.observe(Scraped(D0, gauges, own=0), float(number))
    assert bench.value(f"{name}held_tokens", **labels) == 900
    kinds = {"prompt": 20_000, "predicted": 10_000, "looked_up": 20_000, "found": 2_500}
    for kind, tokens in kinds.items():
        assert bench.value(f"{name}recent_tokens", **labels, kind=kind) == tokens
    assert bench.value(f"{name}trust", **labels) == 0.25


def test_the_current_threshold_is_shown():
    fleet, now = Fleet((P0, D0), Ledger(), HealthThresholds(), stale_after=3.0), [512.0]
    metrics = Metrics(fleet, lambda: (), threshold=lambda: now[0])
    for tokens in (512.0, 700.0):
        now[0] = tokens
        assert f"pd_router_routing_threshold_tokens {tokens}\n" in metrics.exposition().decode()


def test_tokens_per_byte_are_shown_per_model(bench):
    cards = ({"id": "m"}, {"id": "new"})
    bench.fleet.observe(Probed(D0, HealthSignal.OK, cards), 0.0)
    bench.fleet.ended(a_request(model="m", text_bytes=80_000, prompt_tokens=20_000))
    bench.fleet.ended(a_request(model="unknown", text_bytes=80_000, prompt_tokens=20_000))
    assert bench.samples("pd_router_tokens_per_byte") == [({"model": "m"}, 0.25)]


def test_measured_transfers_are_shown_by_zones(bench):
    name = "pd_router_zone_handover_seconds"
    assert bench.samples(name) == []
    bench.fleet.apply([Entry(P0, 0, zone="a"), Entry(D0, 1)], 0.0)
    assert bench.samples(name) == []
    for _ in range(12):
        bench.fleet.transfers.add(("a", None), 1000, 0.25)
    [(labels, seconds)] = bench.samples(name)
    assert labels == {"prefill_zone": "a", "decode_zone": ""}
    assert seconds == pytest.approx(0.25)


def test_known_slots_are_shown(bench):
    assert bench.samples("pd_router_endpoint_slots") == []
    bench.fleet.member(D0).capacity = Capacity(stated=64)
    assert bench.value("pd_router_endpoint_slots", endpoint="http://d0") == 64.0


def test_gauges_show_the_fleet_at_the_moment_of_the_scrape(bench):
    d0 = {"endpoint": "http://d0", "role": "decode"}
    with Selection(bench.fleet).lease(D0, 300):
        assert bench.value("pd_router_endpoint_in_flight_requests", **d0) == 1
        assert bench.value("pd_router_endpoint_in_flight_tokens", **d0) == 300
    assert bench.value("pd_router_endpoint_in_flight_requests", **d0) == 0
    assert bench.value("pd_router_endpoint_in_flight_tokens", **d0) == 0


def test_an_endpoint_is_in_one_state(bench):
    for sight, state in (
        (None, "starting"),
        (HealthSignal.ASLEEP, "sleeping"),
        (HealthSignal.OK, "up"),
        (HealthSignal.UNAVAILABLE, "draining"),
    ):
        if sight is not None:
            bench.fleet.observe(Probed(D0, sight), 0.0)
        states = {
            labels["state"]: value
            for labels, value in bench.samples("pd_router_endpoint_state")
            if labels["endpoint"] == D0.url
        }
        assert states == {one: float(one == state) for one in State}


def test_drains_by_order_and_by_health_are_distinguished(bench):
    name = "pd_router_endpoint_drained"
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
    bench.fleet.observe(Probed(D0, HealthSignal.UNAVAILABLE), 0.0)
    assert bench.value(name, endpoint=D0.url) == 0
    bench.fleet.apply([Entry(D0, 0, is_draining=True)], 0.0)
    assert bench.value(name, endpoint=D0.url) == 1


USABLE = "pd_router_pool_usable_engines"


def test_engines_that_get_new_requests_are_counted_by_pool(bench):
    assert bench.value(USABLE, role="decode") == 0
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
    assert bench.value(USABLE, role="decode") == 1
    assert bench.value(USABLE, role="prefill") == 0
    bench.fleet.apply([Entry(D0, 0, is_draining=True)], 1.0)
    assert bench.value(USABLE, role="decode") == 0


def test_an_ejected_engine_that_serves_as_the_last_one_counts_as_usable():
    d1 = Endpoint("http://d1", Role.DECODE)
    bench = Bench([D0, d1])
    for endpoint in (D0, d1):
        bench.fleet.observe(Probed(endpoint, HealthSignal.OK), 0.0)
    eject(bench.fleet, D0)
    assert bench.value(USABLE, role="decode") == 1  # d1
    down(bench.fleet, d1)
    assert bench.value(USABLE, role="decode") == 1  # D0


@pytest.mark.parametrize(("has_prefill", "pools"), [(True, 2), (False, 1)])
def test_a_pool_that_lost_all_engines_has_none_and_is_not_absent(has_prefill, pools):
    bench = Bench()
    bench.metrics = Metrics(bench.fleet, list, has_prefill=lambda: has_prefill)
    bench.fleet.apply([], 1.0)
    bench.metrics.follow()
    assert [value for _, value in bench.samples(USABLE)] == [0.0] * pools


def test_a_plain_pool_has_no_count_of_prefill_engines():
    assert [labels["role"] for labels, _ in Bench([D0]).samples(USABLE)] == ["decode"]


def test_gauges_of_engines_are_shown_while_they_are_scraped(bench):
    d0 = {"endpoint": "http://d0", "role": "decode"}
    assert bench.value("pd_router_endpoint_other_requests", **d0) is None
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
    bench.fleet.observe(Scraped(D0, Gauges(3, 1, 0.5), own=1), 0.0)
    assert bench.value("pd_router_endpoint_other_requests", **d0) == 3
    assert bench.value("pd_router_endpoint_kv_cache_usage_ratio", **d0) == 0.5
    assert bench.value("pd_router_endpoint_other_requests", endpoint="http://p0") is None


def test_an_engine_that_went_away_takes_its_gauges_along(bench):
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
    bench.fleet.observe(Scraped(D0, Gauges(3, 1, 0.5), own=1), 0.0)
    for _ in range(3):
        bench.fleet.observe(Probed(D0, HealthSignal.FAILED), 1.0)
    assert bench.samples("pd_router_endpoint_other_requests") == []
    assert bench.samples("pd_router_endpoint_kv_cache_usage_ratio") == []
    assert bench.value("pd_router_endpoint_in_flight_requests", endpoint=D0.url) == 0


def test_a_missing_gauge_is_absent_not_zero(bench):
    bench.fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
    bench.fleet.observe(Scraped(D0, Gauges(running=1), own=1), 0.0)
    assert bench.value("pd_router_endpoint_other_requests", endpoint=D0.url) == 0
    assert bench.samples("pd_router_endpoint_kv_cache_usage_ratio") == []


def test_connections_are_counted_by_state(bench):
    bench.connections.append((D0, 5, 2))
    name = "pd_router_engine_connections"
    assert bench.value(name, endpoint=D0.url, state="idle") == 2
    assert bench.value(name, endpoint=D0.url, state="active") == 3


def test_connections_that_several_processes_show_one_after_the_other_are_never_below_none(bench):
    bench.connections.append((D0, 2, 3))
    assert bench.value("pd_router_engine_connections", endpoint=D0.url, state="active") == 0


def test_seconds_for_which_the_event_loop_was_late_are_counted_beyond_20_ms(bench: Bench) -> None:
    name = "pd_router_event_loop_late_seconds_total"
    assert bench.samples(name) == [({"worker": "0"}, 0.0)]
    for lag in (0.001, 0.02, 0.5, 0.25):
        bench.metrics.observe_loop_lag(lag)
    assert bench.value(name) == 0.75


def test_lines_that_the_log_has_not_are_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "pd_router_log_lines_dropped_total"
    assert bench.value(name) == 0.0
    for count in (3, 3, 5):
        monkeypatch.setattr("router.telemetry.metrics.dropped_lines", lambda count=count: count)
        assert bench.value(name) == count
