"""Engines of sources, and sources that cannot work."""

import asyncio
import logging
import re
import sys
import time
from typing import cast

import pytest

from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from router.discovery.dns import DnsSource
from router.discovery.kubernetes import KubernetesSource
from router.discovery.source import OnTargets, WrongConfiguration
from router.net.tasks import TaskSet
from router.settings import SettingsError, load
from router.web import discovery
from router.web.discovery import Discovery, discovery_sources
from router.web.fleet_sync import FleetSync
from router.web.lifecycle import START_SECONDS, Lifecycle
from tests.net.harness import eventually

IN, OUT, NAME = (
    Target(Endpoint(url, Role.DECODE))
    for url in ("http://10.0.0.1:8000", "http://169.254.169.254", "http://d0:8000")
)


class Source:
    """Names these sets one after the other. None is a wrong configuration, and so is a text, which
    says why."""

    name = "pods"
    servers = ("pods",)

    def __init__(self, *sets: tuple[Target, ...] | str | None) -> None:
        self._sets = list(sets)
        self.watched = 0

    async def watch(self, on_targets: OnTargets) -> None:
        """See `Source`."""
        self.watched += 1
        while self._sets:
            targets = self._sets.pop(0)
            if targets is None or isinstance(targets, str):
                raise WrongConfiguration(targets or "no such selector; mend it")
            on_targets(targets)
        await asyncio.Event().wait()


class Bench:
    """A discovery and its reports; `before`: reports of an earlier process."""

    def __init__(
        self,
        *networks: str,
        before: tuple[Target, ...] | None = None,
        is_starting: bool = True,
    ) -> None:
        self.before = before
        self.told: list[tuple[Target, ...]] = []
        self.ended = 0
        began = time.monotonic() - (0.0 if is_starting else START_SECONDS)
        lifecycle = Lifecycle(TaskSet(), began)
        lifecycle.on_failed = self._end
        sync = cast("FleetSync", self)
        self.discovery = Discovery(EngineNetworks(networks), sync, lifecycle)

    @property
    def roster(self) -> "Bench":
        """As of `FleetSync`."""
        return self

    def on_targets(self, source: str, targets: tuple[Target, ...]) -> None:
        """As of `FleetSync`."""
        assert source == "pods"
        self.told.append(targets)

    def named_by(self, source: str) -> tuple[Target, ...] | None:
        """As of `Roster`."""
        assert source == "pods"
        return self.told[-1] if self.told else self.before

    def _end(self) -> None:
        self.ended += 1

    async def run(self, source: Source, sets: int) -> None:
        """Until so many reports."""
        running = asyncio.ensure_future(self.discovery.run(source))
        await eventually(lambda: len(self.told) == sets or running.done())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_engines_outside_the_networks_are_skipped_with_a_warning_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench("10.0.0.0/8")
    await bench.run(Source((IN, OUT), (OUT, IN), (IN, OUT, NAME), (IN,), (IN, OUT)), 5)
    assert bench.told == [(IN,)] * 5
    assert [line.split(": ")[1] for line in caplog.messages] == [
        *(OUT.endpoint.url, NAME.endpoint.url),
        OUT.endpoint.url,  # it had been away
    ]


async def test_without_networks_all_are_taken() -> None:
    bench = Bench()
    await bench.run(Source((IN, OUT, NAME)), 1)
    assert bench.told == [(IN, OUT, NAME)]


async def test_impossible_source_ends_the_router(caplog: pytest.LogCaptureFixture) -> None:
    bench, source = Bench(), Source(None)
    await bench.run(source, 1)
    assert (bench.ended, source.watched) == (1, 1)
    assert caplog.messages == ["discovery by pods: no such selector; mend it"]
    assert caplog.records[0].exc_info is None


async def test_a_source_with_engines_is_retried_and_they_stay(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "AGAIN_SECONDS", 0.0)
    caplog.set_level(logging.ERROR)
    bench, source = Bench(), Source((IN,), None, (IN, NAME))
    await bench.run(source, 2)
    assert (bench.ended, source.watched) == (0, 2)
    assert bench.told == [(IN,), (IN, NAME)]
    assert len(caplog.messages) == 1


async def test_a_source_with_engines_before_a_restart_is_retried_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "AGAIN_SECONDS", 0.0)
    bench, source = Bench(before=(IN,)), Source(None, (NAME,))
    await bench.run(source, 1)
    assert (bench.ended, source.watched) == (0, 2)
    assert bench.told == [(NAME,)]


async def test_a_source_without_engines_ends_no_serving_router(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discovery, "AGAIN_SECONDS", 0.0)
    bench, source = Bench(is_starting=False), Source(None, (NAME,))
    await bench.run(source, 1)
    assert (bench.ended, source.watched) == (0, 2)
    assert bench.told == [(NAME,)]
    assert caplog.messages == [FAILS]


FAILS = "discovery by pods fails; keeping the last known engines: no such selector; mend it"


def _told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and first words of each line."""
    return [(each.levelname, re.split("[,;]", each.getMessage())[0]) for each in caplog.records]


async def test_a_lasting_fault_is_logged_once_per_cause_and_at_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "AGAIN_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    bench, source = Bench(), Source((IN,), None, None, None, "forbidden", "forbidden", (NAME,))
    running = asyncio.ensure_future(bench.discovery.run(source))
    await eventually(lambda: "works again" in caplog.text)
    fails, works = "discovery by pods fails", "discovery by pods works again"
    assert _told(caplog) == [("ERROR", fails), ("ERROR", fails), ("INFO", works)]
    assert caplog.messages[0] == FAILS
    assert caplog.messages[1].endswith("forbidden")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_one_that_names_engines_and_fails_each_time_is_not_well_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "AGAIN_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    bench, source = Bench(), Source((IN,), None, (IN,), None, (IN,), None, (NAME,))
    running = asyncio.ensure_future(bench.discovery.run(source))
    await eventually(lambda: len(bench.told) == 4 and "works again" in caplog.text)
    assert caplog.messages[0] == FAILS
    assert len(caplog.messages) == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


POD = {"k8s_decode_selector": "role=decode"}
DNS = {"dns_decode": "decode.default.svc:8000"}


def test_none_is_built_without_a_request() -> None:
    assert discovery_sources(load({"decode": "http://d0"})) == []


def test_the_requested_ones_are_built() -> None:
    kinds = [type(each) for each in discovery_sources(load({**POD, **DNS}))]
    assert kinds == [KubernetesSource, DnsSource]


def test_encode_engines_of_all_sources_are_named() -> None:
    flags = {"encode": "http://e0", "k8s_encode_selector": "role=encode", "dns_encode": "e:8000"}
    settings = load({"decode": "http://d0", **POD, **DNS, **flags})
    assert discovery.targets_of(settings)[-1] == Target(Endpoint("http://e0", Role.ENCODE))
    pods, names = discovery_sources(settings)
    assert isinstance(pods, KubernetesSource)
    assert pods._selectors == {Role.DECODE: "role=decode", Role.ENCODE: "role=encode"}
    assert names.servers == ("dns decode.default.svc", "dns e")


@pytest.mark.parametrize(
    ("flags", "module", "extra"),
    [(POD, "kubernetes_asyncio", "kubernetes"), (DNS, "dns.asyncresolver", "dns")],
)
def test_a_missing_extra_is_named(
    flags: dict[str, str], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=rf"pip install 'pd-router\[{extra}\]'"):
        discovery_sources(load(flags))
