"""The router's policies, and those with which they are compared."""

from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean

from router.core.candidate import Candidate
from router.core.policies import POLICIES, Policy
from router.core.policies.shortest_expected_delay import shortest_expected_delay
from router.core.values import Role
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.request import Request
from router.simulator.virtual.values import Scenario

ORACLE = "oracle"
PREFIX_CACHE_ORACLE = "prefix_cache_oracle"
PREFILL_ORACLE = "prefill_oracle"
VLLM_CACHE_AWARE = "vllm_cache_aware"
SMG_CACHE_AWARE = "smg_cache_aware"
PREFIX_CACHE_OFF = "prefix_cache_off"
"""shortest_expected_delay without regard to caches."""


def random_choice(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, rng: Random
) -> Sequence[float]:
    """Any candidate."""
    return [rng.random() for _ in candidates]


def power_of_two(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, rng: Random
) -> Sequence[float]:
    """Of two random candidates the one with fewer requests."""
    scores = [2.0] * len(candidates)
    places = rng.sample(range(len(candidates)), min(2, len(candidates)))
    best = min(
        places,
        key=lambda place: candidates[place].in_flight + (candidates[place].other_requests or 0),
    )
    scores[best] = 0.0
    return scores


def oracle(engines: Sequence[Engine]) -> Policy:
    """A policy that knows each engine's true load, slots and speed.

    The request goes where it adds the most tokens per second: to the fastest engine with a free
    slot; of equal ones to the emptiest. If no slot is free, to the shortest queue in seconds.
    """

    def score(engine: Engine, now: float) -> float:
        model, load = engine.model, engine.load
        if now < engine.frozen_until or not engine.is_up:
            return 1e9 + load
        if load >= model.max_num_seqs:
            return 1e6 * (1 + load - model.max_num_seqs) * engine.batch.factor
        gain = (load + 1) / model.step(load + 1) - load / model.step(load)
        return engine.batch.factor / gain + 1e-9 * load

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], now: float, _rng: Random
    ) -> Sequence[float]:
        return [score(engines[candidate.ordinal], now) for candidate in candidates]

    return policy


ABOUT_CACHES = (
    *(PREFIX_CACHE_OFF, VLLM_CACHE_AWARE, SMG_CACHE_AWARE),
    *(PREFIX_CACHE_ORACLE, PREFILL_ORACLE),
)
"""Policies that are compared if engines have prefix caches."""

USES_HISTORY = ("shortest_expected_delay", PREFIX_CACHE_ORACLE)
"""Policies for which the router predicts how much of a prompt is cached."""


class Asking:
    """The request for which an engine is being chosen; not visible to real policies."""

    request: Request


def prefix_cache_oracle(engines: Sequence[Engine], asking: Asking) -> Policy:
    """shortest_expected_delay with exact knowledge of each engine's prefix cache."""

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], now: float, rng: Random
    ) -> Sequence[float]:
        asked = asking.request
        uncached = [
            asked.prompt - engines[c.ordinal].cached(asked.prompt, asked.contents)
            for c in candidates
        ]
        return shortest_expected_delay(candidates, uncached, now, rng)

    return policy


def prefill_oracle(engines: Sequence[Engine], asking: Asking) -> Policy:
    """The earliest first token, with exact knowledge of each engine's prefix cache, queued prompts
    and speed."""

    def score(engine: Engine) -> float:
        if not engine.is_up or engine.is_frozen:
            return 1e9 + engine.load
        request = asking.request
        uncached = request.prompt - engine.cached(request.prompt, request.contents)
        return engine.batch.factor * (engine.backlog + uncached)

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, _rng: Random
    ) -> Sequence[float]:
        return [score(engines[candidate.ordinal]) for candidate in candidates]

    return policy


def vllm_cache_aware(engines: Sequence[Engine], asking: Asking) -> Policy:
    """vllm-router's `cache_aware` with its defaults: the longest match above half of the prompt, or
    the fewest requests if some engine has 32 and 10 % more than another."""

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, _rng: Random
    ) -> Sequence[float]:
        requests = [float(candidate.in_flight) for candidate in candidates]
        most, least = max(requests), min(requests)
        if most > least + 32 and most > 1.1 * least:
            return requests
        return _by_match(candidates, requests, engines, asking.request, 0.5)

    return policy


def smg_cache_aware(engines: Sequence[Engine], asking: Asking) -> Policy:
    """smg's `cache_aware` with the defaults of its command line: the longest match above 0.3 of the
    prompt, unless that engine has 64 and 50 % more requests than the mean."""

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, _rng: Random
    ) -> Sequence[float]:
        requests = [float(candidate.in_flight) for candidate in candidates]
        scores = _by_match(candidates, requests, engines, asking.request, 0.3)
        mean, chosen = fmean(requests), requests[scores.index(min(scores))]
        return requests if chosen > mean + 64 and chosen > 1.5 * mean else scores

    return policy


def _by_match(
    candidates: Sequence[Candidate],
    requests: list[float],
    engines: Sequence[Engine],
    asked: Request,
    least_share: float,
) -> list[float]:
    """The longest match, then the fewest requests; only the latter if the match is not longer than
    this share of the prompt. It uses the actual cache contents, which those routers estimate."""
    held = [engines[c.ordinal].cached(asked.prompt, asked.contents) for c in candidates]
    if max(held) <= least_share * asked.prompt:
        return requests
    return [1e-6 * load - tokens for tokens, load in zip(held, requests, strict=True)]


_OTHERS: dict[str, Policy] = {"random": random_choice, "power_of_two": power_of_two}

_KNOWING_CACHES: dict[str, Callable[[Sequence[Engine], Asking], Policy]] = {
    VLLM_CACHE_AWARE: vllm_cache_aware,
    SMG_CACHE_AWARE: smg_cache_aware,
    PREFIX_CACHE_ORACLE: prefix_cache_oracle,
    PREFILL_ORACLE: prefill_oracle,
}

POLICY_NAMES = (
    *("round_robin", *_OTHERS, *(name for name in POLICIES if name != "round_robin")),
    *(ORACLE, *ABOUT_CACHES),
)


def policies_for(scenario: Scenario) -> tuple[str, ...]:
    """The policies that are compared by default; those that use caches only if there are any."""
    if any(spec.model.block_size for spec in scenario.pool):
        return POLICY_NAMES
    return tuple(name for name in POLICY_NAMES if name not in ABOUT_CACHES)


def make_policy(name: str, engines: Sequence[Engine], asking: Asking) -> Policy:
    """The policy with that name. Raises KeyError if there is none."""
    if name == ORACLE:
        return oracle(engines)
    if name == PREFIX_CACHE_OFF:
        return shortest_expected_delay
    if name in _KNOWING_CACHES:
        return _KNOWING_CACHES[name](engines, asking)
    return {**POLICIES, **_OTHERS}[name]


def cached_roles(name: str) -> frozenset[Role]:
    """The roles in which a router with this policy predicts prefix caches."""
    return frozenset(Role) if name in USES_HISTORY else frozenset()
