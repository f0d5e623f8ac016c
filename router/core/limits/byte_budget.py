"""A budget for the bytes that all connections together hold in memory: of bodies, or of answers."""

from router.core.errors import Overloaded

__all__ = ["ByteBudget"]


class ByteBudget:
    """Up to `limit` bytes at a time. It may be lowered; bytes already held are kept."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes currently held."""

    def check(self, size: int) -> None:
        """Raise Overloaded if `size` more bytes do not fit."""
        if self.held + size > self.limit:
            raise Overloaded("The router holds too many request bodies now.")

    def take(self, size: int) -> None:
        """Reserve `size` bytes. Raises Overloaded, and reserves nothing, if they do not fit."""
        held = self.held + size
        if held > self.limit and size > 0:
            self.check(size)
        self.held = held

    def try_take(self, size: int) -> bool:
        """Reserve `size` bytes if they fit, and return whether they did. A negative size always
        fits and releases bytes."""
        held = self.held + size
        if held > self.limit and size > 0:
            return False
        self.held = held
        return True

    def add(self, size: int) -> None:
        """Count `size` bytes that are already in memory, even beyond the limit; then nothing else
        fits until enough are released."""
        self.held += size

    def give(self, size: int) -> None:
        """Release `size` bytes."""
        self.held -= size
