"""The router's own requests to engines, and their times."""

from random import Random
from string import ascii_lowercase

import orjson
import pytest

from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.probing import (
    HUNG_STREAM_SECONDS,
    NO_GAUGES,
    PROMPT_PROBE_TOKENS,
    RECHECK_SECONDS,
    SLEEP_SECONDS,
    SPEED_PROBE_TOKENS,
    asks_version,
    needs_speed_probe,
    roles_that_use_speed,
    seconds_to_health_probe,
    seconds_to_scrape,
    speed_probe_body,
    speed_probe_leg,
    speed_probe_tokens,
    speed_probe_work,
)
from router.core.health import Health, State
from router.core.judge import outlier
from router.core.judge.member import Member
from router.core.judge.verdict import CLEAR, Stall, Verdict
from router.core.policies import POLICIES
from router.core.speed.tuning import PROMPT_OVERHEAD, TICK_SECONDS
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, P0, candidate

NO_ROLE: frozenset[Role] = frozenset()
BOTH = frozenset(Role)


NOW = 100.0


def prompt_of(engine: Member, seed: int = 1) -> list[str]:
    """The words of a probe's prompt."""
    found = orjson.loads(speed_probe_body(engine, Random(seed)))["prompt"].split(" ")
    return list(found)


def member(endpoint=D0, *, stall=CLEAR, slow_since=None, **known) -> Member:
    """An engine that is up and idle."""
    verdict = Verdict(stall, slow_since)
    return Member(candidate(endpoint), health=Health(State.UP), verdict=verdict, **known)


@pytest.mark.parametrize(
    ("health", "seconds"),
    [
        (Health(State.UP), 5.0),
        (Health(State.UP, 1, State.DOWN), RECHECK_SECONDS),
        (Health(State.STARTING), RECHECK_SECONDS),
        (Health(State.DRAINING), RECHECK_SECONDS),
        (Health(State.DOWN), RECHECK_SECONDS),
        (Health(State.SLEEPING), SLEEP_SECONDS),
    ],
)
def test_an_engine_in_doubt_is_probed_more_often(health: Health, seconds: float) -> None:
    assert seconds_to_health_probe(health, 5.0) == seconds
    assert seconds_to_health_probe(health, 0.1) == 0.1


@pytest.mark.parametrize(("state", "seconds"), [(State.UP, 1.0), (State.SLEEPING, SLEEP_SECONDS)])
def test_a_sleeping_engine_is_scraped_more_often(state: State, seconds: float) -> None:
    engine = Member(candidate(D0), health=Health(state))
    assert seconds_to_scrape(engine, 1.0) == seconds
    assert seconds_to_scrape(engine, 0.1) == 0.1


def test_an_engine_without_gauges_is_scraped_less_often() -> None:
    engine = member()
    engine.scrapes.error = "no answer to /metrics in 2 s"
    assert seconds_to_scrape(engine, 1.0) == 1.0
    engine.scrapes.error = NO_GAUGES
    assert seconds_to_scrape(engine, 1.0) == 10.0


def test_every_tenth_probe_reads_the_version_of_an_up_engine() -> None:
    numbers = range(1, 31)
    known = member(version="1")
    assert [n for n in numbers if asks_version(known, n)] == [10, 20, 30]
    down = Member(candidate(D0), version="1")
    for other in (member(), down):
        assert all(asks_version(other, number) for number in numbers)


def test_only_one_policy_uses_speed() -> None:
    sed, other = POLICIES["shortest_expected_delay"], POLICIES["least_loaded"]
    assert roles_that_use_speed({Role.PREFILL: other, Role.DECODE: sed}) == {Role.DECODE}


@pytest.mark.parametrize("roles", [NO_ROLE, BOTH])
def test_a_stalled_engine_is_probed_under_every_policy(roles: frozenset[Role]) -> None:
    assert needs_speed_probe(member(stall=Stall(1.0)), roles, NOW)


def test_a_stalled_engine_is_probed_beside_a_stream_that_hangs() -> None:
    """The engine may be well, and the stream hangs for two minutes."""
    stalled = member(stall=Stall(1.0))
    LegTimer(stalled.speed.counts, None, 0, 0.0, tracks_first_token=True).first_token(0.0)
    assert not needs_speed_probe(stalled, NO_ROLE, 1.0 + HUNG_STREAM_SECONDS - 0.1)
    assert needs_speed_probe(stalled, NO_ROLE, 1.0 + HUNG_STREAM_SECONDS)
    stalled.outlier = outlier.Outlier(until=9.0)
    assert not needs_speed_probe(stalled, NO_ROLE, NOW)


@pytest.mark.parametrize("state", [State.STARTING, State.UP, State.DOWN])
def test_an_engine_with_a_health_timeout_gets_a_speed_probe(state: State) -> None:
    silent = Member(candidate(D0), health=Health(state, unanswered_since=1.0))
    assert needs_speed_probe(silent, NO_ROLE, NOW)
    silent.is_drained = True
    assert not needs_speed_probe(silent, NO_ROLE, NOW)
    silent.is_drained = False
    LegTimer(silent.speed.counts, None, 0, 0.0, tracks_first_token=True)
    assert not needs_speed_probe(silent, NO_ROLE, NOW)  # that one's token is evidence too
    assert not needs_speed_probe(Member(candidate(D0), health=Health(state)), NO_ROLE, NOW)


@pytest.mark.parametrize("endpoint", [P0, D0])
def test_a_slow_engine_is_probed_only_where_its_role_spares_it(endpoint) -> None:
    slow = member(endpoint, slow_since=1.0)
    slow.view.slowdown = 4.0
    other = Role.PREFILL if endpoint.role is Role.DECODE else Role.DECODE
    assert needs_speed_probe(slow, frozenset({endpoint.role}), NOW)
    assert not needs_speed_probe(slow, frozenset({other}), NOW)
    assert not needs_speed_probe(slow, NO_ROLE, NOW)


def test_an_engine_that_is_not_spared_is_measured_by_its_users() -> None:
    assert not needs_speed_probe(member(), BOTH, NOW)


def test_an_engine_somewhat_slower_is_probed_while_it_has_nothing() -> None:
    slower = member()
    slower.view.slowdown = 1.5
    assert needs_speed_probe(slower, BOTH, NOW)
    LegTimer(slower.speed.counts, None, 0, 0.0, tracks_first_token=True)
    assert not needs_speed_probe(slower, BOTH, NOW)


def test_an_engine_avoided_for_its_prompts_is_probed_with_a_long_one() -> None:
    """Users' prompts would not show that it was slow only with its first ones."""
    cold = member()
    cold.view.prompt_slowdown = 100.0
    assert needs_speed_probe(cold, BOTH, NOW)
    assert not needs_speed_probe(cold, NO_ROLE, NOW)
    letters = prompt_of(cold)
    assert len(letters) == speed_probe_work(cold) == PROMPT_PROBE_TOKENS
    assert set(letters) <= set(ascii_lowercase)  # every tokenizer has them
    assert letters != prompt_of(cold, 2)
    leg = speed_probe_leg(cold, NOW)
    assert not needs_speed_probe(cold, BOTH, NOW)
    leg.first_token(NOW + 0.1)
    leg.end(NOW + 0.2)
    cold.speed.tick(NOW + 0.25)
    expected = 0.1 / (PROMPT_PROBE_TOKENS + PROMPT_OVERHEAD)
    assert cold.speed.per_prompt_token == pytest.approx(expected)


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 1.0), (0.2, 1.0), (5.0, 20.0)])
def test_beside_streams_probes_take_a_fifth_at_most(seconds: float, pause: float) -> None:
    """`seconds`: what such a probe would take."""
    cold = member()
    LegTimer(cold.speed.counts, None, 10, NOW, tracks_first_token=True)
    cold.view.prompt_slowdown = 100.0
    cold.speed.per_prompt_token = seconds / PROMPT_PROBE_TOKENS
    cold.speed.per_prompt_token_age = round(pause / TICK_SECONDS) - 1
    assert not needs_speed_probe(cold, BOTH, NOW)
    cold.speed.per_prompt_token_age += 1
    assert needs_speed_probe(cold, BOTH, NOW)
    assert not needs_speed_probe(cold, NO_ROLE, NOW)
    cold.view.prompt_slowdown = 1.0
    assert not needs_speed_probe(cold, BOTH, NOW)


def test_an_ejected_an_absent_and_an_empty_engine_are_not_probed() -> None:
    ejected = member(outlier=outlier.Outlier(until=9.0), stall=Stall(1.0))
    absent = member(stall=Stall(1.0))
    absent.health = Health(State.DOWN)
    serves_nothing = member(stall=Stall(1.0), models=frozenset())
    assert not any(needs_speed_probe(one, BOTH, NOW) for one in (ejected, absent, serves_nothing))


def test_a_probe_is_a_short_stream_of_a_model_that_the_engine_serves() -> None:
    body = orjson.loads(speed_probe_body(member(models=frozenset({"b", "a"})), Random(1)))
    assert body["model"] == "a"
    assert body["stream"] is True
    assert body["min_tokens"] == body["max_tokens"] == SPEED_PROBE_TOKENS
    assert "model" not in orjson.loads(speed_probe_body(member(), Random(1)))


def test_a_prefill_request_has_one_token() -> None:
    assert speed_probe_tokens(Role.PREFILL) == 1
    engine = member(P0)
    assert orjson.loads(speed_probe_body(engine, Random(1)))["max_tokens"] == 1
    # As much as a step of the engine computes, and never what its prefix cache has.
    assert len(prompt_of(engine)) == speed_probe_work(engine) == PROMPT_PROBE_TOKENS
    assert prompt_of(engine) != prompt_of(engine, 2)


@pytest.mark.parametrize(
    ("length", "tokens"),
    [(512, 170), (1, 1), (10**6, PROMPT_PROBE_TOKENS), (None, PROMPT_PROBE_TOKENS), ("8", 2048)],
)
def test_a_prefill_engines_probe_fits_its_shortest_model(length: object, tokens: int) -> None:
    engine = member(P0)
    engine.set_cards(({"id": "a", "max_model_len": 10**6}, {"id": "b", "max_model_len": length}))
    assert speed_probe_work(engine) == tokens
    assert speed_probe_work(member()) == 3


def test_a_long_prompt_that_was_refused_is_half_as_long_the_next_time() -> None:
    engine, work = member(P0), []
    for engine.failed_speed_probes in (0, 1, 3, 30):
        work.append(speed_probe_work(engine))
        assert len(prompt_of(engine)) == work[-1]
    assert work == [2048, 1024, 256, 1]


def test_an_encode_engine_generates_nothing_for_a_probe() -> None:
    health = Health(State.UP, unanswered_since=1.0)
    assert needs_speed_probe(Member(candidate(P0), health=health), BOTH, NOW)
    encode = candidate(Endpoint("http://e0", Role.ENCODE))
    assert not needs_speed_probe(Member(encode, health=health), BOTH, NOW)


def test_an_engine_that_is_drained_needs_no_speed_probe() -> None:
    stalled = member(stall=Stall(1.0))
    assert needs_speed_probe(stalled, NO_ROLE, NOW)
    stalled.is_drained = True
    assert not needs_speed_probe(stalled, NO_ROLE, NOW)


@pytest.mark.parametrize(("endpoint", "is_known"), [(D0, False), (P0, True)])
def test_a_short_probe_does_not_measure_prompts(endpoint: Endpoint, is_known: bool) -> None:
    """Its time is that of a step, and would be some hundred times what a token takes."""
    asked = member(endpoint)
    leg = speed_probe_leg(asked, NOW)
    leg.first_token(NOW + 0.04)
    leg.end(NOW + 0.2)
    asked.speed.tick(NOW + 0.25)
    assert (asked.speed.per_prompt_token is not None) is is_known
