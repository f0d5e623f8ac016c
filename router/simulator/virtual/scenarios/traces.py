"""Sessions with the contents of their KV blocks: texts that grow and branch, traces in Mooncake's
format, and synthetic ones with the same statistics.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice
from random import Random
from typing import Any

import orjson

from router.simulator.virtual.values import Lengths, Session, Turn


class Text:
    """A text, represented by its number of tokens and a number for each full block that only equal
    texts share.

    `numbers` yields the numbers; all texts of a load share it.
    """

    __slots__ = ("_numbers", "_size", "contents", "tokens")

    def __init__(self, numbers: Iterator[int], block_size: int, tokens: int = 0) -> None:
        self._numbers = numbers
        self._size = block_size
        self.contents: tuple[int, ...] = ()
        self.tokens = 0
        self.grow(tokens)

    def grow(self, tokens: int) -> None:
        """Append tokens."""
        self.tokens += tokens
        new = self.tokens // self._size - len(self.contents)
        self.contents += tuple(next(self._numbers) for _ in range(new))

    def branch(self, tokens: int = 0) -> "Text":
        """Create another text with this one as its beginning. Only full blocks are shared."""
        other = Text(self._numbers, self._size)
        other.tokens, other.contents = self.tokens, self.contents
        other.grow(tokens)
        return other

    def turn(self, output: int, pause: float = 0.0) -> Turn:
        """A request with this text as its prompt. The answer is appended to the text."""
        prompt = self.tokens
        self.grow(output)
        return Turn(prompt, output, self.contents, pause)


TRACE_BLOCK_SIZE = 512
"""Tokens of a block in Mooncake's format."""


class TraceError(Exception):
    """A line is invalid."""


def sessions(
    lines: Iterable[bytes], *, time_scale: float = 1.0, limit: int | None = None
) -> Iterator[Session]:
    """Yields a session of one request for each line, at its own time. Raises TraceError.

    `time_scale`: factor on all times; 0.5 doubles the load. `limit`: the most requests.
    """
    for number, line in enumerate(islice(lines, limit), 1):
        try:
            yield _session(orjson.loads(line), time_scale)
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"line {number}: {type(error).__name__}: {error}") from None


def _session(row: dict[str, Any], time_scale: float) -> Session:
    prompt, output = int(row["input_length"]), int(row["output_length"])
    if prompt < 1:
        raise ValueError("input_length is below 1")
    # The last block may be partly filled; like vLLM's, the cache keeps only full ones.
    contents = tuple(map(int, row["hash_ids"][: prompt // TRACE_BLOCK_SIZE]))
    at = float(row["timestamp"]) / 1000 * time_scale
    return Session(at, (Turn(prompt, max(1, output), contents),))


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
    common=TRACE_BLOCK_SIZE,
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
    common = Text(numbers, TRACE_BLOCK_SIZE, given.common)
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
