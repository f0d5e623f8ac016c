"""A budget for bytes that all connections hold together: of request bodies, or of answers."""

from router.core.errors import Overloaded

__all__ = ["ByteBudget"]


class ByteBudget:
    """Up to `limit` bytes at a time. It may be lowered: who holds more then may keep it."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes that are held now."""

    def check(self, size: int) -> None:
        """Raise Overloaded if `size` bytes more would not fit."""
        if self.held + size > self.limit:
            raise Overloaded("The router holds too many request bodies now.")

    def take(self, size: int) -> None:
        """Hold `size` bytes more. Raises Overloaded, and holds none, if they do not fit."""
        held = self.held + size
        if held > self.limit and size > 0:
            self.check(size)
        self.held = held

    def try_take(self, size: int) -> bool:
        """Hold `size` bytes more, if they fit; whether they did. Below 0 it gives some back."""
        held = self.held + size
        if held > self.limit and size > 0:
            return False
        self.held = held
        return True

    def add(self, size: int) -> None:
        """Hold `size` bytes more, which are there already: where they do not fit nothing else does
        until some are given back."""
        self.held += size

    def give(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.held -= size
