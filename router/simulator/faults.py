"""Faults on demand: what an engine does wrong, to which requests and how often. No sockets here."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any


class FaultError(ValueError):
    """A fault that cannot be set; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with an engine. The defaults are a sound one.

    The first group applies to single requests: those under `paths` that take part in `only`,
    `containing` a text, at the given `rate`, or only the `next` N of them.
    """

    status: int | None = None
    """Answer with this status and an error in vLLM's shape."""
    hang: bool = False
    """Read the request and never answer; the connection stays open."""
    reset: str | None = None
    """Reset the connection: on "accept", when a whole "request" has been read, or behind the bytes
    of "wire"."""
    wire: str | None = None
    """Write these bytes (as Latin-1) in place of an answer, then close or reset the connection."""
    delay_s: float = 0.0
    """Wait before looking at the request."""
    cut_after_tokens: int | None = None
    """Send so many tokens, then half of the next frame, then reset the connection."""
    freeze_after_tokens: int | None = None
    """Send so many tokens and nothing more; the connection stays open."""
    error_after_tokens: int | None = None
    """Send so many tokens, then an error event and [DONE]."""

    paths: tuple[str, ...] = ("/v1/",)
    """Prefixes of the paths concerned; /sim/ never is."""
    only: str | None = None
    """Only the "prefill" leg (do_remote_decode, disagg_spec), the "decode" leg (do_remote_prefill)
    or "plain" requests."""
    containing: str | None = None
    """Only requests with this text in their body: a model's name, or a poisoned prompt."""
    next: int | None = None
    """How many requests more; None for all."""
    rate: float = 1.0
    """The share of the requests concerned, 0 to 1."""

    slow: float = 1.0
    """Factor on the time of every step."""
    stall: bool = False
    """No step is ever made: requests are accepted and get no token."""
    refuse: bool = False
    """Do not listen: new connections are refused, open ones live on."""
    close_idle: bool = False
    """Close every connection as soon as it is idle, unannounced."""
    fail_kv_loads: int = 0
    """The next so many KV loads fail."""
    expire_references: int = 0
    """The next so many KV references are gone when a decode engine comes to read them."""
    drop_notifications: bool = False
    """LMCache: never say that the KV cache has arrived."""
    lose_kv_events: bool = False
    """Send no batch of KV-cache events; they are kept for replay, and come late."""
    hold_kv_events: int = 0
    """Send batches of KV-cache events late: only when so many wait, all of them at once."""
    reverse_kv_events: bool = False
    """Send batches of KV-cache events that waited in the wrong order, the last one first."""
    forge_kv_events: bool = False
    """Send messages that no engine sends behind each batch of KV-cache events."""

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
        """Faults from JSON. Raises FaultError for a field that does not exist or has no sense."""
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
    """The faults in force, and whom they befall next."""

    def __init__(self, faults: Faults, random: Random) -> None:
        self.now = faults
        self.given = faults
        """The faults as they were set; `now` counts down."""
        self._random = random

    def put(self, faults: Faults) -> None:
        self.now = self.given = faults

    def take(self, path: str, leg: Callable[[], str], raw: bytes = b"") -> Faults:
        """What goes wrong with this request; uses up one of `next`.

        `leg` is asked only if it matters: it has to read the body, which is `raw`.
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
        """Whether a new connection is reset; uses up one of `next`."""
        return self.now.reset == "accept" and self._is_due()

    def _is_due(self) -> bool:
        faults = self.now
        if faults.next == 0 or (faults.rate < 1 and self._random.random() >= faults.rate):
            return False
        if faults.next is not None:
            self.now = replace(faults, next=faults.next - 1)
        return True

    def take_kv_failure(self) -> bool:
        """Whether this KV load fails; uses up one of `fail_kv_loads`."""
        left = self.now.fail_kv_loads
        if left > 0:
            self.now = replace(self.now, fail_kv_loads=left - 1)
        return left > 0

    def take_expiry(self) -> bool:
        """Whether this KV reference is gone; uses up one of `expire_references`."""
        left = self.now.expire_references
        if left > 0:
            self.now = replace(self.now, expire_references=left - 1)
        return left > 0

    def as_json(self) -> dict[str, Any]:
        return {field.name: getattr(self.now, field.name) for field in fields(self.now)}
