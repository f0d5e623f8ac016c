"""Sessions, agents and prompts with common beginnings. All are endless; rates are per second.

In a session, a request is sent a pause after the previous answer and begins with all previous text.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, count, islice, repeat
from random import Random

from router.simulator.virtual.loads.text import Text
from router.simulator.virtual.values import Lengths, Session, Turn

BLOCK_SIZE = 16
"""vLLM's default."""


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
