"""A small byte-level BPE of our own, for counting tokens where the server sends no usage.

`tokenizer.txt` was trained by `train_tokenizer` on the documentation of Python's standard library:
English, some code. With 8,000 pieces a text has 1.25 to 1.4 times the tokens that GPT-4's 100,000
make of it, and more in other languages; the words of our prompts are one token in both. It is for
counting after a run.
"""

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

# The splits of GPT-4's and Qwen's tokenizers, in what `re` knows. Runs are cut at 64 characters, so
# that a text without spaces costs no more than one with them.
SPLIT = re.compile(
    r"'(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)"  # endings of English verbs
    r"|(?:[^\r\n\w]|_)?[^\W\d_]{1,64}"  # a word, with the one sign or space before it
    r"|\d{1,3}"
    r"| ?(?:[^\s\w]|_){1,64}[\r\n]{0,16}"  # punctuation
    r"|\s{0,64}[\r\n]{1,16}"
    r"|\s{1,64}(?!\S)"
    r"|\s{1,64}",
)
# Words with a remembered count; a run of English has far fewer.
KNOWN_LIMIT = 200_000
NAME = "tokenizer.txt"


class Tokenizer:
    """`vocabulary` is in the order of learning; the 256 single bytes are in it."""

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self._pieces = tuple(vocabulary)
        self._ranks = {piece: rank for rank, piece in enumerate(vocabulary)}
        self._known: dict[str, int] = {}
        if len(self._ranks) != len(vocabulary) or not all(bytes([n]) in self._ranks for n in BYTES):
            raise ValueError("a vocabulary has every byte, and everything once")

    def __len__(self) -> int:
        return len(self._pieces)

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        known, total = self._known, 0
        for word in SPLIT.findall(text):
            number = known.get(word)
            if number is None:
                number = sum(1 for _ in self._merged(word))
                if len(known) < KNOWN_LIMIT:
                    known[word] = number
            total += number
        return total

    def encode(self, text: str) -> list[int]:
        """Its tokens."""
        return [self._ranks[piece] for word in SPLIT.findall(text) for piece in self._merged(word)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text again. Raises UnicodeDecodeError where tokens were cut within a character."""
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", "surrogatepass")

    def _merged(self, word: str) -> Iterator[bytes]:
        """Join the neighbours that were learnt first until none were learnt."""
        data = word.encode("utf-8", "surrogatepass")
        if data in self._ranks:
            return iter((data,))
        pieces, ranks = [data[n : n + 1] for n in range(len(data))], self._ranks
        while len(pieces) > 1:
            best, where = min(
                (ranks.get(pieces[n] + pieces[n + 1], UNKNOWN), n) for n in range(len(pieces) - 1)
            )
            if best == UNKNOWN:
                break
            pieces[where : where + 2] = [pieces[where] + pieces[where + 1]]
        return iter(pieces)


BYTES = range(256)
UNKNOWN = 1 << 30


def written(vocabulary: Sequence[bytes], about: str) -> str:
    """A vocabulary as text: one piece a line, escaped, after a line with its source."""
    lines = [piece.decode("latin-1").encode("unicode_escape").decode() for piece in vocabulary]
    return "\n".join([f"# {about}", *(line.replace(" ", r"\x20") for line in lines), ""])


def parsed(text: str) -> tuple[bytes, ...]:
    """The vocabulary again."""
    _, *lines = text.splitlines()
    return tuple(line.encode().decode("unicode_escape").encode("latin-1") for line in lines)


def bundled() -> Tokenizer:
    """The one that comes with this package."""
    text = files("benchmarks.gate.inputs").joinpath(NAME).read_text(encoding="ascii")
    return Tokenizer(parsed(text))
