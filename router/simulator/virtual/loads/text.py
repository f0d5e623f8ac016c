"""Texts that grow and branch, represented by their lengths and the contents of their KV blocks."""

from collections.abc import Iterator

from router.simulator.virtual.values import Turn


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
