"""Data sets: conversations of one or more turns, synthetic or read from files.

Pure nouns, and the synthetic ones. The same options and seed give the same bytes, which the
checksum proves.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import orjson

from benchmarks.gate.inputs import prompts
from benchmarks.gate.inputs.seeding import child, numbers

SYNTHETIC = "synthetic"


class InvalidDataset(ValueError):
    """An invalid data set; the text names the file and the line, or the option."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the user's text, the maximum length of the answer, and the user's think time in
    seconds after the answer before. None is the default."""

    text: str
    output_tokens: int | None = None
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that build on each other."""

    turns: tuple[Turn, ...]
    system: str | None = None

    def messages(self, turn: int, answers: Sequence[str] = ()) -> list[dict[str, str]]:
        """The messages of a turn, with all earlier ones."""
        found = [] if self.system is None else [{"role": "system", "content": self.system}]
        for said, answer in zip(self.turns[:turn], answers, strict=True):
            found.append({"role": "user", "content": said.text})
            found.append({"role": "assistant", "content": answer})
        return [*found, {"role": "user", "content": self.turns[turn].text}]


@dataclass(frozen=True, slots=True)
class Dataset:
    """All conversations: of `longest` turns at most and `mean_turns` on average, with or without
    `thinks`, a pause between turns. A trace has `stamps`, the seconds at which each begins, in
    order.

    Equal checksums are equal inputs. `counted_by` is the source of token counts: "words" (one
    token each), the "bundled" tokenizer, or the server ("tokenize").
    """

    name: str
    conversations: Sequence[Conversation]
    checksum: str
    counted_by: str
    longest: int = 1
    mean_turns: float = 1.0
    thinks: bool = False
    stamps: tuple[float, ...] | None = None


def checksum(conversations: Iterable[Conversation]) -> str:
    """Of all sent data."""
    found = hashlib.sha256()
    for each in conversations:
        found.update(orjson.dumps(each))
    return found.hexdigest()


def dataset(name: str, found: Sequence[Conversation], counted_by: str) -> Dataset:
    """Of conversations that are all there, one at least."""
    turns = [len(each.turns) for each in found]
    mean = sum(turns) / len(turns)
    thinks = any(turn.think for each in found for turn in each.turns)
    return Dataset(name, found, checksum(found), counted_by, max(turns), mean, thinks)


@dataclass(frozen=True, slots=True)
class Shape:
    """Made-up conversations. Tokens are of each turn; deviations are standard deviations.

    `prefixes` different texts of `prefix_tokens` come before the conversations' own, in turn: what
    a prefix cache lives on. `think` is in seconds, exponential if `think_varies`.
    """

    conversations: int = 100
    input_tokens: int = 128
    input_deviation: float = 0.0
    output_tokens: int = 128
    output_deviation: float = 0.0
    turns: int = 1
    think: float = 0.0
    think_varies: bool = False
    prefixes: int = 0
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        least_one = {"conversations", "input_tokens", "output_tokens", "turns"}
        for field in fields(self):
            least = 1 if field.name in least_one else 0
            if not least <= getattr(self, field.name) < float("inf"):
                raise InvalidDataset(f"{field.name}: must be at least {least}")
        if bool(self.prefixes) != bool(self.prefix_tokens):
            raise InvalidDataset("prefixes and prefix_tokens: one is nothing without the other")


def synthetic(shape: Shape, seed: int) -> Dataset:
    """The conversations of a shape. Raises InvalidDataset.

    With one turn, no prefix and no deviation these are the pinned prompts themselves.
    """
    count = shape.conversations * shape.turns
    inputs = _lengths(shape.input_tokens, shape.input_deviation, count, seed, "input")
    outputs = _lengths(shape.output_tokens, shape.output_deviation, count, seed, "output")
    thinks = _thinks(shape, count, seed)
    texts = _texts(count, max(inputs), seed)
    turns = [
        Turn(_cut(text, length), output, think)
        for text, length, output, think in zip(texts, inputs, outputs, thinks, strict=True)
    ]
    prefixes = _prefixes(shape, seed)
    found = tuple(
        _conversation(turns[number * shape.turns : (number + 1) * shape.turns], prefixes, number)
        for number in range(shape.conversations)
    )
    return dataset(SYNTHETIC, found, "words")


async def counted(found: Dataset, count: prompts.Count) -> Dataset:
    """The same with every turn at exactly as many tokens as it has words, by the server's
    tokenizer. `found` itself where `count` does not know. Raises ValueError if no number
    of words gives that count.

    Only the ends of turns differ: their beginnings stay common prefixes.
    """
    conversations: list[Conversation] = []
    for each in found.conversations:
        turns: list[Turn] = []
        for turn in each.turns:
            text = await prompts.fitted(turn.text, len(turn.text.split(" ")), count)
            if text is None:
                return found
            turns.append(replace(turn, text=text))
        conversations.append(replace(each, turns=tuple(turns)))
    return replace(
        found,
        conversations=tuple(conversations),
        checksum=checksum(conversations),
        counted_by="tokenize",
    )


def _conversation(turns: Sequence[Turn], prefixes: Sequence[str], number: int) -> Conversation:
    first = Turn(turns[0].text, turns[0].output_tokens)  # no think time before the first
    if prefixes:
        first = Turn(f"{prefixes[number % len(prefixes)]} {first.text}", first.output_tokens)
    return Conversation((first, *turns[1:]))


def _prefixes(shape: Shape, seed: int) -> Sequence[str]:
    if not shape.prefixes:
        return ()
    return _texts(shape.prefixes, shape.prefix_tokens, child(seed, "dataset.prefix"))


def _texts(count: int, tokens: int, seed: int) -> Sequence[str]:
    try:
        return prompts.build(count, tokens, seed).texts
    except ValueError as error:
        raise InvalidDataset(str(error)) from None


def _cut(text: str, tokens: int) -> str:
    """The first so many words, one token each."""
    return " ".join(text.split(" ", tokens)[:tokens])


def _lengths(mean: int, deviation: float, count: int, seed: int, name: str) -> list[int]:
    if not deviation:
        return [mean] * count
    drawn = numbers(seed, f"dataset.{name}").normal(mean, deviation, count)
    return [max(1, round(each)) for each in drawn.tolist()]


def _thinks(shape: Shape, count: int, seed: int) -> list[float]:
    if not (shape.think and shape.think_varies):
        return [float(shape.think)] * count
    drawn: list[float] = numbers(seed, "dataset.think").exponential(shape.think, count).tolist()
    return drawn
