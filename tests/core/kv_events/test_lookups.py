"""Choices by announced blocks: prompts, events, scheduler, fleet and policy together."""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import orjson
import pytest

from router.core.events import Probed, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Lease, Ledger
from router.core.fleet.pool import SUBSET_SIZE
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds
from router.core.kv_events.kv_sources import EngineCache, KVSource
from router.core.kv_events.lookups import CacheEvents, PromptFeedback, cached_tokens, given_ids
from router.core.kv_events.parsing import BlocksStored
from router.core.policies import POLICIES
from router.core.prefix.keys import prefix_keys
from router.core.request_facts import Facts, PromptTokens
from router.core.routing.schedule import Scheduler
from router.core.values import Endpoint, Gauges, Role
from tests.core.fixtures import CHAT, D0, D1, MESSAGES, RESPONSES, changed, request, sample

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
SIZE = 16
IDS = list(range(1, 2049))


class Cluster:
    """Engines that are up, with events, and the scheduler before them."""

    def __init__(self, engines: Sequence[Endpoint] = (D0, D1)) -> None:
        self.events = CacheEvents()
        self.fleet = Fleet(
            engines, Ledger(), HealthThresholds(), stale_after=5.0, cache_events=self.events
        )
        self.sources = {}
        for endpoint in engines:
            self.fleet.observe(Probed(endpoint, HealthSignal.OK), 0.0)
            member = self.fleet.member(endpoint)
            member.view.prompt_cost = member.view.first_token_weight = 0.001
            source = KVSource(self.events.blocks, f"tcp://{endpoint.url}", can_replay=True)
            source.is_connected = True
            source.stream.connected()
            source.stream.replay_ended()
            self.cache(endpoint).replace([source])
            self.sources[endpoint] = source
        policies = dict.fromkeys(Role, POLICIES["shortest_expected_delay"])
        self.scheduler = Scheduler(self.fleet, policies, 0, Random(0), frozenset(Role))

    def cache(self, endpoint: Endpoint) -> EngineCache:
        """The knowledge from an engine's events."""
        cache = self.fleet.member(endpoint).prompts.events
        assert cache is not None
        return cache

    def announce(self, endpoint: Endpoint, ids: Sequence[int], lora: str | None = None) -> None:
        """The engine has computed this prompt."""
        whole = len(ids) // SIZE * SIZE
        hashes = list(range(whole // SIZE))
        tokens = array("I", ids[:whole]).tobytes()
        self.sources[endpoint].blocks.apply(
            BlocksStored(hashes, None, tokens, SIZE, "GPU", None, None, lora, None, False)
        )

    def uncached(self, facts: Facts) -> dict[Endpoint, int]:
        """What each engine would have to compute."""
        ranking = self.scheduler.rank(Role.DECODE, facts)
        engines = [candidate.endpoint for candidate in ranking.candidates]
        return dict(zip(engines, ranking.uncached, strict=True))

    def lease(self, facts: Facts) -> Lease:
        """Send a request where it is best."""
        return self.scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)

    def answer(self, facts: Facts, **document: Any) -> Endpoint:
        """Send a request and let it be answered."""
        with self.lease(facts) as lease:
            lease.prefilled()
            feedback = lease.feedback
            assert feedback is not None
            body = orjson.dumps(document)
            feedback.begun(body)
            feedback.ended(body)
            return lease.endpoint


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def by_ids(ids: Sequence[int] = IDS, **body: Any) -> Facts:
    """A completion of token ids."""
    return request(prompt=list(ids), **body)


def chat(*texts: Any, **body: Any) -> Facts:
    """A conversation."""
    return request(CHAT, messages=[{"role": "user", "content": t} for t in texts], **body)


def usage(cached: int | None) -> dict[str, Any]:
    """An answer's usage."""
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": 2048, "total_tokens": 2050, "prompt_tokens_details": details}


def test_a_prompt_of_ids_goes_to_the_engine_with_its_blocks(cluster: Cluster) -> None:
    cluster.announce(D1, IDS[:1024])
    assert cluster.uncached(by_ids()) == {D0: 2048, D1: 1024}
    assert [cluster.lease(by_ids(range(1, 5000))).endpoint for _ in range(2)] == [D1, D1]
    assert (cluster.events.known, cluster.events.unknown) == (3, 0)


def test_events_contradict_history(cluster: Cluster) -> None:
    with cluster.lease(by_ids()) as lease:
        lease.prefilled()
    # It was computed there, and is gone: nothing is announced.
    assert cluster.uncached(by_ids()) == {D0: 2048, D1: 2048}


def test_requests_under_way_count_although_nothing_is_announced_yet(cluster: Cluster) -> None:
    with cluster.lease(by_ids()) as lease:
        assert cluster.uncached(by_ids())[lease.endpoint] == 1
    assert cluster.uncached(by_ids())[lease.endpoint] == 2048


def test_in_a_large_pool_engines_that_were_sent_the_prompt_are_considered() -> None:
    engines = [Endpoint(f"http://e{number}", Role.DECODE) for number in range(3 * SUBSET_SIZE)]
    cluster = Cluster(engines)
    with cluster.lease(by_ids()) as first:
        first.prefilled()
        cluster.announce(first.endpoint, IDS)
    assert [cluster.lease(by_ids()).endpoint for _ in range(4)] == [first.endpoint] * 4


def test_history_is_used_without_event_knowledge(cluster: Cluster) -> None:
    for endpoint in (D0, D1):
        cluster.sources[endpoint].is_connected = False
    with cluster.lease(by_ids()) as lease:
        lease.prefilled()
    assert cluster.uncached(by_ids())[lease.endpoint] == 1


def test_history_adds_to_a_source_that_was_joined_late(cluster: Cluster) -> None:
    source = cluster.sources[D0]
    source.stream.live(9, b"")
    assert not source.stream.is_whole
    with Selection(cluster.fleet).lease(D0, 2048, 2048, prefix_keys(by_ids())) as it:
        it.prefilled()
    assert cluster.uncached(by_ids()) == {D0: 1, D1: 2048}


def test_a_source_that_is_wrong_is_set_aside_and_still_measured(cluster: Cluster) -> None:
    cluster.announce(D1, IDS)
    cluster.answer(by_ids(), usage=usage(1))  # the engine reports it
    for _ in range(5):
        cluster.cache(D1).measure(2048, 0)
    assert cluster.cache(D1).is_wrong
    member = cluster.fleet.member(D1)
    member.prompts.sent.clear()
    assert cluster.uncached(by_ids())[D1] == 2048
    before = cluster.cache(D1).measured
    cluster.fleet.member(D0).view.slowdown = 8.0
    assert cluster.answer(by_ids(), usage=usage(2032)) == D1
    assert cluster.cache(D1).measured == before + 2032


def test_a_source_that_each_answer_confirms_is_not_weighed_by_counters(cluster: Cluster) -> None:
    cluster.announce(D1, IDS[:1024])
    cluster.fleet.member(D1).prompts.trust.share = 0.5
    assert cluster.uncached(by_ids())[D1] == 1536
    cluster.cache(D1).measure(10_000, 10_000)
    assert cluster.uncached(by_ids())[D1] == 1024


def test_a_text_is_known_by_the_token_ids_of_an_answer(cluster: Cluster) -> None:
    first = "a" * 4096
    engine = cluster.answer(chat(first), prompt_token_ids=IDS, usage=usage(None))
    other = D1 if engine == D0 else D0
    cluster.announce(other, IDS)
    follow_up = chat(first, "b" * 1024)
    # 1,024 estimated tokens are 2,048 real ones, all of them held by the other.
    assert cluster.uncached(follow_up) == {engine: 1280, other: 256}
    cluster.announce(engine, IDS[:512])
    assert cluster.uncached(chat(first, "c" * 1024))[engine] == 1024


def test_a_part_of_a_block_does_not_make_a_difference(cluster: Cluster) -> None:
    text = "a" * 4096
    ids = list(range(1, 2040))  # 127 blocks and a part of one
    engine = cluster.answer(chat(text), prompt_token_ids=ids)
    for endpoint in (D0, D1):
        cluster.announce(endpoint, ids)
    assert cluster.fleet.member(engine).prompts.sent.tokens
    assert cluster.uncached(chat(text, "b" * 1024)) == {D0: 256, D1: 256}


def test_history_beyond_the_known_ids_counts_if_these_are_cached(cluster: Cluster) -> None:
    system, question = "s" * 4096, "q" * 4096
    cluster.answer(chat(system), prompt_token_ids=IDS)
    cluster.announce(D0, IDS)
    facts = chat(system, question)
    with Selection(cluster.fleet).lease(D0, 2048, 2048, prefix_keys(facts)) as it:
        it.prefilled()
    assert cluster.uncached(chat(system, question)) == {D0: 1, D1: 2048}


def test_without_ids_a_text_is_not_known(cluster: Cluster) -> None:
    cluster.answer(chat("a" * 4096), usage=usage(None))
    facts = chat("a" * 4096)
    assert Selection(cluster.fleet).lookup(facts, prefix_keys(facts)) is None
    assert Selection(cluster.fleet).lookup(facts, prefix_keys(facts)) is None
    assert cluster.events.unknown == 2


TEXT = "a" * 4096
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("facts", "is_learned"),
    [
        (chat([{"type": "text", "text": "a" * 4096}]), True),
        (chat([{"type": "text", "text": "a" * 4096}, IMAGE]), False),
        (chat([{"type": "text", "text": "a" * 4096}, 7]), False),
        (chat(["a" * 4096]), True),
        (request(RESPONSES, input="a" * 4096), True),
        (request(RESPONSES, input=[{"role": "user", "content": "a" * 4096}, "?"]), True),
        (request(MESSAGES, messages=[{"role": "user", "content": TEXT}], system=[IMAGE]), False),
        (request(prompt="a" * 4096), True),
        (request(prompt="a" * 4096, prompt_embeds="AAAA"), False),
        (by_ids(), False),
        (changed(chat("a" * 4096), prompt_ids=b"[1,2]"), False),  # with an answer's first part
    ],
)  # fmt: skip
def test_ids_are_learned_of_text_only(cluster: Cluster, facts: Facts, *, is_learned: bool) -> None:
    cluster.answer(facts, prompt_token_ids=IDS)
    assert len(cluster.events.learned) == is_learned


def test_adapters_and_salts_keep_blocks_apart(cluster: Cluster) -> None:
    cards = ({"id": "base", "parent": None}, {"id": "sql", "parent": "base"})
    cluster.fleet.observe(Probed(D0, HealthSignal.OK, cards), 0.0)
    assert cluster.fleet.models.adapters().keys() == {"sql"}
    cluster.announce(D0, IDS, lora="sql")
    assert cluster.uncached(by_ids(model="sql"))[D0] == 16
    assert cluster.uncached(by_ids(model="base"))[D0] == 2048
    assert cluster.uncached(by_ids(model="sql", cache_salt="mine"))[D0] == 2048


@pytest.mark.parametrize("ids", [["x"] * 300 + [1], [-1] * 300, [1 << 40] * 300])
def test_ids_that_are_none_are_nobodys(cluster: Cluster, ids: list[Any]) -> None:
    facts = request(prompt=ids)
    assert cluster.lease(facts).feedback is None
    assert cluster.events.lookup(facts, cluster_keys(), None) is None
    assert cluster.events.known == 0


def test_a_prompt_is_parsed_once_for_all_lookups(cluster: Cluster) -> None:
    facts = by_ids()
    assert cluster.uncached(facts)[D0] == 2048
    cluster.announce(D0, IDS)
    assert cluster.uncached(facts)[D0] == 16
    assert cluster.events.known == 1


def test_short_prompts_are_not_looked_up(cluster: Cluster) -> None:
    lease = cluster.lease(by_ids(range(20)))
    assert lease.feedback is None
    assert cluster.events.unknown == 0


def test_predictions_are_compared_with_found_tokens(cluster: Cluster) -> None:
    cluster.announce(D1, IDS[:1024])
    cluster.answer(by_ids(), usage=usage(None))
    assert cluster.cache(D1).predicted == 0  # perhaps it never reports
    cluster.answer(by_ids(), usage=usage(1000))
    cluster.answer(by_ids(), usage=usage(None))
    cache = cluster.cache(D1)
    assert (cache.predicted, cache.measured) == (2048, 1000)


def test_an_engine_that_loads_the_prompt_is_not_measured_by_it(cluster: Cluster) -> None:
    """Its answer counts what it loaded, or what the prefill engine found."""
    cluster.announce(D0, IDS)
    with cluster.scheduler.lease(
        Role.DECODE, by_ids(), frozenset({D1}), 0.0, computes=False
    ) as lease:
        assert lease.feedback is not None
        lease.feedback.ended(orjson.dumps({"usage": usage(1)}))
    assert cluster.cache(D0).predicted == 0


def test_a_scrape_reaches_the_events(cluster: Cluster) -> None:
    cluster.announce(D0, IDS)
    cluster.fleet.observe(Scraped(D0, Gauges(cache_tokens=1600), 0), 1.0)
    assert cluster.sources[D0].blocks.limit == 100
    cluster.cache(D0).measure(10_000, 0)
    cluster.fleet.member(D0).prompts.forget()
    assert not cluster.cache(D0).is_wrong


def test_cached_tokens_are_read_from_every_api() -> None:
    assert cached_tokens(orjson.dumps({"usage": usage(96)})) == 96
    assert cached_tokens(orjson.dumps({"usage": usage(None)})) == 0
    assert cached_tokens(b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}') == 8
    told = b'{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":%d}'
    assert [cached_tokens(told % count) for count in (8, 0)] == [8, 0]
    assert cached_tokens(b'{"input_tokens":9,"output_tokens":2}') is None
    assert cached_tokens(b'{"choices":[]}') is None
    assert cached_tokens(sample("chat_stream_usage.sse")) == 0
    assert cached_tokens(b"") is None


def test_feedback_without_a_prediction_measures_nothing() -> None:
    cache = EngineCache()
    feedback = PromptFeedback(cache, None, None, cluster_keys())
    feedback.begun(b'{"prompt_token_ids":[1,2]}')
    feedback.ended(orjson.dumps({"usage": usage(96)}))
    assert (cache.reports_cached, cache.measured) == (True, 0)
    feedback.ended(b"")


def cluster_keys() -> Any:
    """Some prompt's keys."""
    return prefix_keys(by_ids())


def test_an_engine_without_a_cache_view_goes_by_history(cluster: Cluster) -> None:
    member = cluster.fleet.member(D0)
    member.prompts.events = None
    facts = by_ids()
    lookup = Selection(cluster.fleet).lookup(facts, prefix_keys(facts))
    assert lookup is not None
    assert isinstance(lookup.prompt, PromptTokens)
    assert member.prompts.held(prefix_keys(facts), lookup) == 0


def test_the_ids_of_a_prompt_of_ids_are_known() -> None:
    path = "/inference/v1/generate"
    assert given_ids(request(path, token_ids=[1, 2])) == array("I", [1, 2]).tobytes()
    media = [{"type": "image_url"}]
    assert given_ids(request(path, token_ids=[1, 2], content_parts=media)) is None
