"""The threshold that follows the engines: a threshold always, steady in steady load, and safe."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.events import Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds
from router.core.membership.entry import Entry
from router.core.routing.auto_threshold import (
    CEILING,
    COLD_THRESHOLD,
    COLD_TRY_SHARE,
    FLOOR,
    FOLLOW_SECONDS,
    STALE_SECONDS,
    STALE_TRY_SHARE,
    TRY_SHARE,
    WARM_SAMPLES,
    AutoThreshold,
    Prompt,
)
from router.core.speed.prompt_costs import LineFit, PromptCosts
from router.core.speed.tuning import MEMORY_SAMPLES, RECENT_PROMPT_SECONDS
from router.core.values import Decision, Endpoint, Mode
from tests.core.fixtures import D0, D1, P0, P1

LENGTHS = (100.0, 500.0, 2000.0, 8000.0)
PREFILL = (0.02, 1e-4)
"""Base and seconds per token: 10,000 tokens/s."""
LOADING = (0.05, 1e-5)


class Site:
    """A prefill engine, a decode engine, and their costs."""

    def __init__(
        self,
        *,
        prefill: tuple[float, float] = PREFILL,
        decode: tuple[float, float] = PREFILL,
        loading: tuple[float, float] = LOADING,
        max_itl_impact: float = 100.0,
        tries: bool = False,
        is_warm: bool = True,
    ) -> None:
        self.fleet = Fleet((P0, D0), Ledger(), HealthThresholds(), stale_after=5.0)
        for endpoint in (P0, D0):
            self.fleet.observe(Probed(endpoint, HealthSignal.OK), 0.0)
        self.auto = AutoThreshold(self.fleet, max_itl_impact, tries=tries)
        self.now = 0.0
        self.rng = Random(0)
        if is_warm:
            measure(self.costs(P0).computing, prefill)
            measure(self.costs(D0).computing, decode)
            measure(self.costs(D0).loading, loading)

    def costs(self, endpoint: Endpoint) -> PromptCosts:
        """What prompts take there."""
        speed = self.fleet.member(endpoint).speed
        if speed.counts.costs is None:  # it has joined later
            speed.counts.costs = PromptCosts()
        return speed.counts.costs

    def pending(self, endpoint: Endpoint, tokens: int) -> None:
        """So many prompt tokens come to wait there, for ever."""
        Selection(self.fleet).lease(endpoint, tokens, tokens)

    def streams(self, count: int) -> None:
        """So many streams begin to run on the decode engine."""
        for _ in range(count):
            leg = LegTimer(
                self.fleet.member(D0).speed.counts, None, 0, 0.0, tracks_first_token=True
            )
            leg.first_token(0.0)

    def decide(
        self,
        tokens: int,
        *,
        held: int = 0,
        held_there: int = 0,
        after: float = 0.1,
        is_stream: bool = True,
    ) -> Decision:
        """For a prompt of which the decode engine holds so many tokens, and the prefill engine
        `held_there`, a moment later."""
        self.now += after
        decode = Prompt(self.fleet.member(D0).view, tokens - held)
        prefill = Prompt(self.fleet.member(P0).view, tokens - held_there)
        return self.auto.decide(decode, prefill, self.now, self.rng, is_stream=is_stream)

    def mode(self, tokens: int, *, held: int = 0, after: float = 0.1) -> Mode:
        """The mode of such a prompt."""
        return self.decide(tokens, held=held, after=after).mode


def measure(fit: LineFit, line: tuple[float, float]) -> None:
    """As many samples as it can remember, on a line."""
    for _ in range(int(MEMORY_SAMPLES)):
        for tokens in LENGTHS:
            fit.add(tokens, line[0] + line[1] * tokens)


lines = st.tuples(st.floats(0.0, 0.5), st.floats(1e-6, 1e-3))
backlogs = st.integers(0, 200_000)
prompts = st.integers(1, 60_000)


# Which way.


def test_an_idle_prefill_engine_that_is_much_faster_gets_long_prompts_only() -> None:
    site = Site(decode=(0.02, 5e-4))
    assert site.mode(100) is Mode.DIRECT
    assert site.decide(20_000).reason == "cheaper_remote"
    # 0.05 + n * (1e-4 + 1e-5) = n * 5e-4
    for _ in range(100):
        site.decide(20_000)
    assert site.auto.tokens == pytest.approx(0.05 / 3.9e-4, rel=0.1)


def test_a_queue_before_the_prefill_engine_lets_longer_prompts_go_direct() -> None:
    site = Site(decode=(0.02, 5e-4))
    assert site.mode(2000) is Mode.REMOTE
    site.pending(P0, 30_000)
    assert site.decide(2000).reason == "cheaper_direct"


def test_a_queue_before_the_decode_engine_sends_them_away_again() -> None:
    site = Site(decode=(0.02, 5e-4))
    site.pending(P0, 30_000)
    site.pending(D0, 30_000)
    assert site.mode(2000) is Mode.REMOTE


def test_computed_tokens_of_the_prompt_in_progress_are_no_queue() -> None:
    site = Site(decode=(0.02, 5e-4))
    speed = site.fleet.member(D0).speed
    lease = Selection(site.fleet).lease(D0, 8000, 8000)
    LegTimer(speed.counts, lease, 8000, site.now, tracks_first_token=True)
    speed.counts.prompt_seconds = 5e-4
    delays = [site.decide(100, after=after).delay for after in (1.0, 2.0)]
    direct = [delay.direct for delay in delays if delay is not None]
    assert direct == pytest.approx([0.02 + 3.05, 0.02 + 1.05], rel=0.05)


def test_the_delay_of_running_streams_counts() -> None:
    site = Site()
    assert site.mode(8000) is Mode.DIRECT
    site.streams(100)
    assert site.mode(8000) is Mode.REMOTE


def test_cached_tokens_shorten_a_prompt() -> None:
    site = Site(decode=(0.02, 5e-4))
    assert site.mode(8000) is Mode.REMOTE
    assert site.mode(8000, held=7900) is Mode.DIRECT


def test_a_logged_decision_has_both_compared_sums() -> None:
    site = Site(decode=(0.02, 5e-4))
    delay = site.decide(2000).delay
    assert delay is not None
    assert delay.direct == pytest.approx(0.02 + 1.0, rel=0.05)
    assert delay.remote == pytest.approx(0.02 + 0.2 + 0.05 + 0.02, rel=0.05)


@given(prompts, st.floats(0, 0.99), st.floats(0, 0.99), backlogs)
def test_cached_tokens_are_computed_on_neither_engine(
    tokens: int, share_there: float, share_here: float, ahead_there: int
) -> None:
    site = Site(decode=(0.02, 5e-4))
    site.pending(P0, ahead_there)
    there, here = int(share_there * tokens), int(share_here * tokens)
    delay = site.decide(tokens, held=here, held_there=there).delay
    assert delay is not None
    prefill = PREFILL[0] + PREFILL[1] * (ahead_there + tokens - there)
    assert delay.direct == pytest.approx(0.02 + 5e-4 * (tokens - here), rel=0.05)
    loading = LOADING[0] + LOADING[1] * (tokens - here)
    assert delay.remote == pytest.approx(prefill + loading, rel=0.05)


def test_a_prompt_that_the_prefill_engine_holds_is_worth_a_transfer() -> None:
    site = Site(loading=(0.05, 1e-6))
    assert site.mode(8000) is Mode.DIRECT
    decision = site.decide(8000, held_there=7900)
    assert decision.mode is Mode.REMOTE
    assert site.auto.tokens >= FLOOR


def test_short_prompts_are_direct_and_long_ones_remote() -> None:
    slow = Site(prefill=(10.0, 1e-2))
    assert slow.decide(CEILING).reason == "at_or_above_threshold"
    assert slow.mode(CEILING - 1) is Mode.DIRECT
    fast = Site(prefill=(0.0, 1e-6), loading=(0.0, 1e-6), decode=(5.0, 1e-2))
    assert fast.decide(FLOOR - 1).reason == "below_threshold"
    assert fast.mode(FLOOR) is Mode.REMOTE


def test_an_engine_without_samples_uses_its_pools_prompt_cost() -> None:
    fleet = Fleet((P0, D0, D1), Ledger(), HealthThresholds(), stale_after=5.0)
    auto = AutoThreshold(fleet, 100.0, tries=False)
    for endpoint, fit in ((P0, "computing"), (D0, "computing"), (D0, "loading")):
        costs = fleet.member(endpoint).speed.counts.costs or PromptCosts()
        fleet.member(endpoint).speed.counts.costs = costs
        measure(getattr(costs, fit), (0.02, 5e-4) if fit == "computing" else LOADING)
    prefill = Prompt(fleet.member(P0).view, 2000)
    delays = [
        auto.decide(
            Prompt(fleet.member(d).view, 2000), prefill, 1.0, Random(0), is_stream=True
        ).delay
        for d in (D0, D1)
    ]
    assert delays[0] == pytest.approx(delays[1], rel=0.01)


def test_of_many_engines_only_those_that_are_compared_get_their_lines_fitted() -> None:
    site = Site()
    site.fleet.apply([Entry(each, row) for row, each in enumerate((P0, D0, D1, P1))], 0.0)
    for endpoint in (P1, D1):
        measure(site.costs(endpoint).computing, PREFILL)
    assert site.mode(2000) is Mode.DIRECT
    assert site.auto._lines.keys() == {P0, D0}


def test_an_engine_joined_since_the_last_fit_uses_its_pools_prompt_cost() -> None:
    site = Site()
    before = site.decide(2000).delay
    site.fleet.apply([Entry(each, row) for row, each in enumerate((P0, D0, D1))], 0.0)
    member = site.fleet.member
    decode, prefill = Prompt(member(D1).view, 2000), Prompt(member(P0).view, 2000)
    after = site.auto.decide(decode, prefill, site.now, site.rng, is_stream=True).delay
    assert before is not None
    assert after == pytest.approx(before, rel=0.01)


# A threshold.


@given(lines, lines, lines, backlogs, backlogs, st.integers(0, 200), prompts, prompts)
def test_a_longer_prompt_is_never_direct_where_a_shorter_one_is_remote(
    prefill: tuple[float, float],
    decode: tuple[float, float],
    loading: tuple[float, float],
    ahead_there: int,
    ahead_here: int,
    streams: int,
    one: int,
    other: int,
) -> None:
    def site() -> Site:
        made = Site(prefill=prefill, decode=decode, loading=loading, max_itl_impact=1.0)
        made.pending(P0, ahead_there)
        made.pending(D0, ahead_here)
        made.streams(streams)
        made.decide(COLD_THRESHOLD)
        return made

    short, long = sorted((one, other))
    if site().mode(short) is Mode.REMOTE:
        assert site().mode(long) is Mode.REMOTE


@given(lines, lines, lines, backlogs, backlogs, st.integers(0, 200), prompts)
def test_in_steady_load_equal_prompts_take_one_mode_and_the_threshold_is_constant(
    prefill: tuple[float, float],
    decode: tuple[float, float],
    loading: tuple[float, float],
    ahead_there: int,
    ahead_here: int,
    streams: int,
    tokens: int,
) -> None:
    site = Site(prefill=prefill, decode=decode, loading=loading)
    site.pending(P0, ahead_there)
    site.pending(D0, ahead_here)
    site.streams(streams)
    modes, thresholds = [], []
    for _ in range(50):
        modes.append(site.decide(tokens, after=FOLLOW_SECONDS / 5).mode)
        thresholds.append(site.auto.tokens)
    changes = sum(one is not other for one, other in pairwise(modes))
    assert changes <= 1
    steps = [later - earlier for earlier, later in pairwise(thresholds)]
    assert all(step >= 0 for step in steps) or all(step <= 0 for step in steps)
    assert abs(steps[-1]) <= 0.001 * CEILING
    assert all(FLOOR <= threshold <= CEILING for threshold in thresholds)


def test_near_the_threshold_the_way_changes_only_for_a_clear_gain() -> None:
    site = Site(decode=(0.02, 5e-4))
    for _ in range(100):
        site.decide(2000)
    threshold = round(site.auto.tokens)
    assert site.mode(threshold + 1) is Mode.REMOTE
    site.pending(P0, 20)  # two milliseconds
    assert site.mode(threshold + 1, after=0) is Mode.REMOTE
    assert site.mode(threshold - 20, after=0) is Mode.DIRECT


# The guard.


def test_a_decode_engine_computes_no_more_than_its_streams_can_bear() -> None:
    # 2,000 tokens of 2e-4 s in ten seconds: 4 % of the time, and gaps longer by as much.
    for impact, reason in ((0.05, "cheaper_direct"), (0.03, "itl_guard")):
        site = Site(prefill=(5.0, 1e-3), decode=(0.0, 2e-4), max_itl_impact=impact)
        site.streams(1)
        assert site.decide(2000).reason == reason


def test_recently_computed_and_waiting_prompts_count() -> None:
    site = Site(prefill=(5.0, 1e-3), decode=(0.0, 2e-4), max_itl_impact=0.5)
    site.streams(1)
    assert site.mode(2000) is Mode.DIRECT
    site.costs(D0).recent_tokens = RECENT_PROMPT_SECONDS / 2e-4 / 3
    assert site.mode(2000) is Mode.REMOTE
    site.costs(D0).recent_tokens = 0.0
    site.pending(D0, int(RECENT_PROMPT_SECONDS / 2e-4))  # all of its time
    site.pending(P0, 1_000_000)
    assert site.decide(2000).reason == "itl_guard"


def test_without_running_streams_the_itl_guard_is_off() -> None:
    site = Site(prefill=(5.0, 1e-3), decode=(0.0, 2e-4), max_itl_impact=0.0)
    assert site.mode(2000) is Mode.DIRECT


# Not known, or not known any more.


def test_until_both_ways_are_measured_it_is_a_constant() -> None:
    site = Site(is_warm=False)
    assert site.decide(COLD_THRESHOLD - 1) == Decision(Mode.DIRECT, "cold_default")
    assert site.decide(COLD_THRESHOLD) == Decision(Mode.REMOTE, "cold_default")
    for costs in (site.costs(P0).computing, site.costs(D0).computing):
        measure(costs, PREFILL)
    assert site.decide(100, after=1.0).reason == "cold_default"
    measure(site.costs(D0).loading, LOADING)
    assert site.decide(100, after=1.0).reason == "cheaper_direct"
    assert MEMORY_SAMPLES > WARM_SAMPLES


def test_engines_that_are_all_new_are_measured_anew() -> None:
    site = Site()
    assert site.decide(2000).reason != "cold_default"
    site.fleet.member(D0).speed.reset()
    assert site.decide(2000, after=1.0).reason == "cold_default"


def share(decide: Callable[[], Decision], reason: str, times: int = 20_000) -> float:
    """The share of decisions with this reason."""
    return sum(decide().reason == reason for _ in range(times)) / times


@pytest.mark.parametrize("tokens", [COLD_THRESHOLD // 2, 2 * COLD_THRESHOLD])
def test_unmeasured_modes_are_tried_in_both_directions(tokens: int) -> None:
    site = Site(is_warm=False, tries=True)
    assert share(lambda: site.decide(tokens), "try") == pytest.approx(COLD_TRY_SHARE, rel=0.1)


@pytest.mark.parametrize("tokens", [FLOOR - 1, CEILING])
def test_certain_failures_are_not_tried(tokens: int) -> None:
    site = Site(is_warm=False, tries=True)
    assert share(lambda: site.decide(tokens), "try", 1000) == 0.0


def test_near_the_threshold_a_few_go_the_other_way() -> None:
    site = Site(decode=(0.02, 5e-4), tries=True)
    site.decide(20_000)
    site.decide(70)
    tried = share(lambda: site.decide(150, after=0.0), "try")
    assert tried == pytest.approx(TRY_SHARE, rel=0.2)


@pytest.mark.parametrize(("seconds", "requests"), [(0.1, 40_000), (1.0, 10_000), (15.0, 4000)])
def test_far_from_threshold_the_unused_mode_is_tried(seconds: float, requests: int) -> None:
    site = Site(decode=(0.02, 5e-3), tries=True)
    tried = share(lambda: site.decide(20_000, after=seconds), "try", requests)
    between = STALE_SECONDS / seconds if seconds < STALE_SECONDS else 1.0
    assert tried == pytest.approx(1 / (between + 1 / STALE_TRY_SHARE - 1), rel=0.15)


@pytest.mark.parametrize("is_warm", [True, False])
def test_requests_without_a_first_token_make_no_trials(is_warm: bool) -> None:
    site = Site(tries=True, is_warm=is_warm)
    decided = share(lambda: site.decide(2000, after=15.0, is_stream=False), "try", 1000)
    assert decided == 0.0


def test_a_try_does_not_pass_the_guard() -> None:
    site = Site(decode=(0.02, 5e-3), tries=True, max_itl_impact=0.1)
    site.streams(1)
    reasons = [site.decide(20_000, after=1.0).reason for _ in range(200)]
    assert set(reasons) == {"cheaper_remote"}


def test_a_new_engine_uses_its_pools_prompt_cost() -> None:
    site = Site(decode=(0.02, 5e-4))
    assert site.mode(2000) is Mode.REMOTE
    del site.auto._lines[D0]
    assert site.decide(2000, after=0.0).reason == "cheaper_remote"
