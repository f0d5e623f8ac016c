"""Faults on demand: what an engine does wrong, for which requests and how often. No sockets
here."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any


class FaultError(ValueError):
    """The fault is invalid; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of an engine. The defaults are a healthy one.

    The first group applies to single requests: those under `paths`, of the leg `only`, with the
    text `containing`, at the given `rate`, or only the `next` N of them.
    """

    status: int | None = None
    """Answer with this status and an error in vLLM's shape."""
    hang: bool = False
    """Read the request and never answer; the connection stays open."""
    reset: str | None = None
    """Reset the connection: on "accept", after the whole "request" has been read, or after the
    bytes of "wire"."""
    wire: str | None = None
    """Send these bytes (as Latin-1) instead of a response, then close or reset the connection."""
    delay_s: float = 0.0
    """Seconds to wait before the request is processed."""
    cut_after_tokens: int | None = None
    """Send so many tokens and half of the next frame, then reset the connection."""
    freeze_after_tokens: int | None = None
    """Send so many tokens and then nothing; the connection stays open."""
    error_after_tokens: int | None = None
    """Send so many tokens, then an error event, and [DONE] where the API has it."""

    paths: tuple[str, ...] = ("/v1/",)
    """Prefixes of the affected paths; /sim/ is never affected."""
    only: str | None = None
    """Only the "prefill" leg (do_remote_decode, disagg_spec), the "decode" leg (do_remote_prefill)
    or "plain" requests."""
    containing: str | None = None
    """Only requests with this text in their body, such as a model's name or a poisoned prompt."""
    next: int | None = None
    """Number of affected requests; None: all."""
    rate: float = 1.0
    """Share of the affected requests, 0 to 1."""

    slow: float = 1.0
    """Factor on the duration of each step."""
    stall: bool = False
    """Make no steps: requests are accepted and get no tokens."""
    refuse: bool = False
    """Do not listen: new connections are refused, open ones continue."""
    close_idle: bool = False
    """Close each connection without notice as soon as it is idle."""
    fail_kv_loads: int = 0
    """Number of KV loads that fail."""
    expire_references: int = 0
    """Number of KV references that have expired when a decode engine reads them."""
    drop_notifications: bool = False
    """LMCache: send no notifications."""
    lose_kv_events: bool = False
    """Send no batches of KV-cache events; they are kept for replay only."""
    hold_kv_events: int = 0
    """Delay batches of KV-cache events until so many are waiting, then send all of them."""
    reverse_kv_events: bool = False
    """Send delayed batches of KV-cache events in reverse order."""
    forge_kv_events: bool = False
    """Send invalid messages after each batch of KV-cache events."""

    def __post_init__(self) -> None:
        if self.reset not in (None, "accept", "request", "wire"):
            raise FaultError(f"reset: expected accept, request or wire, got {self.reset!r}")
        if self.reset == "wire" and self.wire is None:
            raise FaultError("reset: wire needs the bytes of `wire`")
        if self.only not in (None, "prefill", "decode", "plain"):
            raise FaultError(f"only: expected prefill, decode or plain, got {self.only!r}")
        if self.wire is not None and not all(ord(character) < 256 for character in self.wire):
            raise FaultError("wire: expected characters up to 255")
        if not 0 <= self.rate <= 1:
            raise FaultError(f"rate: expected 0 to 1, got {self.rate!r}")
        if self.slow <= 0:
            raise FaultError(f"slow: expected more than 0, got {self.slow!r}")
        if self.status is not None and not 400 <= self.status <= 599:
            raise FaultError(f"status: expected 400 to 599, got {self.status!r}")

    @property
    def is_per_request(self) -> bool:
        return self.reset == "request" or any(
            getattr(self, name) != getattr(NO_FAULTS, name) for name in _PER_REQUEST
        )

    @classmethod
    def parse(cls, document: object) -> "Faults":
        """Parse faults from JSON. Raises FaultError for unknown fields and invalid values."""
        if not isinstance(document, dict):
            raise FaultError("expected an object")
        known = {field.name for field in fields(cls)}
        for name in document:
            if name not in known:
                raise FaultError(f"{name}: no such fault")
        values = dict(document)
        try:
            if "paths" in values:
                values["paths"] = tuple(map(str, values["paths"]))
            return cls(**values)
        except TypeError as error:
            raise FaultError(str(error)) from error


NO_FAULTS = Faults()

_PER_REQUEST = (
    "status",
    "hang",
    "wire",
    "delay_s",
    "cut_after_tokens",
    "freeze_after_tokens",
    "error_after_tokens",
)


class FaultPlan:
    """The current faults, and how many requests they still affect."""

    def __init__(self, faults: Faults, random: Random) -> None:
        self.now = faults
        self.given = faults
        """The faults as they were set; in `now` the numbers count down."""
        self._random = random

    def put(self, faults: Faults) -> None:
        self.now = self.given = faults

    def take(self, path: str, leg: Callable[[], str], raw: bytes = b"") -> Faults:
        """The faults of this request; counts down `next`.

        `leg` is only called if needed, since it has to parse the body `raw`.
        """
        faults = self.now
        if not faults.is_per_request or path.startswith("/sim/"):
            return NO_FAULTS
        if not path.startswith(faults.paths) or faults.only not in (None, leg()):
            return NO_FAULTS
        if faults.containing is not None and faults.containing.encode() not in raw:
            return NO_FAULTS
        return faults if self._is_due() else NO_FAULTS

    def take_reset(self) -> bool:
        """Whether a new connection is reset; counts down `next`."""
        return self.now.reset == "accept" and self._is_due()

    def _is_due(self) -> bool:
        faults = self.now
        if faults.next == 0 or (faults.rate < 1 and self._random.random() >= faults.rate):
            return False
        if faults.next is not None:
            self.now = replace(faults, next=faults.next - 1)
        return True

    def take_kv_failure(self) -> bool:
        """Whether this KV load fails; counts down `fail_kv_loads`."""
        return self._count_down("fail_kv_loads")

    def take_expiry(self) -> bool:
        """Whether this KV reference has expired; counts down `expire_references`."""
        return self._count_down("expire_references")

    def _count_down(self, name: str) -> bool:
        left: int = getattr(self.now, name)
        if left > 0:
            fewer: dict[str, Any] = {name: left - 1}
            self.now = replace(self.now, **fewer)
        return left > 0

    def as_json(self) -> dict[str, Any]:
        return {field.name: getattr(self.now, field.name) for field in fields(self.now)}
