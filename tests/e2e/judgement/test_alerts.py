"""The alerts fire and clear: a real Prometheus scrapes a real router before simulated engines."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.deploy.site import Site, needs_prometheus, running
from tests.deploy.test_prometheus import RULES
from tests.users import users

pytestmark = needs_prometheus

WINDOWS = {"5m": "3s", "15m": "12s", "30m": "12s", "1h": "12s", "6h": "14s"}
"""Windows of time, in which a test need not wait for hours; their order stays. In 12 s six users
have more than ten streams of 3 s, an engine flaps and workers are restarted."""


CONFIGURATION, ENGINES = "router.yaml", "engines.json"


def write_configuration(folder: Path, text: str) -> None:
    """Replace the router's file."""
    new = folder / "new.yaml"
    new.write_text(text)
    new.replace(folder / CONFIGURATION)


def hastened(text: str) -> str:
    """The rules with short windows, delays and ages."""
    text = re.sub(r"\[(\w+)\]", lambda found: f"[{WINDOWS[found[1]]}]", text)
    text = re.sub(r"((?:age_seconds\)|timestamp_seconds) >) \d+", r"\1 3", text)
    return re.sub(r"for: \w+", "for: 600ms", text)


@contextlib.contextmanager
def hasty(
    folder: Path, options: str, *, prefill: int = 0, engine_options: str = ""
) -> Iterator[Site]:
    """A site with these rules, whose router excludes and takes back engines soon."""
    for path in RULES:
        (folder / path.name).write_text(hastened(path.read_text()))
    write_configuration(folder, "{}")
    (folder / ENGINES).write_text('{"decode": []}')
    options += (
        " --health-check-interval 0.2 --outlier-ejection-time 1 --max-excluded-percent 100"
        f" --config {folder / CONFIGURATION} --engines-file {folder / ENGINES}"
        " --routing-threshold 1"
    )
    rules = [path.name for path in RULES]
    with running(
        folder, options, rules=rules, prefill=prefill, engine_options=engine_options
    ) as site:
        yield site


def fires_and_clears(
    site: Site, alerts: str, cause: AbstractContextManager[None], **labels: str
) -> None:
    """Each of the alerts, with these labels, fires under the cause and clears after it."""

    def fire() -> list[bool]:
        return [site.fires(alert, **labels) for alert in alerts.split()]

    site.until(lambda: site.firing() == [], f"not quiet before {alerts}")
    with cause:
        site.until(lambda: all(fire()), f"{alerts}: does not fire")
    site.until(lambda: not any(fire()), f"{alerts}: does not clear")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One whose engines all get requests, and have few slots as far as the router knows."""
    options = "--load-balancing-strategy round_robin --engine-max-num-seqs 4"
    with hasty(tmp_path_factory.mktemp("site"), options) as site:
        yield site


AN_ENGINE: list[tuple[str, dict[str, object]]] = [
    ("EngineDown", {"reset": "request", "paths": ["/health", "/v1/"]}),
    ("EngineDown", {"status": 503, "paths": ["/health"]}),
    ("EngineExcluded", {"stall": True}),
    ("EngineSlow", {"slow": 12.0}),
    ("EngineRefusesRequests", {"status": 400, "paths": ["/v1/completions"]}),
    ("EngineGaugesAreStale", {"status": 503, "paths": ["/metrics"]}),
]
ALL_ENGINES: list[tuple[str, dict[str, object]]] = [
    ("PoolExhausted", {"status": 503, "paths": ["/health"]}),
    ("RequestsAreTriedAgain", {"status": 503, "paths": ["/v1/completions"], "rate": 0.3}),
    ("RequestsFail", {"cut_after_tokens": 3}),
    ("FirstTokensAreLate FirstTokensAreLateForHours", {"delay_s": 3.0}),
]


def test_alerts_fire_under_faults_and_clear(site: Site) -> None:
    one = site.engines[0]
    for alert, faults in AN_ENGINE:
        fires_and_clears(site, alert, site.fault(one, **faults), endpoint=one)
    for alerts, faults in ALL_ENGINES:
        fires_and_clears(site, alerts, site.fault(*site.engines, **faults))


def test_an_alert_fires_while_all_slots_are_taken(site: Site) -> None:
    fires_and_clears(site, "PoolSaturated", users(site.router, 20, tokens=100), role="decode")


@contextlib.contextmanager
def without(path: Path) -> Iterator[None]:
    """The file is not there."""
    away = path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        away.rename(path)


def test_an_alert_fires_while_engines_cannot_be_discovered(site: Site) -> None:
    fires_and_clears(site, "DiscoveryIsSilent", without(site.folder / ENGINES))


def test_alerts_fire_while_the_router_hangs(site: Site) -> None:
    fires_and_clears(site, "NoRouter", site.stopped(), job="pd-router")

    def fires_after_another_time() -> bool:
        over = time.monotonic() + 0.1
        with site.stopped():
            while time.monotonic() < over:
                time.sleep(0.01)
        # `until` lets it run for as long: Prometheus can scrape it.
        return site.fires("RouterIsTheLimit")

    site.until(fires_after_another_time, "RouterIsTheLimit does not fire")
    site.until(lambda: not site.fires("RouterIsTheLimit"), "RouterIsTheLimit does not clear")


def test_an_alert_fires_while_an_engine_comes_and_goes(site: Site) -> None:
    engine = site.engines[0]
    is_up = f'namespace_job_role_endpoint:pd_router_endpoint_up:max{{endpoint="{engine}"}}'

    def fires_after_another_time() -> bool:
        with site.fault(engine, status=503, paths=["/health"]):
            site.until(lambda: site.values(is_up) == [0], f"{engine} does not go")
        site.until(lambda: site.values(is_up) == [1], f"{engine} does not come back")
        return site.fires("EngineFlaps", endpoint=engine)

    site.until(fires_after_another_time, "EngineFlaps does not fire")
    site.until(lambda: not site.fires("EngineFlaps"), "EngineFlaps does not clear")


@contextlib.contextmanager
def workers_killed(site: Site) -> Iterator[None]:
    """All but the leader, once; the supervisor starts others in their place."""
    for pid in site.workers()[1:]:
        os.kill(pid, signal.SIGKILL)
    yield


def test_an_alert_fires_after_workers_have_ended(tmp_path: Path) -> None:
    with hasty(tmp_path, "--workers 4") as site:
        fires_and_clears(site, "WorkersRestart", workers_killed(site))


def test_alerts_on_prefills_and_prefix_caches_fire_and_clear(tmp_path: Path) -> None:
    options = (
        "--load-balancing-strategy shortest_expected_delay --prefix-cache events"
        " --engine-stats-interval 0.2"
        # Otherwise the router knows the ids of all prompts, and predicts well by events alone.
        " --stream-continuation off"
    )
    with hasty(tmp_path, options, prefill=1, engine_options="--kv-events") as site:
        fails: dict[str, object] = {"status": 503, "paths": ["/v1/completions"], "rate": 0.3}
        gone: dict[str, object] = {"status": 503, "paths": ["/health"]}
        # A simulated engine's token is four ASCII characters, or one other byte.
        odd = users(site.router, 2, prompt="字" * 2000)
        fires_and_clears(site, "RemotePrefillsFallBack", site.fault(*site.prefill, **fails))
        fires_and_clears(site, "PrefillPoolExhausted", site.fault(*site.prefill, **gone))
        fires_and_clears(site, "PromptEstimatesAreOff", odd)
        fires_and_clears(site, "PrefixCachePredictionsFail", forgotten_prompts(site))
        # Caches that are emptied always have something to announce.
        with users(site.router, 1, before=site.empty_caches):
            fires_and_clears(site, "KVEventsAreUnusable", lost_events(site), state="blind")
            # It clears for a moment also while what was lost is replayed.
            live = 'min(pd_router_endpoint_kv_events_state{state="live"})'
            site.until(lambda: site.values(live) == [1], "KV events stay unusable")


@contextlib.contextmanager
def forgotten_prompts(site: Site) -> Iterator[None]:
    """A long prompt comes again and again, and each time finds empty caches."""
    with users(site.router, 1, prompt="Once upon a time " * 500, before=site.empty_caches):
        yield


@contextlib.contextmanager
def lost_events(site: Site) -> Iterator[None]:
    """Engines compute prompts, and their KV-cache events do not come."""
    with (
        site.fault(*site.prefill, *site.engines, lose_kv_events=True),
        forgotten_prompts(site),
    ):
        yield


@contextlib.contextmanager
def drained(site: Site, engine: str) -> Iterator[None]:
    """An operator drains the engine, which is no reason to call it down."""
    site.order("drain", engine)
    try:
        yield
        assert not site.fires("EngineDown")
    finally:
        site.order("undrain", engine)


def test_an_alert_fires_while_an_operator_drains_an_engine(site: Site) -> None:
    engine = site.engines[0]
    fires_and_clears(site, "EngineStuckDraining", drained(site, engine), endpoint=engine)


@contextlib.contextmanager
def rejected(folder: Path) -> Iterator[None]:
    """The router's new configuration has a mistake."""
    write_configuration(folder, "no_such_setting: 1")
    try:
        yield
    finally:
        write_configuration(folder, "{}")


def test_an_alert_fires_while_a_new_configuration_is_rejected(site: Site) -> None:
    fires_and_clears(site, "ConfigurationIsRejected", rejected(site.folder))
