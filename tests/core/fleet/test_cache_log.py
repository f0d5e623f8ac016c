"""The log says when an engine's KV-cache events are used, and when they are not."""

from router.core.events import Probed
from router.core.fleet.cache_log import SETTLE_SECONDS, CacheLog
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.status import Notice
from router.core.health import HealthSignal, HealthThresholds
from router.core.judge.member import Member
from router.core.kv_events.kv_sources import EngineCache, KVSource
from router.core.kv_events.lookups import CacheEvents
from router.core.membership.entry import Entry
from tests.core.fixtures import D0, D1
from tests.core.kv_events.test_kv_sources import source_of

LATER = SETTLE_SECONDS + 1.0


class Told:
    """A fleet of one engine, and the log of its events."""

    def __init__(self, *, is_up: bool = True) -> None:
        events = CacheEvents()
        self.fleet = Fleet([D0], Ledger(), HealthThresholds(), 5.0, cache_events=events)
        if is_up:
            self.fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
        self.log = CacheLog()
        self.source: KVSource = source_of(events.blocks)
        self.now = 0.0

    @property
    def member(self) -> Member:
        """The engine."""
        return self.fleet.member(D0)

    @property
    def cache(self) -> EngineCache:
        """The knowledge from its events."""
        cache = self.member.prompts.events
        assert cache is not None
        return cache

    def lines(self, after: float = LATER) -> list[str]:
        """What is logged at once and after a while; warnings begin with a mark."""
        found: list[Notice] = self.log.notices(self.fleet, self.now)
        self.now += after
        found += self.log.notices(self.fleet, self.now)
        return [("! " if notice.is_bad else "") + notice.text for notice in found]


def test_live_events_are_applied_once() -> None:
    told = Told()
    told.cache.replace([told.source])
    [line] = told.lines()
    assert line == f"decode {D0.url} tells of its KV cache at tcp://d0:5557: 4 blocks"
    assert told.lines() == []


def test_a_cache_with_a_missed_beginning_is_reported() -> None:
    told = Told()
    told.source.stream.live(7, b"")
    told.cache.replace([told.source])
    [line] = told.lines()
    assert line.endswith("4 blocks, without what it held before")


def test_each_trouble_is_a_warning_with_the_remedy() -> None:
    told = Told()
    [line] = told.lines()
    assert "! " in line
    assert "--kv-events-config" in line
    told.cache.replace([told.source])
    told.source.is_connected = False
    [line] = told.lines()
    assert "no connection to its KV-cache events at tcp://d0:5557" in line
    told.source.is_connected = True
    told.source.error = "no msgpack"
    [line] = told.lines()
    assert "cannot be read: no msgpack" in line
    told.source.error = None
    told.cache.is_blind = True
    [line] = told.lines()
    assert "announces nothing" in line
    told.cache.is_blind = False
    told.cache.measure(10_000, 1_000)
    [line] = told.lines()
    assert "finds 10 % of the prompt tokens" in line
    told.cache.reset()
    [line] = told.lines()
    assert line.startswith("decode")


def test_an_unreachable_engine_is_not_reported_as_without_events() -> None:
    told = Told()
    told.cache.sources_error = "/kv_event_sources wants a key"
    [line] = told.lines()
    assert "! " in line
    assert "where it publishes KV-cache events: /kv_event_sources wants a key; until it" in line
    assert "--kv-events-config" not in line


def test_short_troubles_are_not_logged() -> None:
    told = Told()
    told.cache.replace([told.source])
    told.source.is_connected = False
    assert told.lines(after=SETTLE_SECONDS / 2) == []
    told.source.is_connected = True
    assert len(told.lines()) == 1
    told.source.stream.connected()
    assert told.lines() == []  # a replay ends by itself


def test_an_engine_that_is_not_up_has_other_troubles() -> None:
    assert Told(is_up=False).lines() == []


def test_an_engine_that_left_is_forgotten() -> None:
    told = Told()
    told.lines()
    told.fleet.apply([Entry(D1, 1)], told.now)
    told.lines()
    assert list(told.log._since) == [told.fleet.member(D1).prompts.events]


def test_a_fleet_without_events_is_not_mentioned() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), 5.0)
    assert CacheLog().notices(fleet, 0.0) == []
