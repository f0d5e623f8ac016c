"""Requests cancelled by their client, and the time: users that close the page.

Pure: a rule on the request's number alone, so it is the same in any process and order.
"""

from dataclasses import dataclass

from benchmarks.gate.inputs.seeding import draw


@dataclass(frozen=True, slots=True)
class Cancellations:
    """A `share` of all requests is cancelled `after` seconds from its sending."""

    share: float = 0.0
    after: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError("cancel share must be from 0 to 1")
        if not 0 <= self.after < float("inf"):
            raise ValueError("cancel after must be 0 or more seconds")

    def after_of(self, number: int) -> float | None:
        """Seconds after which this request is cancelled; None: never."""
        if self.share and draw(self.seed, f"cancel.{number}") < self.share:
            return self.after
        return None
