"""What a client has not read of its answers, as charged to the budget of all connections."""

from typing import Final

from router.core.limits.byte_budget import ByteBudget

__all__ = ["FREE_UNREAD_BYTES", "UnreadAnswer"]

FREE_UNREAD_BYTES: Final = 512 << 10
"""Unread bytes of an answer that are not charged to the answer budget. A stream has at most 320 KiB
(the mark at which reading from the engine is paused, and one read); an answer that is sent as a
whole has up to 32 MiB."""


class UnreadAnswer:
    """The charge of one connection."""

    __slots__ = ("_budget", "_charged")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._charged = 0

    def charge(self, size: int) -> None:
        """Charge the unread bytes beyond `FREE_UNREAD_BYTES`, in place of the last charge."""
        charged = max(0, size - FREE_UNREAD_BYTES)
        if charged != self._charged:
            self._budget.add(charged - self._charged)
            self._charged = charged
