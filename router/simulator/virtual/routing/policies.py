"""The router's policies, and those that it is compared with."""

from collections.abc import Sequence
from random import Random

from router.core.policies import POLICIES, Policy
from router.core.values import Candidate
from router.simulator.virtual.engine import Engine

ORACLE = "oracle"


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


_OTHERS: dict[str, Policy] = {"random": random_choice, "power_of_two": power_of_two}

POLICY_NAMES = ("round_robin", *_OTHERS, *(n for n in POLICIES if n != "round_robin"), ORACLE)


def make_policy(name: str, engines: Sequence[Engine]) -> Policy:
    """The policy of that name. Raises KeyError if there is none."""
    return oracle(engines) if name == ORACLE else {**POLICIES, **_OTHERS}[name]
