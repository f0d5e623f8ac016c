"""The router's policies, and those with which they are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from router.core.candidate import Candidate
from router.core.policies import POLICIES, Policy
from router.core.policies.shortest_expected_delay import shortest_expected_delay
from router.core.values import Role
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.requests import VirtualRequest
from router.simulator.virtual.values import Scenario

__all__ = ["POLICY_NAMES", "Asking", "Strategy", "make_policy", "make_strategy", "policies_for"]


class Asking:
    """The request for which an engine is being chosen; not visible to real policies."""

    request: VirtualRequest

    def cached_on(self, engine: VirtualEngine) -> int:
        """Tokens of its prompt that will be in the engine's prefix cache at its turn."""
        return engine.cached(self.request.prompt, self.request.contents)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the routers of a run choose engines."""

    policy: Policy
    asking: Asking
    cached_roles: frozenset[Role]
    """The roles in which a router predicts how much of a prompt is cached."""
    has_sessions: bool = False
    """Whether routers keep sessions on their engines (--session-header)."""


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


Score = Callable[[VirtualEngine, Asking, float], float]
"""The score of an engine for the request that asks, at a time."""


def oracle(engine: VirtualEngine, _asking: Asking, now: float) -> float:
    """Knows each engine's true load, slots and speed.

    The request goes where it adds the most tokens per second: to the fastest engine with a free
    slot; of equal ones to the emptiest. If no slot is free, to the shortest queue in seconds.
    """
    model, load = engine.model, engine.load
    if now < engine.frozen_until or not engine.is_up:
        return 1e9 + load
    if load >= model.max_num_seqs:
        return 1e6 * (1 + load - model.max_num_seqs) * engine.batch.factor
    gain = (load + 1) / model.step(load + 1) - load / model.step(load)
    return engine.batch.factor / gain + 1e-9 * load


def prefill_oracle(engine: VirtualEngine, asking: Asking, _now: float) -> float:
    """The earliest first token, with exact knowledge of each engine's prefix cache, queued prompts
    and speed."""
    if not engine.is_up or engine.is_frozen:
        return 1e9 + engine.load
    uncached = asking.request.prompt - asking.cached_on(engine)
    return engine.batch.factor * (engine.backlog + uncached)


def by_score(score: Score, engines: Sequence[VirtualEngine], asking: Asking) -> Policy:
    """The policy that reads its scores off the engines themselves."""

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], now: float, _rng: Random
    ) -> Sequence[float]:
        return [score(engines[each.ordinal], asking, now) for each in candidates]

    return policy


Weigh = Callable[[Sequence[Candidate], list[int], int, float, Random], Sequence[float]]
"""Scores, by the tokens that each candidate has cached of a prompt of so many tokens."""


def prefix_cache_oracle(
    candidates: Sequence[Candidate], held: list[int], prompt: int, now: float, rng: Random
) -> Sequence[float]:
    """shortest_expected_delay with exact knowledge of each engine's prefix cache."""
    uncached = [prompt - tokens for tokens in held]
    return shortest_expected_delay(candidates, uncached, now, rng)


def vllm_cache_aware(
    candidates: Sequence[Candidate], held: list[int], prompt: int, _now: float, _rng: Random
) -> Sequence[float]:
    """vllm-router's `cache_aware` with its defaults: the longest match above half of the prompt, or
    the fewest requests if some engine has 32 and 10 % more than another."""
    requests = [float(candidate.in_flight) for candidate in candidates]
    most, least = max(requests), min(requests)
    if most > least + 32 and most > 1.1 * least:
        return requests
    return _by_match(requests, held, 0.5 * prompt)


def smg_cache_aware(
    candidates: Sequence[Candidate], held: list[int], prompt: int, _now: float, _rng: Random
) -> Sequence[float]:
    """smg's `cache_aware` with the defaults of its command line: the longest match above 0.3 of the
    prompt, unless that engine has 64 and 50 % more requests than the mean."""
    requests = [float(candidate.in_flight) for candidate in candidates]
    scores = _by_match(requests, held, 0.3 * prompt)
    mean, chosen = fmean(requests), requests[scores.index(min(scores))]
    return requests if chosen > mean + 64 and chosen > 1.5 * mean else scores


def _by_match(requests: list[float], held: list[int], least: float) -> list[float]:
    """The longest match, then the fewest requests; only the latter if no match is longer than
    `least` tokens. It uses the actual cache contents, which those routers estimate."""
    if max(held) <= least:
        return requests
    return [1e-6 * load - tokens for tokens, load in zip(held, requests, strict=True)]


def by_cache(weigh: Weigh, engines: Sequence[VirtualEngine], asking: Asking) -> Policy:
    """The policy that knows what each engine has cached of a prompt."""

    def policy(
        candidates: Sequence[Candidate], _uncached: Sequence[int], now: float, rng: Random
    ) -> Sequence[float]:
        held = [asking.cached_on(engines[each.ordinal]) for each in candidates]
        return weigh(candidates, held, asking.request.prompt, now, rng)

    return policy


ORACLE = "oracle"

PREFIX_CACHE_OFF = "prefix_cache_off"
"""shortest_expected_delay without regard to caches."""

SESSIONS_ONLY, WITH_SESSIONS = "session_affinity", "history_and_sessions"
"""shortest_expected_delay with --session-header, in place of its history and with it."""

USES_HISTORY = ("shortest_expected_delay", "prefix_cache_oracle", WITH_SESSIONS)
"""Policies for which the router predicts how much of a prompt is cached."""

_PLAIN: dict[str, Policy] = {
    **POLICIES,
    "random": random_choice,
    "power_of_two": power_of_two,
    **dict.fromkeys((PREFIX_CACHE_OFF, SESSIONS_ONLY, WITH_SESSIONS), shortest_expected_delay),
}
_SCORES: dict[str, Score] = {ORACLE: oracle, "prefill_oracle": prefill_oracle}
_CACHES: dict[str, Weigh] = {
    "vllm_cache_aware": vllm_cache_aware,
    "smg_cache_aware": smg_cache_aware,
    "prefix_cache_oracle": prefix_cache_oracle,
}

ABOUT_CACHES = (PREFIX_CACHE_OFF, SESSIONS_ONLY, WITH_SESSIONS, *_CACHES, "prefill_oracle")
"""Policies that are compared if engines have prefix caches."""

_SIMPLE = ("round_robin", "random", "power_of_two")

POLICY_NAMES = (
    *(*_SIMPLE, *(name for name in POLICIES if name not in _SIMPLE)),
    *(ORACLE, *ABOUT_CACHES),
)


def policies_for(scenario: Scenario) -> tuple[str, ...]:
    """The policies that are compared by default; those that use caches only if there are any."""
    if any(spec.model.block_size for spec in scenario.pool):
        return POLICY_NAMES
    return tuple(name for name in POLICY_NAMES if name not in ABOUT_CACHES)


def make_policy(name: str, engines: Sequence[VirtualEngine], asking: Asking) -> Policy:
    """The policy with that name. Raises KeyError if there is none."""
    if name in _SCORES:
        return by_score(_SCORES[name], engines, asking)
    return by_cache(_CACHES[name], engines, asking) if name in _CACHES else _PLAIN[name]


def make_strategy(name: str, engines: Sequence[VirtualEngine]) -> Strategy:
    """The policy with that name, and what it uses. Raises KeyError if there is none."""
    asking = Asking()
    cached_roles = frozenset(Role if name in USES_HISTORY else ())
    has_sessions = name in (SESSIONS_ONLY, WITH_SESSIONS)
    return Strategy(make_policy(name, engines, asking), asking, cached_roles, has_sessions)
