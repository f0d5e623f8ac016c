"""By what it was known how much of an engine's prompts its prefix cache held, and how many tokens
it was given to compute although another engine held them."""

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["EVENTS", "HISTORY", "NOTHING", "KnownBy", "KnownPrefix", "PrefixCoverage"]


class KnownBy(StrEnum):
    """What told how much of a prompt an engine's prefix cache holds."""

    EVENTS = "events"
    """Its KV-cache events."""
    HISTORY = "history"
    """What was sent there before."""
    NOTHING = "nothing"
    """Neither: events tell nothing, or the engine finds less than half of what is predicted."""


# Python 3.11 looks an Enum's members up in a slow way: the path of a request uses these names.
EVENTS: Final = KnownBy.EVENTS
HISTORY: Final = KnownBy.HISTORY
NOTHING: Final = KnownBy.NOTHING


class KnownPrefix(NamedTuple):
    """What is known of one prompt in an engine's prefix cache."""

    held: int
    """Estimated tokens of the prompt, those that requests under way are computing included."""
    trust: float
    """The share of `held`, 0 to 1, that counts."""
    known_by: KnownBy


class PrefixCoverage:
    """Totals, in estimated tokens, of the prompts that one engine was given to compute."""

    __slots__ = ("by_events", "by_history", "by_nothing", "regret")

    def __init__(self) -> None:
        self.by_events = 0
        """Tokens of the prompts of which its KV-cache events told what it held."""
        self.by_history = 0
        """Those of which what was sent there before told it."""
        self.by_nothing = 0
        """Those of which neither did, or not dependably."""
        self.regret = 0
        """Tokens that were to be computed there although another candidate held them: what the
        engine did not hold, less what the candidate that held most did not."""

    def add(self, tokens: int, known_by: KnownBy, regret: int) -> None:
        """Count a prompt."""
        self.regret += regret
        if known_by is HISTORY:
            self.by_history += tokens
        elif known_by is EVENTS:
            self.by_events += tokens
        else:
            self.by_nothing += tokens

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of the prompts by what was known of them."""
        return {
            "events": self.by_events,
            "history": self.by_history,
            "nothing": self.by_nothing,
        }

    @property
    def blind_share(self) -> float | None:
        """The share of these tokens of which nothing dependable was known; None: no prompts yet."""
        total = self.by_events + self.by_history + self.by_nothing
        return self.by_nothing / total if total else None
