"""What the holder of an API key may take: requests and tokens per minute, and streams at a time.

Rates are token buckets of a minute's worth. A request is let in while there is one in them, of
requests or of tokens, and may leave them in debt, which is paid before the next one: so no request
is too large for ever.
"""

import math
from dataclasses import dataclass
from typing import Final

from router.core.errors import LimitReached
from router.core.limits.key_usage_table import KeyCells, own_cells

__all__ = ["NO_LIMITS", "KeyLimits", "KeyUsage"]

MINUTE: Final = 60.0
"""Seconds."""

ROUNDING: Final = 1e-6
"""Seconds that sums of taken amounts may be off."""

LINES: Final = (
    b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %ds\r\n"
)
"""What answers say of a limit, as OpenAI's do; `reset` is when nothing of it is taken any more."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """None limits nothing."""

    requests: float | None = None
    """Per minute."""
    tokens: float | None = None
    """Of prompts, as estimated, and of their answers, per minute."""
    streams: int | None = None
    """At a time."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is limited: requests, tokens, streams."""
        of = {"requests": self.requests, "tokens": self.tokens, "streams": self.streams}
        return tuple(kind for kind, limit in of.items() if limit is not None)

    def share(self, processes: int) -> "KeyLimits":
        """What one of so many processes allows."""
        return KeyLimits(
            None if self.requests is None else self.requests / processes,
            None if self.tokens is None else self.tokens / processes,
            None if self.streams is None else -(-self.streams // processes),
        )


NO_LIMITS: Final = KeyLimits()


class _Bucket:
    """Holds up to `per_minute`, which flows in within a minute, whichever process takes it. Times
    are seconds of one clock; amounts are counted by the seconds in which they flow in.

    At `now` it has in it `MINUTE + now - taken - peak`, at most MINUTE, where `peak` is the highest
    that `now - taken` was when something was about to be taken. Each process notes what it took and
    the peaks that it saw: the sum and the highest of all are as if there were only one process.
    """

    __slots__ = ("_mine", "_peaks", "_per_minute", "_taken", "_unit")

    def __init__(self, taken: "memoryview[float]", peaks: "memoryview[float]", mine: int) -> None:
        self._taken = taken
        self._peaks = peaks
        self._mine = mine
        self._per_minute = math.inf
        self._unit = 0.0
        """Seconds in which one flows in."""

    def configure(self, per_minute: float | None) -> None:
        """Hold so much from now on; the share of it that is taken, or a debt, remains."""
        self._per_minute = math.inf if per_minute is None else per_minute
        self._unit = MINUTE / self._per_minute

    def _level(self, now: float) -> float:
        """Seconds' worth that is in it."""
        return min(MINUTE, MINUTE + now - sum(self._taken) - max(self._peaks))

    def wait(self, now: float) -> float:
        """Seconds until something may be taken; 0 or less if it may be now."""
        if self._unit == 0.0:
            return 0.0
        # A process's share of a minute may be less than one.
        return min(self._unit, MINUTE) - self._level(now) - ROUNDING

    def take(self, amount: int, now: float) -> None:
        """It is taken."""
        if self._unit == 0.0:
            return
        mine = self._mine
        # First the peak: a process that reads in between sees nothing else than before.
        self._peaks[mine] = max(self._peaks[mine], now - sum(self._taken))
        self._taken[mine] += amount * self._unit

    def header_lines(self, what: bytes, now: float) -> bytes:
        """What answers say of it; nothing if it holds anything."""
        if self._unit == 0.0:
            return b""
        level = self._level(now) + ROUNDING
        left = max(0, math.floor(level / self._unit))
        reset = max(0, math.ceil(MINUTE - level))
        return LINES % (what, self._per_minute, what, left, what, reset)


class KeyUsage:
    """What was taken with a key, or the keys of one name, by all processes that share `cells`."""

    __slots__ = ("_cells", "_limits", "_requests", "_tokens", "is_shared")

    def __init__(self, limits: KeyLimits, cells: KeyCells | None = None) -> None:
        self._cells = own_cells()
        self._use(cells or self._cells)
        self.is_shared = cells is not None
        """Whether other processes may write to the cells too."""
        self.configure(limits)

    def share(self, limits: KeyLimits, cells: KeyCells) -> None:
        """Keep to these limits together with those that write to `cells`. What was taken per minute
        is forgotten; streams are still counted."""
        cells.streams[cells.mine] += self._cells.streams[self._cells.mine]
        self._use(cells)
        self.is_shared = True
        self.configure(limits)

    def _use(self, cells: KeyCells) -> None:
        self._cells = cells
        self._requests = _Bucket(cells.requests, cells.requests_peak, cells.mine)
        self._tokens = _Bucket(cells.tokens, cells.tokens_peak, cells.mine)

    def configure(self, limits: KeyLimits) -> None:
        """Keep to these limits from the next request on."""
        self._limits = limits
        self._requests.configure(limits.requests)
        self._tokens.configure(limits.tokens)

    @property
    def streams(self) -> int:
        """That are under way."""
        return int(sum(self._cells.streams))

    def enter(self, tokens: int, now: float, *, is_stream: bool) -> None:
        """A request comes. Raises LimitReached, and then nothing is taken; else call `leave` at
        its end."""
        limits = self._limits
        if is_stream and limits.streams is not None and self.streams >= limits.streams:
            raise LimitReached(
                "This API key has as many streams as it may have at a time.", "streams"
            )
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            wait = bucket.wait(now)
            if wait > 0.0:
                raise LimitReached(
                    f"This API key has used up its {what} per minute.",
                    what,
                    retry_after=max(1, math.ceil(wait)),
                )
        self._requests.take(1, now)
        self._tokens.take(tokens, now)
        if is_stream:
            self._cells.streams[self._cells.mine] += 1.0

    def header_lines(self, now: float) -> bytes:
        """What answers say of the limits per minute."""
        requests = self._requests.header_lines(b"requests", now)
        return requests + self._tokens.header_lines(b"tokens", now)

    def leave(self, answer_tokens: int, now: float, *, is_stream: bool) -> None:
        """A request has ended, after so many tokens: nobody knew that when it came."""
        self._tokens.take(answer_tokens, now)
        if is_stream:
            self._cells.streams[self._cells.mine] -= 1.0
