"""Synthetic traces of conversations with the statistics of Mooncake's traces.

Open loop: the next prompt of a conversation is sent at its time, whether the answer has arrived or
not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random

from router.simulator.virtual.loads.mooncake import BLOCK_SIZE
from router.simulator.virtual.loads.text import Text
from router.simulator.virtual.values import Lengths, Session


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a trace."""

    continues: float
    """The share of prompts that are followed by another one of the same conversation."""
    opening: Lengths
    """Tokens of the first prompt."""
    growth: Lengths
    """Tokens that a prompt has more than the previous one."""
    output: Lengths
    pause_median: float
    """Median seconds between two prompts of a conversation."""
    pause_sigma: float
    """Standard deviation of the pause's logarithm."""
    common: int
    """Number of tokens that all prompts have in common at the beginning."""
    requests_per_second: float
    tick_seconds: float = 0.0
    """Timestamps are multiples of it; 0: any time."""


CONVERSATION = Statistics(
    continues=0.37,
    opening=Lengths(5600, 1.17, 110_000),
    growth=Lengths(700, 1.5, 20_000),
    output=Lengths(240, 0.9, 2000),
    pause_median=123.0,
    pause_sigma=1.1,
    common=BLOCK_SIZE,
    requests_per_second=3.4,
    tick_seconds=3.0,
)
"""36.6 % of the blocks are repeated; prompts p50/p90/p99 6.9k/27k/85k tokens."""

SYNTHETIC = Statistics(
    continues=0.755,
    opening=Lengths(11_000, 0.8, 120_000),
    growth=Lengths(250, 1.0, 4000),
    output=Lengths(90, 1.0, 1000),
    pause_median=64.0,
    pause_sigma=1.4,
    common=0,
    requests_per_second=4.3,
)
"""64 % of the blocks are repeated; prompts p50/p90/p99 11.6k/38.6k/66k tokens."""


def conversations(rng: Random, statistics: Statistics, requests: int) -> list[Session]:
    """The given number of requests, each a session of its own, in order of time."""
    drawn: list[Session] = []
    coming: list[tuple[float, int, Session]] = []
    """The prompts of conversations that have begun; those with equal times in order of their
    numbers."""
    numbers = count()
    begun = _begun(rng, statistics, count())
    while len(drawn) < requests:
        start, prompts = next(begun)
        while coming and coming[0][0] < start:
            drawn.append(heappop(coming)[2])
        for session in prompts:
            heappush(coming, (session.at, next(numbers), session))
    return drawn[:requests]


def _begun(
    rng: Random, given: Statistics, numbers: Iterator[int]
) -> Iterator[tuple[float, list[Session]]]:
    """Yields the prompts of one conversation after the other, with their times as in the trace. The
    conversations' starts are a Poisson process."""
    common = Text(numbers, BLOCK_SIZE, given.common)
    start = 0.0
    while True:
        start += rng.expovariate(given.requests_per_second * (1 - given.continues))
        at, text = start, common.branch(given.opening.draw(rng))
        prompts = []
        while True:
            when = at // given.tick_seconds * given.tick_seconds if given.tick_seconds else at
            prompts.append(Session(when, (text.branch().turn(given.output.draw(rng)),)))
            if rng.random() >= given.continues:
                break
            at += rng.lognormvariate(0.0, given.pause_sigma) * given.pause_median
            text.grow(given.growth.draw(rng))
        yield prompts[0].at, prompts
