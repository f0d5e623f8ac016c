"""`--routing-threshold auto`: prefill remotely what is expected to be done sooner that way.

    remote = prefill(tokens ahead + own) + load(tokens that the decode engine lacks)
    direct = decode(tokens ahead + own) + what its running streams lose meanwhile

All three are lines fitted to the legs of late (`prompt_costs.py`), the tokens ahead are exact. What
an engine's prefix cache holds is neither computed nor loaded. The decision is a threshold: the
longer a prompt, the less there is for its direct way.
"""

import math
from random import Random
from typing import Final, NamedTuple

from router.core.fleet.fleet import Fleet
from router.core.fleet.member import Member
from router.core.speed.prompt_costs import RECENT_SECONDS, Line, PromptCosts, Sums, total
from router.core.speed.speed_estimator import TICK_SECONDS
from router.core.values import DIRECT, REMOTE, Candidate, Decision, Endpoint, PromptDelay, Role

__all__ = ["AutoThreshold", "Prompt"]

COLD_THRESHOLD: Final = 2048
"""Uncached tokens, until both ways are measured: what others take for a constant (Dynamo)."""

FLOOR: Final = 64
"""Uncached tokens below which prompts are direct: a few blocks; no transfer is worth them."""

CEILING: Final = 32_768
"""From here on they are remote: a decode engine's streams would stutter for seconds."""

WARM_SAMPLES: Final = 16.0
"""First tokens of a pool from which its line is used."""

PRIOR_SAMPLES: Final = 8.0
"""What the pool's line weighs in each engine's own."""

STREAM_WEIGHT: Final = 0.05
"""What a second that a running stream loses counts against one that a first token is late. Readers
are behind their streams, and wait for first tokens."""

HYSTERESIS: Final = 0.05
"""Share of the delay at the threshold by which the other way must be better."""

FOLLOW_SECONDS: Final = 2.0
"""In which the threshold that is shown, and that hysteresis holds to, follows the present one."""

TRY_SHARE: Final = 1 / 64
"""Share of the requests near the threshold that go the other way: both estimates stay fresh."""

NEAR: Final = 1.5
"""Near: the worse way takes at most so many times what the better one does."""

COLD_TRY_SHARE: Final = 1 / 8
"""The same, while a way has not been measured."""

STALE_SECONDS: Final = 10.0
STALE_TRY_SHARE: Final = 1 / 16
"""A way that nobody has gone for so long is tried by such a share until somebody has: it may be
better now."""


class Prompt(NamedTuple):
    """A prompt on a candidate: the tokens of it that this engine would have to compute."""

    candidate: Candidate
    uncached: int


class _Lines(NamedTuple):
    computing: Line
    loading: Line


class _PoolSums(NamedTuple):
    """The samples of all engines together."""

    computing: dict[Role, Sums]
    loading: Sums


class AutoThreshold:
    """The threshold of one router process; it measures all engines of the fleet.

    `max_itl_impact`: by how much, as a share, prompts may lengthen the gaps between tokens of the
    streams on a decode engine that computes them itself. Without `tries` nothing is left to chance.
    """

    def __init__(self, fleet: Fleet, max_itl_impact: float, *, tries: bool = True) -> None:
        self._fleet = fleet
        self._tries = tries
        self._max_impact = max_itl_impact
        self._pools: _PoolSums | None = None
        """None until both ways have been measured."""
        self._lines: dict[Endpoint, _Lines] = {}
        """Of the engines that were asked for since the last fit."""
        self._fitted_at = -math.inf
        for member in fleet:
            _costs_of(member)
        self.tokens = float(COLD_THRESHOLD)
        """The present threshold, in uncached tokens."""
        self._followed_at = -math.inf
        self._went_direct = self._went_remote = -math.inf
        """When a request last took this mode."""

    def decide(
        self, decode: Prompt, prefill: Prompt, now: float, rng: Random, *, is_stream: bool
    ) -> Decision:
        """The mode of a request for which these engines would be chosen.

        Only streams show their first token, so only they try what is not known.
        """
        if now - self._fitted_at >= TICK_SECONDS:
            self._fit(now)
        decision = self._decision(decode, prefill, now, rng if is_stream and self._tries else None)
        if decision.mode is DIRECT:
            self._went_direct = now
        else:
            self._went_remote = now
        return decision

    def _decision(
        self, decode: Prompt, prefill: Prompt, now: float, rng: Random | None
    ) -> Decision:
        """Without a random source nothing is tried."""
        pools = self._pools
        if pools is None:
            return self._cold(decode, rng)
        own = float(decode.uncached)
        on_decode = self._lines_of(decode, pools)
        there = self._remote(prefill, decode, self._lines_of(prefill, pools), on_decode)
        here = self._direct(decode, on_decode)
        # A longer prompt is never a reason to go direct.
        here = Line(here.base, max(here.per_token, there.per_token))
        delay = PromptDelay(here.seconds(own), there.seconds(own))
        self._follow(here, there, now)
        if own < FLOOR:
            return Decision(DIRECT, "below_threshold", delay)
        if own >= CEILING:
            return Decision(REMOTE, "at_or_above_threshold", delay)
        margin = HYSTERESIS * max(0.0, there.seconds(self.tokens))
        is_remote = delay.remote + (margin if own < self.tokens else -margin) < delay.direct
        may_direct = self._impact(decode, on_decode) <= self._max_impact
        if self._is_try(delay, now, rng, is_remote=is_remote) and (may_direct or not is_remote):
            return Decision(DIRECT if is_remote else REMOTE, "try", delay)
        if is_remote:
            return Decision(REMOTE, "cheaper_remote", delay)
        if not may_direct:
            return Decision(REMOTE, "itl_guard", delay)
        return Decision(DIRECT, "cheaper_direct", delay)

    def _cold(self, decode: Prompt, rng: Random | None) -> Decision:
        """A constant threshold, and tries of what is not known."""
        own = decode.uncached
        is_remote = own >= COLD_THRESHOLD
        if rng is not None and FLOOR <= own < CEILING and rng.random() < COLD_TRY_SHARE:
            return Decision(DIRECT if is_remote else REMOTE, "try")
        return Decision(REMOTE if is_remote else DIRECT, "cold_default")

    # The two ways, as lines over the tokens that the decode engine lacks.

    def _remote(
        self, prefill: Prompt, decode: Prompt, on_prefill: _Lines, on_decode: _Lines
    ) -> Line:
        computing, loading = on_prefill.computing, on_decode.loading
        # Fewer where the prefill engine's cache holds more of the prompt than the decode engine's.
        more = prefill.candidate.load.pending + prefill.uncached - decode.uncached
        base = computing.seconds(float(more)) + loading.base
        return Line(base, computing.per_token + loading.per_token)

    def _direct(self, decode: Prompt, on_decode: _Lines) -> Line:
        candidate, line = decode.candidate, on_decode.computing
        streams = self._fleet.member(candidate.endpoint).speed.all_streams
        return Line(
            line.seconds(float(candidate.load.pending)),
            line.per_token * (1.0 + STREAM_WEIGHT * streams),
        )

    def _impact(self, decode: Prompt, on_decode: _Lines) -> float:
        """By how much gaps between tokens are longer on a decode engine that computes this prompt,
        those of late and those ahead of it; 0 where no streams run."""
        member = self._fleet.member(decode.candidate.endpoint)
        if not member.speed.all_streams:
            return 0.0
        tokens = _costs_of(member).recent_tokens
        tokens += decode.candidate.load.pending + decode.uncached
        share = tokens * on_decode.computing.per_token / RECENT_SECONDS
        return share / (1.0 - share) if share < 1.0 else math.inf

    # The threshold.

    def _follow(self, here: Line, there: Line, now: float) -> None:
        """Let the threshold follow the length for which both ways take as long."""
        present = _crossing(here, there)
        elapsed, self._followed_at = now - self._followed_at, now
        share = 1.0 - math.exp(-max(0.0, elapsed) / FOLLOW_SECONDS)
        self.tokens += share * (present - self.tokens)

    def _is_try(
        self, delay: PromptDelay, now: float, rng: Random | None, *, is_remote: bool
    ) -> bool:
        """Whether to go the way that seems the worse one."""
        if rng is None:
            return False
        other_at = self._went_direct if is_remote else self._went_remote
        if now - other_at >= STALE_SECONDS:
            return rng.random() < STALE_TRY_SHARE
        return max(delay) <= NEAR * min(delay) and rng.random() < TRY_SHARE

    # The measurements.

    def _fit(self, now: float) -> None:
        """Take together what all engines have measured. The lines of each are fitted when they are
        asked for: of a thousand engines a few are."""
        self._fitted_at = now
        self._lines = {}
        costs = {role: [_costs_of(member) for member in self._fleet.pool(role)] for role in Role}
        computing = {role: total(one.computing.sums for one in costs[role]) for role in Role}
        loading = total(one.loading.sums for pool in costs.values() for one in pool)
        samples = min(loading.samples, *(sums.samples for sums in computing.values()))
        self._pools = _PoolSums(computing, loading) if samples >= WARM_SAMPLES else None

    def _lines_of(self, prompt: Prompt, pools: _PoolSums) -> _Lines:
        endpoint = prompt.candidate.endpoint
        lines = self._lines.get(endpoint)
        if lines is None:
            own = _costs_of(self._fleet.member(endpoint))
            lines = self._lines[endpoint] = _Lines(
                _line(own.computing.sums, pools.computing[endpoint.role]),
                _line(own.loading.sums, pools.loading),
            )
        return lines


def _costs_of(member: Member) -> PromptCosts:
    """They are measured from now on, if they have not been."""
    costs = member.speed.costs
    if costs is None:
        costs = member.speed.costs = PromptCosts()
    return costs


def _crossing(here: Line, there: Line) -> float:
    """The tokens from which `there` takes less long, within floor and ceiling."""
    more, gain = there.base - here.base, here.per_token - there.per_token
    if more <= FLOOR * gain:
        return float(FLOOR)
    return more / gain if more < CEILING * gain else float(CEILING)


def _line(own: Sums, pool: Sums) -> Line:
    """An engine's line: with few samples of its own, the pool's."""
    line = own.plus(pool, min(1.0, PRIOR_SAMPLES / pool.samples)).line()
    assert line is not None, "the pool has samples"
    return line
