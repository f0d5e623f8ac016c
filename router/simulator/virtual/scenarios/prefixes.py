"""Scenarios whose prompts have common prefixes, on engines with prefix caches.

The load is drawn by the seed, and grows with the number of engines.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, islice, repeat
from random import Random

from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.scenarios.traces import (
    CONVERSATION,
    SYNTHETIC,
    TRACE_BLOCK_SIZE,
    Statistics,
    Text,
    conversations,
)
from router.simulator.virtual.values import EngineModel, Lengths, Scenario, Session, Turn

BLOCK_SIZE = 16
"""vLLM's default."""

MOONCAKE_ENGINE = EngineModel(
    max_num_seqs=256,
    max_num_batched_tokens=1024,
    step_seconds=0.01,
    prefill_tokens_per_second=6400.0,
    kv_tokens=2000 * TRACE_BLOCK_SIZE,
    block_size=TRACE_BLOCK_SIZE,
)
"""Eight of these need 80 % of their time for the prompts of Mooncake's conversations without cache
hits; a quarter of the trace's distinct blocks fit into one. Steps take up to 0.17 s."""

ENGINE = replace(
    MOONCAKE_ENGINE,
    max_num_batched_tokens=2048,
    prefill_tokens_per_second=16_000.0,
    kv_tokens=160_000,
    block_size=BLOCK_SIZE,
)
"""The common prefixes of a load fit into the caches of eight of these together, but not into
one."""

UNSTEADY_ENGINE = EngineModel(
    prefill_tokens_per_second=6000.0, kv_tokens=29_008, block_size=BLOCK_SIZE, drift=0.4
)
"""Three of these resemble the real engines of tests/engines, which share two cores."""

GROUPS = 19
"""Prefixes of 6,000 tokens per engine: 70 % of its cache."""

LADDER = (0.5, 1.0, 2.0, 3.0)
"""Requests per second and engine. Without cache hits an engine can compute 2.2."""


@dataclass(frozen=True, slots=True)
class PrefixLoad:
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
        return of_sessions(base, self.model, take(iter(sessions), wanted))


def of_sessions(base: Scenario, model: EngineModel, sessions: tuple[Session, ...]) -> Scenario:
    """The scenario with these sessions and no other requests."""
    requests = sum(len(session.turns) for session in sessions)
    work = replace(base.workload, streams=0, requests=requests)
    return replace(base, model=model, workload=work, sessions=sessions)


def _trace(statistics: Statistics, model: EngineModel) -> PrefixLoad:
    def sessions(rng: Random, engines: int, requests: int) -> Iterable[Session]:
        rate = statistics.requests_per_second * engines / 8  # the trace's load is for eight
        scaled = replace(statistics, requests_per_second=rate)
        return conversations(rng, scaled, requests)

    return PrefixLoad(model, 250, sessions)


# Sessions, agents and prompts with common beginnings. All are endless; rates are per second.
# In a session, a request is sent a pause after the previous answer and begins with all previous
# text.


def take(sessions: Iterator[Session], requests: int) -> tuple[Session, ...]:
    """The first sessions, with the given number of requests in total."""
    taken, left = [], requests
    while left > 0:
        session = next(sessions)
        taken.append(Session(session.at, session.turns[:left]))
        left -= len(session.turns)
    return tuple(taken)


def arrivals(rng: Random, rate: float) -> Iterator[float]:
    """Yields the times of a Poisson process."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def _talk(
    rng: Random, text: Text, turns: int, said: Lengths, output: Lengths, pause: float
) -> tuple[Turn, ...]:
    """Requests that each continue the previous one; pauses are exponentially distributed with mean
    `pause`."""
    talk = []
    for number in range(turns):
        text.grow(said.draw(rng))
        seconds = rng.expovariate(1 / pause) if number else 0.0
        talk.append(text.turn(output.draw(rng), seconds))
    return tuple(talk)


def multi_turn(rng: Random, rate: float) -> Iterator[Session]:
    """Chats of six turns with one system prompt: 1,000 + 6 * (600 + 200) tokens on average."""
    system = Text(count(), BLOCK_SIZE, 1000)

    def session(at: float) -> Session:
        text = system.branch(rng.randrange(200, 3000))
        return Session(at, _talk(rng, text, 6, Lengths(440, 0.8, 4000), Lengths(200), 10.0))

    return map(session, arrivals(rng, rate))


def chats_in_a_row(rng: Random, clients: int, requests: int) -> Iterator[Session]:
    """Each client has chats of five turns, one after the other and without pauses: prompts of 260
    to 1,170 tokens."""
    numbers = count()

    def chat() -> Iterator[Turn]:
        said, output = Lengths(180, 0.1), Lengths(48)
        return iter(_talk(rng, Text(numbers, BLOCK_SIZE, 80), 5, said, output, 0.01))

    for _ in range(clients):
        turns = chain.from_iterable(chat() for _ in count())
        yield Session(0.0, tuple(islice(turns, -(-requests // clients))))


def agents(rng: Random, rate: float) -> Iterator[Session]:
    """Four kinds of agents with tool definitions of 4,000 tokens, and 15 calls with short
    answers."""
    numbers = count()
    kinds = [Text(numbers, BLOCK_SIZE, 4000) for _ in range(4)]
    result, output = Lengths(300, 0.9, 4000), Lengths(60, 0.5, 300)

    def session(at: float) -> Session:
        return Session(at, _talk(rng, rng.choice(kinds).branch(500), 15, result, output, 2.0))

    return map(session, arrivals(rng, rate))


def shared_prefixes(
    rng: Random, groups: int, rates: Sequence[float], each: int
) -> Iterator[Session]:
    """llm-d's ladder of rates: prompts with 6,000 tokens of their group and 1,200 of their own.

    `each` requests at each of the `rates`, then further ones at the last rate.
    """
    numbers = count()
    systems = [Text(numbers, BLOCK_SIZE, 6000) for _ in range(groups)]
    steps = chain(*(repeat(rate, each) for rate in rates), repeat(rates[-1]))
    times = accumulate(rng.expovariate(rate) for rate in steps)
    return (Session(at, (rng.choice(systems).branch(1200).turn(100),)) for at in times)


def one_prefix(rng: Random, rate: float) -> Iterator[Session]:
    """All prompts begin with the same 6,000 tokens and have 1,500 of their own."""
    system = Text(count(), BLOCK_SIZE, 6000)
    return (Session(at, (system.branch(1500).turn(100),)) for at in arrivals(rng, rate))


def siblings(burst: int, seconds: float) -> Iterator[Session]:
    """A burst of prompts every `seconds`, with 3,000 new tokens in common and 50 of their own."""
    numbers, at = count(), 0.0
    while True:
        common = Text(numbers, BLOCK_SIZE, 3000)
        yield from (Session(at, (common.branch(50).turn(50),)) for _ in range(burst))
        at += seconds


def no_reuse(rng: Random, rate: float) -> Iterator[Session]:
    """Prompts with nothing in common."""
    nothing, prompt = Text(count(), BLOCK_SIZE), Lengths(3000, 0.8, 32_000)
    times = arrivals(rng, rate)
    return (Session(at, (nothing.branch(prompt.draw(rng)).turn(100),)) for at in times)


LOADS = {
    "conversation": _trace(CONVERSATION, MOONCAKE_ENGINE),
    "synthetic": _trace(SYNTHETIC, replace(MOONCAKE_ENGINE, prefill_tokens_per_second=9000.0)),
    "multi-turn": PrefixLoad(ENGINE, 225, lambda rng, engines, _: multi_turn(rng, 0.45 * engines)),
    "unsteady-chats": PrefixLoad(
        UNSTEADY_ENGINE,
        80,
        lambda rng, engines, requests: chats_in_a_row(rng, -(-8 * engines // 3), requests),
    ),
    "agents": PrefixLoad(ENGINE, 300, lambda rng, engines, _: agents(rng, 0.15 * engines)),
    "shared-prefixes": PrefixLoad(
        ENGINE,
        200,
        lambda rng, engines, requests: shared_prefixes(
            rng, GROUPS * engines, [rate * engines for rate in LADDER], requests // len(LADDER)
        ),
    ),
    "one-prefix": PrefixLoad(ENGINE, 200, lambda rng, engines, _: one_prefix(rng, 4.0 * engines)),
    "siblings": PrefixLoad(ENGINE, 100, lambda _rng, engines, _: siblings(8 * engines, 4.0)),
    "no-reuse": PrefixLoad(ENGINE, 200, lambda rng, engines, _: no_reuse(rng, 2.9 * engines)),
}
