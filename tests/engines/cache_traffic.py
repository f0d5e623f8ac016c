"""Requests of token ids for a KV cache of 256 blocks of 32 tokens, which is too small for them.

Pure, and the same in every run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.engines.fleet import BLOCK_SIZE

__all__ = ["LOADS", "Turn", "turns", "waves"]

LOADS = ("chats", "shared", "unshared", "large", "repeats")
CHATS, TURNS = 24, 5
FIRST_ID, LAST_ID = 3, 127
"""Token ids that both engines know: those of the tiny model begin with three special ones, and the
simulator's with ASCII characters."""


@dataclass(frozen=True)
class Turn:
    """A request: its whole chat, and these tokens."""

    chat: str
    tokens: tuple[int, ...]
    answer: int
    """Number of tokens to generate."""


def turns(load: str) -> list[Turn]:
    """The requests of a load, to be sent one after the other."""
    return list(_MADE[load](Random(load)))


def waves(count: int) -> Iterator[list[Turn]]:
    """Chats, so many at once; their next turns follow when all are answered."""
    left = list(_chats(Random("waves"), "waves"))
    while left:
        wave: dict[str, Turn] = {}
        for turn in left:
            if len(wave) < count:
                wave.setdefault(turn.chat, turn)
        left = [turn for turn in left if wave.get(turn.chat) is not turn]
        yield list(wave.values())


def _tokens(chance: Random, count: int) -> tuple[int, ...]:
    return tuple(chance.choices(range(FIRST_ID, LAST_ID + 1), k=count))


def _chats(chance: Random, name: str = "chats") -> Iterator[Turn]:
    """Chats that continue in any order, and together are twice the cache."""
    left = [number for number in range(CHATS) for _ in range(TURNS)]
    chance.shuffle(left)
    for number in left:
        tokens = _tokens(chance, chance.randint(20, 180))
        yield Turn(f"{name} {number}", tokens, chance.randint(1, 70))


def _shared(chance: Random) -> Iterator[Turn]:
    """Beginnings of one and a half times the cache, each with many continuations."""
    beginnings = [_tokens(chance, length) for length in (640, 1000, 1600, 2500, 3200, 3600)]
    for number in range(80):
        tokens = chance.choice(beginnings) + _tokens(chance, chance.randint(1, 250))
        yield Turn(f"shared {number}", tokens, chance.randint(1, 40))


def _unshared(chance: Random) -> Iterator[Turn]:
    """Prompts that have nothing in common."""
    for number in range(40):
        tokens = _tokens(chance, chance.randint(1, 900))
        yield Turn(f"unshared {number}", tokens, chance.randint(1, 40))


def _large(chance: Random) -> Iterator[Turn]:
    """Prompts of more than half of the cache, of which one evicts the other, and small ones."""
    large = [_tokens(chance, length) for length in (4200, 5000, 6016)]
    small = [_tokens(chance, length) for length in (400, 700)]
    for number in range(24):
        tokens = chance.choice(large) if number % 2 else chance.choice(small)
        tokens = tokens[: chance.choice((len(tokens), len(tokens), len(tokens) // 2))]
        yield Turn(f"large {number}", tokens + _tokens(chance, 5), chance.randint(1, 10))


def _repeats(chance: Random) -> Iterator[Turn]:
    """Prompts that come again, at exact multiples of a block and beside them: an engine computes
    the last token again, and so the last block."""
    lengths = [BLOCK_SIZE * blocks + more for blocks in (1, 2, 5, 12, 30) for more in (-1, 0, 1)]
    prompts = [_tokens(chance, length) for length in lengths]
    for number in range(150):
        tokens = chance.choice(prompts)
        if chance.random() < 0.2:
            tokens = _tokens(chance, BLOCK_SIZE * chance.randint(8, 64))
        yield Turn(
            f"repeats {number}", tokens, chance.choice((1, 1, 2, BLOCK_SIZE, BLOCK_SIZE + 1))
        )


_MADE = {
    "chats": _chats,
    "shared": _shared,
    "unshared": _unshared,
    "large": _large,
    "repeats": _repeats,
}
