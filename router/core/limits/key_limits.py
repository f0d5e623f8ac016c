"""Limits of an API key: requests and tokens per minute, and concurrent streams.

Rates are token buckets that hold a minute's worth. A request is admitted while each bucket holds at
least one request or token. It may leave the bucket in debt, which delays the next request; so no
request is too large to be ever admitted.
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
"""Tolerance, in seconds, for rounding in the sums of what was taken."""

LINES: Final = (
    b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %ds\r\n"
)
"""Response headers as OpenAI sends them; `reset`: seconds until the bucket is full again."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one name; None: unlimited."""

    requests: float | None = None
    """Per minute."""
    tokens: float | None = None
    """Prompt tokens (estimated) and answer tokens per minute."""
    streams: int | None = None
    """Concurrent streams."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the limits that are set: requests, tokens, streams."""
        of = {"requests": self.requests, "tokens": self.tokens, "streams": self.streams}
        return tuple(kind for kind, limit in of.items() if limit is not None)

    def share(self, processes: int) -> "KeyLimits":
        """The share of one process out of `processes`."""
        return KeyLimits(
            None if self.requests is None else self.requests / processes,
            None if self.tokens is None else self.tokens / processes,
            None if self.streams is None else -(-self.streams // processes),
        )


NO_LIMITS: Final = KeyLimits()


class _Bucket:
    """A token bucket of `per_minute` that refills within a minute, shared by all processes. Times
    are seconds of one clock; amounts are converted to the seconds in which they flow in.

    The level at `now` is `MINUTE + now - taken - peak`, at most MINUTE, where `peak` is the
    maximum of `now - taken` over the moments before each take. Each process writes what it took and
    its own peak; the sum and the maximum over all processes are what a single process would have.
    """

    __slots__ = ("_mine", "_peaks", "_per_minute", "_taken", "_unit")

    def __init__(self, taken: "memoryview[float]", peaks: "memoryview[float]", mine: int) -> None:
        self._taken = taken
        self._peaks = peaks
        self._mine = mine
        self._per_minute = math.inf
        self._unit = 0.0
        """Seconds in which one unit flows in; 0: unlimited."""

    def configure(self, per_minute: float | None) -> None:
        """Change the size; the share of it that is taken, or the debt, is kept."""
        self._per_minute = math.inf if per_minute is None else per_minute
        self._unit = MINUTE / self._per_minute

    def _level(self, now: float) -> float:
        """Content, in seconds of inflow; below 0: debt."""
        return min(MINUTE, MINUTE + now - sum(self._taken) - max(self._peaks))

    def wait(self, now: float) -> float:
        """Seconds until something may be taken; 0 or less if it may be now."""
        if self._unit == 0.0:
            return 0.0
        # A process's share of a minute may be less than one.
        return min(self._unit, MINUTE) - self._level(now) - ROUNDING

    def take(self, amount: int, now: float) -> None:
        """Take `amount` units, even if that leaves a debt."""
        if self._unit == 0.0:
            return
        mine = self._mine
        # The peak first: a process that reads in between sees the same level as before.
        self._peaks[mine] = max(self._peaks[mine], now - sum(self._taken))
        self._taken[mine] += amount * self._unit

    def header_lines(self, what: bytes, now: float) -> bytes:
        """Response headers for this limit; empty if unlimited."""
        if self._unit == 0.0:
            return b""
        level = self._level(now) + ROUNDING
        left = min(self._per_minute, max(0, math.floor(level / self._unit)))
        reset = max(0, math.ceil(MINUTE - level))
        return LINES % (what, self._per_minute, what, left, what, reset)


class KeyUsage:
    """Usage of all keys of one name, by all processes that share `cells`."""

    __slots__ = ("_cells", "_limits", "_requests", "_tokens", "is_shared")

    def __init__(self, limits: KeyLimits, cells: KeyCells | None = None) -> None:
        self._cells = own_cells()
        self._use(cells or self._cells)
        self.is_shared = cells is not None
        """Whether other processes may write to the cells too."""
        self.configure(limits)

    def share(self, limits: KeyLimits, cells: KeyCells) -> None:
        """Apply these limits together with the processes that share `cells`. Usage per minute up to
        now is forgotten; open streams are still counted."""
        cells.streams[cells.mine] += self._cells.streams[self._cells.mine]
        self._use(cells)
        self.is_shared = True
        self.configure(limits)

    def _use(self, cells: KeyCells) -> None:
        self._cells = cells
        self._requests = _Bucket(cells.requests, cells.requests_peak, cells.mine)
        self._tokens = _Bucket(cells.tokens, cells.tokens_peak, cells.mine)

    def configure(self, limits: KeyLimits) -> None:
        """Apply these limits from the next request on."""
        self._limits = limits
        self._requests.configure(limits.requests)
        self._tokens.configure(limits.tokens)

    @property
    def streams(self) -> int:
        """Open streams, of all processes."""
        return int(sum(self._cells.streams))

    def enter(self, tokens: int, now: float, *, is_stream: bool) -> None:
        """Count a request with so many estimated prompt tokens; call `leave` when it ends. Raises
        LimitReached, and then counts nothing."""
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
        """Response headers for the limits per minute."""
        requests = self._requests.header_lines(b"requests", now)
        return requests + self._tokens.header_lines(b"tokens", now)

    def leave(self, answer_tokens: int, now: float, *, is_stream: bool) -> None:
        """Count the end of a request and the tokens of its answer."""
        self._tokens.take(answer_tokens, now)
        if is_stream:
            self._cells.streams[self._cells.mine] -= 1.0
