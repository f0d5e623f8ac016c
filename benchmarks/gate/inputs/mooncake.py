"""Mooncake's traces: when requests came, how long they were, and which blocks they shared.

Lines of `{"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}`. Equal ids become
equal text, so that prefix caches see the sharing. Texts are made on demand: a trace has
hundreds of megabytes of them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import orjson

from benchmarks.gate.inputs.datasets import Conversation, Dataset, Turn
from benchmarks.gate.inputs.jsonl import Malformed, Record, read, whole
from benchmarks.gate.inputs.prompts import WORDS
from benchmarks.gate.inputs.seeding import child

# Mooncake's own block.
BLOCK = 512
# Longer than any model's context: an invalid length.
LONGEST = 1 << 24


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace; `at` in seconds. `blocks` is None where no sharing is known."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None


class Trace(Sequence[Conversation]):
    """Rows as conversations of one turn, in order of their time."""

    def __init__(self, rows: Sequence[Row], seed: int, block: int) -> None:
        self._rows = sorted(rows, key=lambda row: row.at)
        self._seed, self._block = seed, block

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Conversation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Conversation]: ...
    def __getitem__(self, index: int | slice) -> Conversation | Sequence[Conversation]:
        if isinstance(index, slice):
            return [self._conversation(number) for number in range(len(self))[index]]
        return self._conversation(range(len(self))[index])

    @property
    def stamps(self) -> tuple[float, ...]:
        """When each begins, in seconds."""
        return tuple(row.at for row in self._rows)

    @property
    def checksum(self) -> str:
        """Of the source of the texts."""
        rows = orjson.dumps(self._rows)
        return hashlib.sha256(b"%d %d %b" % (self._seed, self._block, rows)).hexdigest()

    def _conversation(self, number: int) -> Conversation:
        row = self._rows[number]
        return Conversation((Turn(self._text(row, number), row.output_tokens),))

    def _text(self, row: Row, number: int) -> str:
        if row.blocks is None:
            return words(row.input_tokens, child(self._seed, f"dataset.row.{number}"))
        full = [words(self._block, child(self._seed, f"dataset.block.{n}")) for n in row.blocks]
        last = row.input_tokens - (len(full) - 1) * self._block
        full[-1] = " ".join(full[-1].split(" ", last)[:last])
        return " ".join(full)


def words(count: int, seed: int) -> str:
    """So many words, one token each. Fast: a request of a trace has tens of thousands."""
    # Two bytes a word: the first of WORDS come up more often by less than one in 300.
    drawn = hashlib.shake_128(str(seed).encode()).digest(2 * count)
    found = np.frombuffer(drawn, "<u2") % len(WORDS)
    return " ".join([WORDS[number] for number in found.tolist()])


def mooncake(path: Path, seed: int, *, most: int | None = None, block: int = BLOCK) -> Dataset:
    """The first `most` rows. Raises InvalidDataset."""
    trace = Trace(read(path, lambda record: row_of(record, block), most), seed, block)
    return Dataset(f"mooncake {path.name}", trace, trace.checksum, "words", stamps=trace.stamps)


def row_of(record: Record, block: int) -> Row:
    """Raises Malformed."""
    at = record.get("timestamp")
    if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < float("inf"):
        raise Malformed(f"timestamp: must be milliseconds, not {repr(at)[:40]}")
    length = whole(record, "input_length", 1)
    output = whole(record, "output_length", 1)
    if max(length, output) > LONGEST:
        raise Malformed(f"no request has more than {LONGEST} tokens")
    return Row(at / 1e3, length, output, _blocks(record.get("hash_ids"), length, block))


def _blocks(found: object, length: int, block: int) -> tuple[int, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise Malformed("hash_ids: not a list of whole numbers")
    needed = -(-length // block)
    if len(found) != needed:
        raise Malformed(
            f"hash_ids: {len(found)}, but input_length {length} is {needed} blocks of {block}"
        )
    return tuple(found)
