"""Texts of an exact number of tokens, if there is a tokenizer to count them.

What we make up is of words that are one token each nearly everywhere; a question to the server for
each text makes it certain.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

# Each is a question to the server.
MOST_COUNTED = 1000

T = TypeVar("T")


async def exact(made: T, texts: int, fit: Callable[[T], Awaitable[T]]) -> tuple[T, str]:
    """Fitted texts, by `fit` if possible, and the source of the count, for display.

    `fit` returns `made` itself without a tokenizer, and raises ValueError if it cannot be done.
    """
    if texts > MOST_COUNTED:
        return made, "counted as words, they are too many to ask the server"
    try:
        found = await fit(made)
    except ValueError as error:
        return made, f"counted as words: {error}"
    if found is made:
        return made, "counted as words, the server does not count tokens"
    return found, "counted by the server"
