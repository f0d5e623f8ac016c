"""When an engine that is waited for is given up on: one rule for relay, collector and simulator."""

from collections.abc import Callable
from dataclasses import dataclass

from router.core.values import Failure, FailureKind

__all__ = ["Patience", "given_up"]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds without a word from an engine until it is given up on."""

    first_byte: float
    """From the request to the first byte of the answer's body, of a stream to its first content, of
    a reply that the router reads itself to its end."""
    idle: float | None = None
    """Between two reads of a stream that hold more than comments; None: of use is only a whole
    reply."""

    @property
    def shortest(self) -> float:
        """The shorter one."""
        return self.first_byte if self.idle is None else min(self.first_byte, self.idle)


def given_up(
    patience: Patience,
    asked_at: float,
    heard_at: float | None,
    now: float,
    *,
    is_stalled: bool,
    may_leave: Callable[[], bool],
) -> Failure | None:
    """Why the engine is given up on; None while it is waited for.

    `heard_at`: when it last sent something that counts; None: nothing yet. `is_stalled`: it has
    stalled, and the client has had nothing but a head; then `may_leave` is asked whether the
    request can do without it.
    """
    limit, since, idle = patience.first_byte, asked_at, patience.idle
    if idle is not None and heard_at is not None:
        limit, since = idle, heard_at
    if now - since >= limit:
        late = f"The engine sent nothing for {limit:g} s."
        text = "The engine did not reply in time." if idle is None else late
        return Failure(FailureKind.TIMEOUT, text)
    if is_stalled and may_leave():
        return Failure(FailureKind.STALLED, "The engine has stalled.")
    return None
