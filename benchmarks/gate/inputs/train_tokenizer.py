"""Train the bundled tokenizer again: `python -m benchmarks.gate.inputs.train_tokenizer [FILE]`.

The text is what CPython's standard library says about itself (docstrings and the language reference
in pydoc_data; PSF licence, which allows derived works), and the words of our own prompts. The file
is the same for the same version of Python, which its first line names.
"""

import ast
import hashlib
import heapq
import itertools
import platform
import sys
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from pydoc_data import topics

from benchmarks.gate.inputs.prompts import WORDS
from benchmarks.gate.inputs.tokenizer import BYTES, NAME, SPLIT, written

# Large enough that English takes about as many tokens as with a model's 100,000 and more; the file
# stays small.
SIZE = 8000
# What is seen less often than this is chance.
LEAST = 5
# Every word of our prompts becomes one token, with and without a space before it.
WORD_WEIGHT = 1000
NOT_DOCUMENTATION = frozenset({"site-packages", "test", "tests", "idle_test", "pydoc_data"})

Pair = tuple[bytes, bytes]


def docstrings(folder: Path) -> Iterator[str]:
    """Of every module, class and function below a folder, in order of their paths."""
    for path in sorted(folder.rglob("*.py")):
        if not NOT_DOCUMENTATION.isdisjoint(path.relative_to(folder).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def corpus() -> list[str]:
    """All texts."""
    with warnings.catch_warnings(action="ignore"):  # the library's own invalid escapes
        found = list(docstrings(Path(sysconfig.get_path("stdlib"))))
    return [*found, *(text for _, text in sorted(topics.topics.items()))]


def words(texts: Iterable[str]) -> Counter[bytes]:
    """How often each word occurs."""
    found: Counter[bytes] = Counter()
    for text in texts:
        found.update(word.encode() for word in SPLIT.findall(text))
    for word in WORDS:
        found[word.encode()] += WORD_WEIGHT
        found[b" " + word.encode()] += WORD_WEIGHT
    return found


class Trainer:
    """Byte-pair encoding: join the most frequent neighbours, again and again."""

    def __init__(self, counts: Mapping[bytes, int]) -> None:
        self._words = [[word[n : n + 1] for n in range(len(word))] for word in sorted(counts)]
        self._counts = [counts[word] for word in sorted(counts)]
        self._pairs: Counter[Pair] = Counter()
        self._where: defaultdict[Pair, set[int]] = defaultdict(set)
        for number in range(len(self._words)):
            self._add(number, 1)
        self._heap = [(-count, pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._heap)

    def train(self, size: int) -> list[bytes]:
        """The vocabulary: every byte, then the merges, in order."""
        pieces = dict.fromkeys(bytes([number]) for number in BYTES)
        while len(pieces) < size and (pair := self._most_frequent()) is not None:
            pieces[pair[0] + pair[1]] = None
            self._join(pair)
        return list(pieces)

    def _most_frequent(self) -> Pair | None:
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            now = self._pairs[pair]
            if now == -count:
                return pair if now >= LEAST else None
            if now:
                heapq.heappush(self._heap, (-now, pair))
        return None

    def _add(self, number: int, sign: int) -> set[Pair]:
        """Count a word's pairs, or (with -1) no longer count them."""
        word, found = self._words[number], set()
        for pair in itertools.pairwise(word):
            self._pairs[pair] += sign * self._counts[number]
            found.add(pair)
        for pair in found:
            if sign > 0:
                self._where[pair].add(number)
            else:
                self._where[pair].discard(number)
        return found

    def _join(self, pair: Pair) -> None:
        changed: set[Pair] = set()
        for number in sorted(self._where[pair]):
            self._add(number, -1)
            self._words[number] = joined(self._words[number], pair)
            changed |= self._add(number, 1)
        for each in changed:
            heapq.heappush(self._heap, (-self._pairs[each], each))


def joined(word: list[bytes], pair: Pair) -> list[bytes]:
    """The word with every occurrence of the pair as one piece."""
    found: list[bytes] = []
    for piece in word:
        if found and (found[-1], piece) == pair:
            found[-1] += piece
        else:
            found.append(piece)
    return found


def main(path: Path) -> None:
    """Train, and write the file."""
    counts = words(corpus())
    digest = hashlib.sha256(repr(sorted(counts.items())).encode()).hexdigest()[:16]
    vocabulary = Trainer(counts).train(SIZE)
    about = (
        f"Byte-level BPE by benchmarks/gate/inputs/train_tokenizer.py from the documentation of "
        f"CPython {platform.python_version()}'s standard library (PSF licence); text {digest}"
    )
    path.write_text(written(vocabulary, about), encoding="ascii")
    print(f"{path}: {len(vocabulary)} pieces, {path.stat().st_size} bytes, {sum(counts.values())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / NAME)
