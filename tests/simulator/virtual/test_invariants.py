"""Invariants of every cluster: no engine is starved, no request waits in vain, no state remains.

Scenarios are drawn at random, small and the same in every run; each example is a whole simulation.
`--hypothesis-profile=deep` draws others each time.
"""

from dataclasses import replace

from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st

from router.core.fleet.probing import JITTER, SCRAPE_SECONDS
from router.core.judge.verdict import ExclusionConfig
from router.core.speed.tuning import TICK_SECONDS
from router.simulator.virtual.cluster import LOOKS_PER_SECOND, simulate
from router.simulator.virtual.replica import SWEEP_SECONDS
from router.simulator.virtual.results import EngineResult, Result
from router.simulator.virtual.values import (
    Change,
    EngineModel,
    EngineSpec,
    FaultRates,
    Freeze,
    Lengths,
    Restart,
    RouterRestart,
    Scenario,
    Speed,
    Unread,
    Workload,
)
from tests.simulator.virtual.cluster import SED

EXAMPLES = 10
"""Of each test; one takes about a third of a second."""

MODEL = EngineModel(max_num_seqs=16)

MOST_WORKERS = 4

STARVED_SECONDS = 10.0
QUEUE_SECONDS = 1 / LOOKS_PER_SECOND
LONGEST_WAIT = (1 + JITTER) * SCRAPE_SECONDS + QUEUE_SECONDS
"""Between two scrapes, of which one may be late, and until the look at queues that sees it."""

STALLED_SECONDS = ExclusionConfig().stall_seconds + TICK_SECONDS + SWEEP_SECONDS + QUEUE_SECONDS
"""Until an engine is seen to stall, and those that wait for it are moved."""

OSCILLATION = 0.1

examples = settings(
    max_examples=max(EXAMPLES, settings().max_examples // 10),
    deadline=None,
    derandomize=settings().derandomize,
    database=None,
    report_multiple_bugs=False,
    # No shrinking: it would run simulations for minutes, and any example can be run again by hand.
    phases=(Phase.explicit, Phase.generate),
)


def shown(result: Result) -> Result:
    """The same result; its engines are printed with a failing example."""
    for engine in result.engines:
        note(str(engine))
    return result


def run(scenario: Scenario, policy: str = SED, seed: int = 1) -> Result:
    """A run's result, printed with a failing example; whatever happens, its requests have ended and
    its leases are released. (An open loop's requests that came meanwhile are not waited for.)"""
    note(repr(scenario))
    result = shown(simulate(scenario, policy, seed=seed))
    assert result.requests == scenario.workload.requests
    assert result.leases_left == 0 or scenario.workload.rate
    return result


def fit(result: Result) -> list[EngineResult]:
    """The engines that were up, honest and of full speed all the time."""
    return [engine for engine in result.engines if engine.is_fit]


# The scenarios.


@st.composite
def workloads(draw: st.DrawFn, slots: int) -> Workload:
    """Work for so many slots: a third to nine tenths of them are taken."""
    share = draw(st.sampled_from((0.35, 0.5, 0.7, 0.9)))
    prompt = draw(st.sampled_from((Lengths(32), Lengths(200, 0.8, 2000))))
    output = draw(st.sampled_from((Lengths(50), Lengths(50, 0.5, 200))))
    streams = max(1, round(share * slots))
    requests = draw(st.integers(15, 25)) * streams
    if draw(st.booleans()):
        return Workload(requests, streams, prompt, output)
    rate = streams / (MODEL.step_seconds * output.mean)
    return Workload(requests, 0, prompt, output, rate=rate)


@st.composite
def changes(draw: st.DrawFn, engine: int) -> Change:
    """Something that happens to an engine."""
    at = draw(st.sampled_from((0.0, 2.0, 5.0)))
    kind = draw(
        st.sampled_from(
            ("slow", "very slow", "frozen", "gone", "broken", "failing", "slow clients")
        )
    )
    match kind:
        case "slow":
            return Speed(at, engine, 2.0)
        case "very slow":
            return Speed(at, engine, 8.0)
        case "frozen":
            return Freeze(at, engine, draw(st.sampled_from((3.0, 8.0))))
        case "gone":
            slots = draw(st.sampled_from((None, MODEL.max_num_seqs // 4, 4 * MODEL.max_num_seqs)))
            return Restart(at, engine, draw(st.sampled_from((2.0, 8.0))), slots)
        case "broken":
            return FaultRates(at, engine, broken=1.0)
        case "slow clients":
            return Unread(at, engine, 3.0, draw(st.sampled_from((1 / 3, 1.0))))
        case _:
            return FaultRates(at, engine, failed=draw(st.sampled_from((0.2, 1.0))))


@st.composite
def clusters(draw: st.DrawFn, *, most_changes: int = 1, most_replicas: int = 1) -> Scenario:
    """Three to six engines, of which some have trouble: fewer than half of them; and one router,
    or more, or one of up to four worker processes."""
    engines = draw(st.integers(3, 6))
    some = st.lists(
        st.integers(0, engines - 1), unique=True, max_size=min(most_changes, (engines - 1) // 2)
    )
    happens = tuple(draw(changes(engine)) for engine in draw(some))
    # What the others can carry.
    work = draw(workloads(MODEL.max_num_seqs * (engines - len(happens))))
    has_workers = draw(st.booleans())
    replicas = draw(st.integers(1, MOST_WORKERS if has_workers else most_replicas))
    return Scenario("random", engines, MODEL, work, replicas, happens, has_workers=has_workers)


@st.composite
def clusters_of_models(draw: st.DrawFn) -> Scenario:
    """Two models, each on engines of its own."""
    each = draw(st.integers(2, 4))
    specs = tuple(EngineSpec(MODEL, serves=(name,)) for name in "ab" for _ in range(each))
    work = replace(draw(workloads(MODEL.max_num_seqs * 2 * each)), models=("a", "b"))
    return Scenario("models", 2 * each, MODEL, work, specs=specs)


def of_model(scenario: Scenario, result: Result, model: str) -> list[EngineResult]:
    """The engines that serve a model."""
    return [engine for engine in result.engines if model in scenario.specs[engine.place].serves]


# What holds for each of them.


@given(
    clusters(most_changes=3, most_replicas=3),
    st.sampled_from((SED, "least_loaded")),
    st.booleans(),
    st.sampled_from(((), (RouterRestart(3.0, 0),))),
)
@examples
def test_every_request_ends_once_and_releases_its_leases(
    scenario: Scenario, policy: str, continues: bool, restart: tuple[RouterRestart, ...]
) -> None:
    """Also where a router restarts. A request that ends twice raises, and so does a continued one
    with another token than the next."""
    changes = (*scenario.changes, *restart)
    run(replace(scenario, changes=changes, continues=continues), policy)


@given(clusters(most_replicas=3))
@examples
def test_no_client_of_continued_streams_notices_the_failures_of_one_engine(
    scenario: Scenario,
) -> None:
    assert run(replace(scenario, continues=True)).failed == 0


IS_COLD = Scenario(
    "random",
    7,
    MODEL,
    Workload(1232, 56, Lengths(32), Lengths(50)),
    changes=(Freeze(0.0, 3, 3.0),),
)
"""Found at random: its first prompts took 3 s each, so it got no other for 20 s."""


HAS_LONG_ANSWERS_BY_CHANCE = Scenario(
    "models",
    6,
    MODEL,
    Workload(
        1720,
        0,
        Lengths(200, 0.8, 2000),
        Lengths(50, 0.5, 200),
        rate=86 / (MODEL.step_seconds * Lengths(50, 0.5, 200).mean),
        models=("a", "b"),
    ),
    specs=tuple(EngineSpec(MODEL, serves=(name,)) for name in "aaabbb"),
)
"""Found at random: round-robin gave 287, 287 and 286 requests to three engines, but of those the
first had so many short ones that for 2 s its load was less than half of their mean."""


@given(clusters_of_models(), st.sampled_from((SED, "least_loaded", "round_robin")))
@example(HAS_LONG_ANSWERS_BY_CHANCE, "round_robin")
@examples
def test_requests_for_another_model_starve_no_engine(scenario: Scenario, policy: str) -> None:
    """Round-robin divides requests, not load: of long answers one engine may get more by chance."""
    result = run(scenario, policy)
    for engine in result.engines:
        assert engine.longest_starved < STARVED_SECONDS, engine
        assert engine.share > 0.5 / len(result.engines), engine
        if policy != "round_robin":
            assert engine.starved_seconds < 2.0, engine
    if policy == "round_robin":
        for model in "ab":
            served = [engine.served for engine in of_model(scenario, result, model)]
            assert max(served) - min(served) <= 1, served


ONE_LIMIT_IS_UNKNOWN = Scenario(
    "random",
    7,
    MODEL,
    Workload(2828, 0, Lengths(200, 0.8, 2000), Lengths(50), rate=101.0),
    has_workers=True,
)
"""Found at random: while the other engines were full, 25 requests went to the only one whose limit
was not known; its queue was explained by the prompts in it."""


HAS_LONG_ANSWERS = Scenario(
    "random",
    7,
    replace(MODEL, max_num_seqs=8, jitter=0.1, is_on_grid=True),
    Workload(1500, 48, Lengths(2000, 0.8, 16_384), Lengths(200, 1.0, 1000)),
    changes=(Freeze(1.0, 6, 5.0),),
)
"""Found at random: prompts had waited for a slot and so looked slow; beside its long answers the
engine got no others for 10 s, and elsewhere requests queued."""


@given(clusters(most_changes=2))
@example(IS_COLD)
@example(HAS_LONG_ANSWERS)
@example(ONE_LIMIT_IS_UNKNOWN)
@examples
def test_no_sound_engine_starves_no_queue_is_in_vain_and_no_request_misdirected(
    scenario: Scenario,
) -> None:
    """A queue is in vain while another engine has room: a request whose engine's limit is not seen
    yet may have been sent there, and nothing moves it. Misdirected: to an excluded engine on which
    it does not end first."""
    result = run(scenario)
    for engine in result.engines:
        assert engine.longest_starved < STARVED_SECONDS, engine
        assert engine.misdirected == 0, engine
    for engine in fit(result):
        assert engine.longest_wait <= LONGEST_WAIT, engine


@given(clusters(most_changes=0), st.sampled_from((0.0, 2.0, 5.0)), st.sampled_from((3.0, 8.0)))
@examples
def test_a_request_waits_for_a_frozen_engine_until_it_is_seen_to_stall(
    scenario: Scenario, at: float, seconds: float
) -> None:
    """One that has never answered does not stall, as a cold one that warms up, nor does one that
    is back before the sweep: who waits there waits until it goes on, and then as anywhere. Some
    have waited for a slot before."""
    result = run(replace(scenario, changes=(Freeze(at, 0, seconds),)))
    is_seen = at > 0.0 and seconds > STALLED_SECONDS
    bound = STALLED_SECONDS if is_seen else seconds + LONGEST_WAIT
    waited = result.engines[0].longest_wait
    if is_seen and waited > bound:
        waited -= min(LONGEST_WAIT, run(scenario).engines[0].longest_wait)
    assert waited <= bound, result.engines[0]


@given(clusters(most_changes=0), st.sampled_from((SED, "least_loaded")))
@examples
def test_load_does_not_oscillate(scenario: Scenario, policy: str) -> None:
    # Chance alone is not the router's: a closed loop with enough in flight has a steady load.
    streams = 10 * scenario.engines
    work = replace(scenario.workload, streams=streams, requests=15 * streams, rate=0.0)
    result = run(replace(scenario, workload=work), policy)
    for engine in result.engines:
        assert engine.oscillation < OSCILLATION, engine


@given(st.sampled_from((4, 8)), st.sampled_from((Lengths(50), Lengths(50, 0.5, 200))))
@examples
def test_independent_routers_do_not_oscillate(engines: int, output: Lengths) -> None:
    streams = 10 * engines
    work = Workload(30 * streams, streams, Lengths(200, 0.8, 2000), output)
    result = run(Scenario("random", engines, MODEL, work, replicas=3))
    for engine in result.engines:
        assert engine.oscillation < OSCILLATION, engine
