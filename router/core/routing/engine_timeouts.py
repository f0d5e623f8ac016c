"""When an engine that sends nothing has timed out: one rule for engine legs and the simulator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from router.core.values import Failure, FailureKind

__all__ = ["STALLED", "EngineTimeouts", "timeout_failure"]

STALLED: Final = Failure(FailureKind.STALLED, "The engine has stalled.")


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """Time-outs for an engine, in seconds."""

    first_byte: float
    """From the request to the first byte of the body; for a stream to its first content, for a
    reply that the router reads itself to its end."""
    idle: float | None = None
    """Between two reads of a stream, not counting comments. None if only a complete reply is of
    use."""

    @property
    def shortest(self) -> float:
        """The shorter one."""
        return self.first_byte if self.idle is None else min(self.first_byte, self.idle)


def timeout_failure(
    timeouts: EngineTimeouts,
    asked_at: float,
    heard_at: float | None,
    now: float,
    *,
    is_stalled: bool,
    may_leave: Callable[[], bool],
) -> Failure | None:
    """The failure of an engine that has timed out or stalled; None while it is waited for.

    `heard_at`: when it last sent data other than comments; None if it has not. `is_stalled`: the
    engine has stalled, and the client has received at most a head; then `may_leave` returns whether
    another engine could take the request.
    """
    limit, since, idle = timeouts.first_byte, asked_at, timeouts.idle
    if idle is not None and heard_at is not None:
        limit, since = idle, heard_at
    if now - since >= limit:
        late = f"The engine sent nothing for {limit:g} s."
        text = "The engine did not reply in time." if idle is None else late
        return Failure(FailureKind.TIMEOUT, text)
    if is_stalled and may_leave():
        return STALLED
    return None
