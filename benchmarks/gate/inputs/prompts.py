"""The pinned prompts: N texts of exactly so many tokens, the same bytes for the same seed.

Pure, except `counted`, which uses the server's tokenizer if it offers one. Texts are common
English words of three letters: one token each, space included, in the byte-pair vocabularies of
today's models, and four characters.
"""

import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_WORDS = """
act add age ago aid aim air all and any arm art ask bad bag ban bar bat bed bet big bit box boy
bus but buy can cap car cat cup cut day did die dog dry due eat egg end eye far few fit fix fly
for fun gap gas get got gun guy had has hat her him his hit hot how ice its job key kid law lay
led leg let lie lot low man map may men met mix net new nor not now off oil old one our out own
pay per pop put ran raw red rid row run sat saw say sea see set she sit six sky son sun tax tea
ten the tie tip too top try two use van war was way who why win yes yet you
"""
WORDS = tuple(_WORDS.split())
# Of one token or few in any vocabulary.
FILLERS = ("the", "a", "I", "one", "is", "x", ".", "to", "7", "e")
# Prompts of common words are right at once, or miss by a few words.
TRIES = 100

Count = Callable[[str], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts, and how their tokens were counted: "tokenize"; None: estimated by words."""

    texts: tuple[str, ...]
    tokens: int
    counted_by: str | None = None

    @property
    def checksum(self) -> str:
        """Of all bytes in order: equal checksums are equal inputs."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()


def check(count: int, tokens: int) -> None:
    """Raises ValueError where so few words have not so many orders."""
    if len(WORDS) ** tokens < 2 * count:
        raise ValueError(f"no {count} distinct prompts of {tokens} tokens")


def build(count: int, tokens: int, seed: int) -> Prompts:
    """`count` distinct texts of `tokens` words. Raises ValueError where so few words have not so
    many orders."""
    check(count, tokens)
    # The child seed as AIPerf derives its own (reference 2.5): another use of the seed is another
    # sequence.
    digest = hashlib.sha256(f"{seed}:dataset.prompt".encode()).digest()
    chance = random.Random(int.from_bytes(digest[:8], "big"))
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[" ".join(_word(chance) for _ in range(tokens))] = None
    return Prompts(tuple(texts), tokens)


def _word(chance: random.Random) -> str:
    # Only random() is promised to stay the same from one Python to the next.
    return WORDS[int(chance.random() * len(WORDS))]


async def counted(prompts: Prompts, count: Count) -> Prompts:
    """The same with every text at exactly `tokens` by the server's tokenizer.

    Unchanged, without a count, if `count` returns None. Raises ValueError if no number of words
    gives that count.
    """
    texts: list[str] = []
    for text in prompts.texts:
        exact = await fitted(text, prompts.tokens, count)
        if exact is None:
            return prompts
        texts.append(exact)
    return Prompts(tuple(texts), prompts.tokens, "tokenize")


async def fitted(text: str, tokens: int, count: Count) -> str | None:
    """Cut down to no more than `tokens`, then filled up word by word, or letter by letter where a
    word is more than is missing. None where `count` does not know. Raises ValueError as `counted`.
    """
    words = text.split(" ")
    found = await count(text)
    for number in range(TRIES):
        if found is None:
            return None
        if found == tokens:
            return " ".join(words)
        if found > tokens:
            words = words[: min(len(words) - 1, len(words) * tokens // found)]
            found = await count(" ".join(words)) if words else 0
            continue
        more = FILLERS[number % len(FILLERS)]
        longer = await count(" ".join([*words, more]))
        if longer is not None and longer <= tokens:
            words.append(more)
            found = longer
    raise ValueError(f"no text of {tokens} tokens by the server's tokenizer after {TRIES} tries")
