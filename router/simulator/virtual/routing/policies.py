"""The router's policies, and those that it is compared with."""

from collections.abc import Sequence
from random import Random

from router.core.policies import POLICIES, Policy
from router.core.policies.shortest_expected_delay import shortest_expected_delay
from router.core.values import Candidate, Role
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.request import Request
from router.simulator.virtual.values import Scenario

ORACLE = "oracle"
PREFIX_CACHE_ORACLE = "prefix_cache_oracle"
PREFILL_ORACLE = "prefill_oracle"
PREFIX_CACHE_OFF = "prefix_cache_off"
"""shortest_expected_delay that takes no notice of caches."""


def random_choice(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, rng: Random
) -> Sequence[float]:
    """Any of them."""
    return [rng.random() for _ in candidates]


def power_of_two(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, rng: Random
) -> Sequence[float]:
    """Two at random, and of these the one with fewer requests."""
    scores = [2.0] * len(candidates)
    places = rng.sample(range(len(candidates)), min(2, len(candidates)))
    best = min(
        places,
        key=lambda place: candidates[place].in_flight + (candidates[place].other_requests or 0),
    )
    scores[best] = 0.0
    return scores


def oracle(engines: Sequence[Engine]) -> Policy:
    """One who knows each engine's true load, slots and speed at this moment.

    The request goes where it adds most tokens per second: the fastest engine that has a free slot;
    among equals the emptiest. With all slots taken, to the shortest queue in seconds.
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


ABOUT_CACHES = (PREFIX_CACHE_OFF, PREFIX_CACHE_ORACLE, PREFILL_ORACLE)
"""They are compared where engines have prefix caches."""

USES_HISTORY = ("shortest_expected_delay", PREFIX_CACHE_ORACLE)
"""For whom the router predicts what of a prompt is cached, and so how much an engine has to do."""


class Asking:
    """The request for which an engine is being chosen; policies do not see it."""

    request: Request


def prefix_cache_oracle(engines: Sequence[Engine], asking: Asking) -> Policy:
    """shortest_expected_delay, knowing what each engine's prefix cache will hold."""

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
    """The soonest first token, knowing each engine's prefix cache, prompts to compute and speed."""

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


_OTHERS: dict[str, Policy] = {"random": random_choice, "power_of_two": power_of_two}

POLICY_NAMES = (
    *("round_robin", *_OTHERS, *(name for name in POLICIES if name != "round_robin")),
    *(ORACLE, *ABOUT_CACHES),
)


def policies_for(scenario: Scenario) -> tuple[str, ...]:
    """The policies that are compared by default: those that know caches only where there are."""
    if any(spec.model.block_size for spec in scenario.pool):
        return POLICY_NAMES
    return tuple(name for name in POLICY_NAMES if name not in ABOUT_CACHES)


def make_policy(name: str, engines: Sequence[Engine], asking: Asking) -> Policy:
    """The policy of that name. Raises KeyError if there is none."""
    if name == ORACLE:
        return oracle(engines)
    if name == PREFIX_CACHE_OFF:
        return shortest_expected_delay
    if name == PREFIX_CACHE_ORACLE:
        return prefix_cache_oracle(engines, asking)
    if name == PREFILL_ORACLE:
        return prefill_oracle(engines, asking)
    return {**POLICIES, **_OTHERS}[name]


def cached_roles(name: str) -> frozenset[Role]:
    """The roles in which a router with this policy keeps a history of prefixes."""
    return frozenset(Role) if name in USES_HISTORY else frozenset()
