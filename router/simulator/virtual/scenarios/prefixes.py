"""Scenarios whose prompts have common prefixes, on engines with prefix caches.

The load is drawn by the seed, and grows with the number of engines.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

from router.simulator.virtual.loads import conversations, mooncake, shared
from router.simulator.virtual.scenarios.base import Size
from router.simulator.virtual.values import EngineModel, Scenario, Session

MOONCAKE_ENGINE = EngineModel(
    max_num_seqs=256,
    max_num_batched_tokens=1024,
    step_seconds=0.01,
    prefill_tokens_per_second=6400.0,
    kv_tokens=2000 * mooncake.BLOCK_SIZE,
    block_size=mooncake.BLOCK_SIZE,
)
"""Eight of these need 80 % of their time for the prompts of Mooncake's conversations without cache
hits; a quarter of the trace's distinct blocks fit into one. Steps take up to 0.17 s."""

ENGINE = replace(
    MOONCAKE_ENGINE,
    max_num_batched_tokens=2048,
    prefill_tokens_per_second=16_000.0,
    kv_tokens=160_000,
    block_size=shared.BLOCK_SIZE,
)
"""The common prefixes of a load fit into the caches of eight of these together, but not into
one."""

UNSTEADY_ENGINE = EngineModel(
    prefill_tokens_per_second=6000.0, kv_tokens=29_008, block_size=shared.BLOCK_SIZE, drift=0.4
)
"""Three of these resemble the real engines of tests/engines, which share two cores."""

GROUPS = 19
"""Prefixes of 6,000 tokens per engine: 70 % of its cache."""

LADDER = (0.5, 1.0, 2.0, 3.0)
"""Requests per second and engine. Without cache hits an engine can compute 2.2."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions, and the engine model that they are made for."""

    model: EngineModel
    requests: int
    """Number of requests per engine."""
    sessions: Callable[[Random, int, int], Iterable[Session]]
    """Creates the sessions from a random source, the number of engines and the number of requests,
    in order of time."""

    def scenario(self, base: Scenario, size: Size) -> Scenario:
        """The scenario with this load."""
        wanted = size.requests or self.requests * base.engines
        sessions = self.sessions(Random(f"{base.name} {size.seed}"), base.engines, wanted)
        return of_sessions(base, self.model, shared.take(iter(sessions), wanted))


def of_sessions(base: Scenario, model: EngineModel, sessions: tuple[Session, ...]) -> Scenario:
    """The scenario with these sessions and no other requests."""
    requests = sum(len(session.turns) for session in sessions)
    work = replace(base.workload, streams=0, requests=requests)
    return replace(base, model=model, workload=work, sessions=sessions)


def _trace(statistics: conversations.Statistics, model: EngineModel) -> Load:
    def sessions(rng: Random, engines: int, requests: int) -> Iterable[Session]:
        rate = statistics.requests_per_second * engines / 8  # the trace's load is for eight
        scaled = replace(statistics, requests_per_second=rate)
        return conversations.conversations(rng, scaled, requests)

    return Load(model, 250, sessions)


LOADS = {
    "conversation": _trace(conversations.CONVERSATION, MOONCAKE_ENGINE),
    "synthetic": _trace(
        conversations.SYNTHETIC, replace(MOONCAKE_ENGINE, prefill_tokens_per_second=9000.0)
    ),
    "multi-turn": Load(ENGINE, 225, lambda rng, engines, _: shared.multi_turn(rng, 0.45 * engines)),
    "unsteady-chats": Load(
        UNSTEADY_ENGINE,
        80,
        lambda rng, engines, requests: shared.chats_in_a_row(rng, -(-8 * engines // 3), requests),
    ),
    "agents": Load(ENGINE, 300, lambda rng, engines, _: shared.agents(rng, 0.15 * engines)),
    "shared-prefixes": Load(
        ENGINE,
        200,
        lambda rng, engines, requests: shared.shared_prefixes(
            rng, GROUPS * engines, [rate * engines for rate in LADDER], requests // len(LADDER)
        ),
    ),
    "one-prefix": Load(ENGINE, 200, lambda rng, engines, _: shared.one_prefix(rng, 4.0 * engines)),
    "siblings": Load(ENGINE, 100, lambda _rng, engines, _: shared.siblings(8 * engines, 4.0)),
    "no-reuse": Load(ENGINE, 200, lambda rng, engines, _: shared.no_reuse(rng, 2.9 * engines)),
}
