"""`--routing-threshold auto`: prefill remotely if the first token is expected sooner that way.

    remote = prefill(queued tokens + own) + load(tokens that the decode engine lacks)
    direct = decode(queued tokens + own) + weighted delay of its running streams

The three functions are lines fitted to recent legs (`prompt_costs.py`). Queued tokens are those of
the leases; on decode engines less what should be computed of the prompt in progress. Tokens in an
engine's prefix cache are neither computed nor loaded. The result acts like a threshold, because
longer prompts gain more from a remote prefill.
"""

import math
from random import Random
from typing import Final, NamedTuple

from router.core.candidate import Candidate
from router.core.fleet.fleet import Fleet
from router.core.judge.member import Member
from router.core.speed.prompt_costs import Line, PromptCosts, Sums, total
from router.core.speed.tuning import RECENT_PROMPT_SECONDS, TICK_SECONDS
from router.core.values import (
    DECODE,
    DIRECT,
    PREFILL,
    REMOTE,
    Decision,
    Endpoint,
    PromptDelay,
    Role,
)

__all__ = ["AutoThreshold", "Prompt"]

COLD_THRESHOLD: Final = 2048
"""Uncached tokens; used until both modes have been measured. Other routers use it as a constant
(Dynamo)."""

FLOOR: Final = 64
"""Uncached tokens below which prompts are always direct: a few blocks are not worth a transfer."""

CEILING: Final = 32_768
"""Uncached tokens from which prompts are always remote: computing them would block a decode
engine's streams for seconds."""

WARM_SAMPLES: Final = 16.0
"""First tokens of a pool from which its fitted line is used."""

PRIOR_SAMPLES: Final = 8.0
"""Weight of the pool's samples in each engine's own fit."""

STREAM_WEIGHT: Final = 0.05
"""Weight of a second of delay for each running stream, relative to a second of delay of a first
token. Users read more slowly than streams arrive, but wait for first tokens."""

HYSTERESIS: Final = 0.05
"""Share of the delay at the threshold by which the other mode must be better."""

FOLLOW_SECONDS: Final = 2.0
"""Time constant in seconds with which the shown threshold, which hysteresis uses, follows the
current one."""

TRY_SHARE: Final = 1 / 64
"""Share of the requests near the threshold that use the other mode, to keep both estimates up to
date."""

NEAR: Final = 1.5
"""A request is near the threshold if the worse mode takes at most this many times what the better
one takes."""

COLD_TRY_SHARE: Final = 1 / 8
"""The same share while a mode has not been measured."""

STALE_SECONDS: Final = 10.0
STALE_TRY_SHARE: Final = 1 / 16
"""If no request has used a mode for this many seconds, the share of requests that try it until one
has: it may have become better."""


class Prompt(NamedTuple):
    """A prompt on a candidate, with the number of its tokens that this engine would have to
    compute."""

    candidate: Candidate
    uncached: int


class _Lines(NamedTuple):
    computing: Line
    loading: Line


COMPUTING: Final = (PREFILL, DECODE)
"""The roles that compute prompts."""


class _PoolSums(NamedTuple):
    """The sums of all engines' samples."""

    computing: dict[Role, Sums]
    loading: Sums


class AutoThreshold:
    """The threshold of one router process, with measurements of all engines of the fleet.

    `max_itl_impact`: the largest accepted increase, as a share, of the inter-token latency of
    streams on a decode engine that computes prompts itself. Without `tries`, no request uses the
    worse mode to measure it.
    """

    def __init__(self, fleet: Fleet, max_itl_impact: float, *, tries: bool = True) -> None:
        self._fleet = fleet
        self._tries = tries
        self._max_impact = max_itl_impact
        self._pools: _PoolSums | None = None
        """None until both modes have been measured."""
        self._lines: dict[Endpoint, _Lines] = {}
        """The lines of the engines that were needed since the last fit."""
        self._fitted_at = -math.inf
        self.tokens = float(COLD_THRESHOLD)
        """The current threshold in uncached tokens."""
        self._followed_at = -math.inf
        self._went_direct = self._went_remote = -math.inf
        """When a request last used this mode."""

    def decide(
        self, decode: Prompt, prefill: Prompt, now: float, rng: Random, *, is_stream: bool
    ) -> Decision:
        """Decide the mode of a request for which these engines would be chosen.

        Only streams try a mode that has not been measured, because only their first tokens can be
        timed.
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
        """Without a random source no tries are made."""
        pools = self._pools
        if pools is None:
            return self._cold(decode, rng)
        own = float(decode.uncached)
        on_decode = self._lines_of(decode, pools)
        remote = self._remote(prefill, decode, self._lines_of(prefill, pools), on_decode)
        direct = self._direct(decode, on_decode, now)
        # A longer prompt is never a reason to go direct.
        direct = Line(direct.base, max(direct.per_token, remote.per_token))
        delay = PromptDelay(direct.seconds(own), remote.seconds(own))
        self._follow(direct, remote, now)
        if own < FLOOR:
            return Decision(DIRECT, "below_threshold", delay)
        if own >= CEILING:
            return Decision(REMOTE, "at_or_above_threshold", delay)
        margin = HYSTERESIS * max(0.0, remote.seconds(self.tokens))
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
        """A constant threshold, with tries of modes that have not been measured."""
        own = decode.uncached
        is_remote = own >= COLD_THRESHOLD
        if rng is not None and FLOOR <= own < CEILING and rng.random() < COLD_TRY_SHARE:
            return Decision(DIRECT if is_remote else REMOTE, "try")
        return Decision(REMOTE if is_remote else DIRECT, "cold_default")

    # Both modes as lines over the number of tokens that the decode engine lacks.

    def _remote(
        self, prefill: Prompt, decode: Prompt, on_prefill: _Lines, on_decode: _Lines
    ) -> Line:
        computing, loading = on_prefill.computing, on_decode.loading
        # The prefill engine computes fewer tokens if its cache holds more of the prompt than the
        # decode engine's.
        more = prefill.candidate.load.pending + prefill.uncached - decode.uncached
        base = computing.seconds(float(more)) + loading.base
        return Line(base, computing.per_token + loading.per_token)

    def _direct(self, decode: Prompt, on_decode: _Lines, now: float) -> Line:
        candidate, line = decode.candidate, on_decode.computing
        streams = self._fleet.member(candidate.endpoint).speed.counts.all_streams
        return Line(
            line.seconds(candidate.pending(now)),
            line.per_token * (1.0 + STREAM_WEIGHT * streams),
        )

    def _impact(self, decode: Prompt, on_decode: _Lines) -> float:
        """The relative increase of the inter-token latency on a decode engine that computes this
        prompt, from this prompt, recent ones and queued ones. 0 if it has no running streams."""
        member = self._fleet.member(decode.candidate.endpoint)
        if not member.speed.counts.all_streams:
            return 0.0
        tokens = _costs_of(member).recent_tokens
        tokens += decode.candidate.load.pending + decode.uncached
        share = tokens * on_decode.computing.per_token / RECENT_PROMPT_SECONDS
        return share / (1.0 - share) if share < 1.0 else math.inf

    # The threshold.

    def _follow(self, direct: Line, remote: Line, now: float) -> None:
        """Move the threshold toward the length for which both modes take the same time."""
        present = _crossing(direct, remote)
        elapsed, self._followed_at = now - self._followed_at, now
        share = 1.0 - math.exp(-max(0.0, elapsed) / FOLLOW_SECONDS)
        self.tokens += share * (present - self.tokens)

    def _is_try(
        self, delay: PromptDelay, now: float, rng: Random | None, *, is_remote: bool
    ) -> bool:
        """Whether to use the mode that seems worse."""
        if rng is None:
            return False
        other_at = self._went_direct if is_remote else self._went_remote
        if now - other_at >= STALE_SECONDS:
            return rng.random() < STALE_TRY_SHARE
        return max(delay) <= NEAR * min(delay) and rng.random() < TRY_SHARE

    # Measurements.

    def _fit(self, now: float) -> None:
        """Sum up what all engines have measured. The lines of an engine are fitted when they are
        needed: a few out of a thousand are."""
        self._fitted_at = now
        self._lines = {}
        costs = {
            role: [_costs_of(member) for member in self._fleet.pool(role)] for role in COMPUTING
        }
        computing = {role: total(one.computing.sums for one in costs[role]) for role in COMPUTING}
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
    """The prompt costs of an engine; it starts to measure them on the first call."""
    costs = member.speed.counts.costs
    if costs is None:
        costs = member.speed.counts.costs = PromptCosts()
    return costs


def _crossing(direct: Line, remote: Line) -> float:
    """The number of tokens from which `remote` takes less time, limited to FLOOR and CEILING."""
    more, gain = remote.base - direct.base, direct.per_token - remote.per_token
    if more <= FLOOR * gain:
        return float(FLOOR)
    return more / gain if more < CEILING * gain else float(CEILING)


def _line(own: Sums, pool: Sums) -> Line:
    """The line of an engine; with few samples of its own, mostly the pool's."""
    line = own.plus(pool, min(1.0, PRIOR_SAMPLES / pool.samples)).line()
    assert line is not None, "the pool has samples"
    return line
