"""Addresses of engines' events: reported ones, and the router's use of them."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_events.kv_sources import EngineCache
from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from router.net.kv_events import finder
from router.net.kv_events.finder import sources_in
from router.net.kv_events.subscription import KVAddress
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, eventually
from tests.net.kv_events.kv_publisher import Publisher

URL = "http://10.0.0.7:8000"
TOLD = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv"}
FOUND = KVAddress("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv")


def found(document: object, url: str = URL) -> list[KVAddress]:
    """What is in this answer."""
    return sources_in(orjson.dumps(document), url)


def test_each_form_of_the_answer_is_read() -> None:
    assert found({"0": {"enable_kv_cache_events": True, "publisher": "zmq", **TOLD}}) == [FOUND]
    assert found([{"data_parallel_rank": 0, **TOLD}]) == [FOUND]
    assert found({}) == found([]) == []


def test_ranks_are_sources_of_their_own() -> None:
    second = {**TOLD, "endpoint": "tcp://*:5559", "replay_endpoint": None, "topic": None}
    assert found([TOLD, second]) == [FOUND, KVAddress("tcp://10.0.0.7:5559", None, "")]


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
def test_where_it_listens_on_all_addresses_the_engines_is_taken(host: str) -> None:
    told = {"endpoint": f"tcp://{host}:5557"}
    assert found([told])[0].endpoint == "tcp://10.0.0.7:5557"
    assert found([told], "http://[::1]:8000")[0].endpoint == "tcp://[::1]:5557"


def test_a_given_address_is_used() -> None:
    assert found([{"endpoint": "tcp://10.1.1.1:5557"}])[0].endpoint == "tcp://10.1.1.1:5557"


@pytest.mark.parametrize(
    "told",
    [
        {"0": {"enable_kv_cache_events": False, **TOLD}},
        [{"endpoint": "ipc:///run/kv"}],
        [{"endpoint": "inproc://kv"}],
        [{"endpoint": "tcp://a@b:5557"}],
        [{"endpoint": None}],
        [{"endpoint": 5}],
        ["tcp://*:5557"],
        {"detail": "Not Found"},
        5,
    ],
)
def test_invalid_sources_give_none(told: object) -> None:
    assert found(told) == []


@given(st.binary(max_size=60))
def test_any_answer_can_be_read(body: bytes) -> None:
    assert isinstance(sources_in(body, URL), list)


async def test_named_sources_are_followed_from_the_start(harness: Harness) -> None:
    engine, publisher = await harness.engine(), Publisher()
    named = {engine.url: publisher.address._asdict()}
    running = await harness.router(
        engine, prefix_cache="events", kv_events=orjson.dumps(named).decode()
    )
    cache = running.router.fleet.member(running.endpoint(engine)).prompts.events
    assert cache is not None
    await eventually(lambda: (publisher.answer(), cache.state == "live")[1])
    publisher.close()


async def test_sources_are_ordered_by_rank_from_any_start(harness: Harness) -> None:
    engine, publishers = await harness.engine(), [Publisher(), Publisher()]
    engine.metrics = json_reply(
        b"".join(b'vllm:num_requests_running{engine="%d"} 0.0\n' % rank for rank in (4, 5))
    )
    named = {engine.url: [publisher.address._asdict() for publisher in publishers]}
    running = await harness.router(
        engine,
        ready=False,
        engine_stats_interval=0.02,
        prefix_cache="events",
        kv_events=orjson.dumps(named).decode(),
    )
    ranks = [Endpoint(f"{engine.url}#{rank}", Role.DECODE) for rank in (4, 5)]
    fleet = running.router.fleet
    await eventually(lambda: [member.endpoint for member in fleet] == ranks)
    caches = [cache for member in fleet if (cache := member.prompts.events) is not None]
    # Which of the two is replayed first is not known.
    await eventually(
        lambda: (
            [publisher.answer() for publisher in publishers],
            [cache.state for cache in caches] == ["live", "live"],
        )[1]
    )
    found = [source.endpoint for cache in caches for source in cache.sources]
    assert found == [publisher.address.endpoint for publisher in publishers]
    for publisher in publishers:
        publisher.close()


async def test_only_up_engines_are_queried(harness: Harness) -> None:
    engine, other = await harness.engine(), await harness.engine(listening=False)
    asked: list[bytes] = []

    def refuse(call: Call) -> None:
        asked.append(call.target)
        call.send(NOT_FOUND)

    engine.answer_all(refuse)
    running = await harness.router(engine, other, ready=False, prefix_cache="events")
    await eventually(lambda: b"/kv_event_sources" in asked)
    member = running.router.fleet.member(running.endpoint(engine))
    assert member.prompts.events is not None
    assert member.prompts.events.state is None


async def test_an_answer_that_comes_in_pieces_is_read_whole(harness: Harness) -> None:
    engine, publisher = await harness.engine(), Publisher()
    body = orjson.dumps([publisher.address._asdict()])
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    asked: list[Call] = []

    def tell(call: Call) -> None:
        call.send(head, body[:20])
        asked.append(call)

    engine.answer_all(tell)
    running = await harness.router(engine, prefix_cache="events")
    await eventually(lambda: asked)
    cache = running.router.fleet.member(running.endpoint(engine)).prompts.events
    assert cache is not None
    for _ in range(50):  # until the first piece has been read
        await asyncio.sleep(0)
    asked[0].send(body[20:])
    await eventually(lambda: (publisher.answer(), cache.state == "live")[1], lambda: cache.state)
    publisher.close()


@pytest.fixture
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are asked again after milliseconds."""
    monkeypatch.setattr(finder, "REFRESH_SECONDS", 0.005)
    monkeypatch.setattr(finder, "POLL_SECONDS", 0.005)


class Asked:
    """An engine with followed sources, and its current answer to queries for them."""

    def __init__(self, engine: ScriptedEngine, publisher: Publisher) -> None:
        self.told = self.answer = json_reply([publisher.address._asdict()])
        self.times = 0
        self._publisher = publisher
        engine.answer_all(self._tell)

    def _tell(self, call: Call) -> None:
        self.times += 1
        call.send(self.answer)

    async def is_live(self, cache: EngineCache) -> None:
        """Until its events arrive; replays are answered."""
        await eventually(lambda: (self._publisher.answer(), cache.state == "live")[1])

    async def again(self) -> None:
        """Until an answer that begins now has been read, because the next one is asked for."""
        times = self.times
        await eventually(lambda: self.times >= times + 3)


@pytest.fixture
async def followed(harness: Harness) -> AsyncIterator[tuple[Asked, EngineCache]]:
    """An engine that reports its event address, and the knowledge of it."""
    engine, publisher = await harness.engine(), Publisher()
    asked = Asked(engine, publisher)
    running = await harness.router(engine, prefix_cache="events")
    cache = running.router.fleet.member(running.endpoint(engine)).prompts.events
    assert cache is not None
    await asked.is_live(cache)
    yield asked, cache
    publisher.close()


@pytest.mark.usefixtures("asked_often")
@pytest.mark.parametrize("status", [302, 401, 403, 429, 500, 502, 503])
async def test_the_known_models_stay_during_errors(
    followed: tuple[Asked, EngineCache], status: int
) -> None:
    asked, cache = followed
    [source] = cache.sources
    asked.answer = json_reply({}, status)
    await asked.again()
    error = cache.sources_error
    asked.answer = asked.told
    await asked.again()
    assert error is not None
    assert cache.sources_error is None
    assert list(cache.sources) == [source]
    assert cache.state == "live"


@pytest.mark.usefixtures("asked_often")
@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_engine_that_has_no_such_route_any_more_has_no_sources(
    followed: tuple[Asked, EngineCache], status: int
) -> None:
    asked, cache = followed
    asked.answer = json_reply({}, status)
    await asked.again()
    assert cache.state is None
    assert cache.sources_error is None


@pytest.mark.parametrize("status", [403, 404])
async def test_the_pod_annotation_covers_engines_without_a_report(
    harness: Harness, status: int
) -> None:
    """The annotation of a vLLM before 0.32, by way of the roster."""
    engine, publisher = await harness.engine(), Publisher()
    engine.answer_all(lambda call: call.send(json_reply({}, status)))
    running = await harness.router(engine, ready=False, prefix_cache="events")
    endpoint = running.endpoint(engine)
    port = int(publisher.address.endpoint.rpartition(":")[2])
    targets = (Target(endpoint, kv_events_port=port),)
    running.router.sync.on_targets("settings", targets)
    cache = running.router.fleet.member(endpoint).prompts.events
    assert cache is not None
    await eventually(lambda: (publisher.answer(), cache.state == "live")[1])
    publisher.close()


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
