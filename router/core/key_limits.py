"""What the holder of an API key may take: requests and tokens per minute, and streams at a time.

Rates are token buckets of a minute's worth. A request is let in while there is one in them, of
requests or of tokens, and may leave them in debt, which is paid before the next one: so no request
is too large for ever.
"""

import math
from dataclasses import dataclass
from typing import Final

from router.core.errors import LimitReached

__all__ = ["NO_LIMITS", "KeyLimits", "KeyUsage"]

SECONDS: Final = 60.0
"""Of a minute."""

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
    """Of prompts, as estimated, per minute."""
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
    """Holds up to `per_minute`, which flows in within a minute. Times are seconds of one clock."""

    __slots__ = ("_balance", "_filled_at", "_per_minute")

    def __init__(self) -> None:
        self._per_minute = math.inf
        self._balance = math.inf
        self._filled_at = 0.0

    def configure(self, per_minute: float | None) -> None:
        """Hold so much from now on; a debt remains."""
        was_unlimited = self._per_minute == math.inf
        self._per_minute = math.inf if per_minute is None else per_minute
        if was_unlimited or per_minute is None:
            self._balance = self._per_minute
        else:
            self._balance = min(self._balance, self._per_minute)

    def wait(self, now: float) -> float:
        """Seconds until something may be taken; 0 or less if it may be now."""
        if self._per_minute == math.inf:
            return 0.0
        flown = (now - self._filled_at) * self._per_minute / SECONDS
        self._balance = min(self._per_minute, self._balance + flown)
        self._filled_at = now
        # A process's share of a minute may be less than one.
        return (min(1.0, self._per_minute) - self._balance) * SECONDS / self._per_minute

    def take(self, amount: float) -> None:
        """It is taken."""
        self._balance -= amount

    def header_lines(self, what: bytes, now: float) -> bytes:
        """What answers say of it; nothing if it holds anything."""
        most = self._per_minute
        if most == math.inf:
            return b""
        self.wait(now)
        left = max(0, math.floor(self._balance))
        reset = math.ceil((most - self._balance) * SECONDS / most)
        return LINES % (what, most, what, left, what, reset)


class KeyUsage:
    """What was taken with a key, or the keys of one name."""

    __slots__ = ("_limits", "_requests", "_tokens", "streams")

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = NO_LIMITS
        self._requests = _Bucket()
        self._tokens = _Bucket()
        self.streams = 0
        """That are under way."""
        self.configure(limits)

    def configure(self, limits: KeyLimits) -> None:
        """Keep to these limits from the next request on."""
        self._limits = limits
        self._requests.configure(limits.requests)
        self._tokens.configure(limits.tokens)

    def enter(self, tokens: int, now: float, *, is_stream: bool) -> None:
        """A request comes. Raises LimitReached, and then nothing is taken; else a stream is to
        be given back by `leave`."""
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
        self._requests.take(1.0)
        self._tokens.take(float(tokens))
        self.streams += is_stream

    def header_lines(self, now: float) -> bytes:
        """What answers say of the limits per minute."""
        requests = self._requests.header_lines(b"requests", now)
        return requests + self._tokens.header_lines(b"tokens", now)

    def leave(self) -> None:
        """A stream has ended."""
        self.streams -= 1
