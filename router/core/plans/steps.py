"""The steps of a plan, and the answer to each.

A plan is a generator: it yields steps and is sent their answers, and uses neither sockets nor a
clock. Its driver (`core/routing/request_run.py`, or a test) answers:

| step | answer |
|---|---|
| `Check` | None; `NoEngine` is raised inside the plan when a `Lease` would find none |
| `Lease` | the leased `Endpoint`; `NoEngine` is raised inside the plan when there is none |
| `LeaseHealthy` | the same |
| `Release` | None |
| `Retry` | True when another try may be made, which is counted, False when the budget is spent |
| `Call` | a `Reply` or a `Failure` |
| `Stream` | None once the answer went to the client, else the `Reply` or `Failure` that did not |
| `AwaitKV` | True when the KV cache is ready, False when the time is up |
| `FellBack` | None |
| `Send` | None |

The plan ends after a `Stream` that answered None, after a `Send`, or by raising a `RouterError`.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from router.core.events import FellBack
from router.core.request_facts import Facts
from router.core.retry import LOAD_FAILED
from router.core.values import Decision, Endpoint, Failure, Reply, Role

__all__ = [
    "AwaitKV",
    "AwaitMove",
    "Call",
    "Check",
    "Lease",
    "LeaseHealthy",
    "Plan",
    "Plans",
    "Release",
    "Retry",
    "Send",
    "Splice",
    "Step",
    "Stream",
]


class Splice(Protocol):
    """Rewrites an engine's answer before it is sent to the client."""

    def events(self, data: bytes) -> bytes:
        """Rewrite complete SSE events. Those without usage behind the first content pass here only
        if the model is renamed."""

    def body(self, data: bytes) -> bytes:
        """Rewrite a complete JSON body."""


@dataclass(slots=True)
class Check:
    """Check that an endpoint of `role` that is not in `exclude` could be leased, without a
    lease."""

    role: Role
    exclude: frozenset[Endpoint] = frozenset()


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class Lease:
    """Choose an endpoint of `role` that is not in `exclude`, and lease it.

    `computes`: whether the engine computes the prompt; False if it loads the prompt's KV cache.
    `is_attempt`: whether the engine is to serve the request; False for a question beside it, which
    takes no retry from the budget.
    """

    role: Role
    exclude: frozenset[Endpoint]
    computes: bool
    is_attempt: bool

    def __init__(
        self,
        role: Role,
        exclude: frozenset[Endpoint] = frozenset(),
        computes: bool = True,
        is_attempt: bool = True,
    ) -> None:
        self.role = role
        self.exclude = exclude
        self.computes = computes
        self.is_attempt = is_attempt


@dataclass(frozen=True, slots=True)
class LeaseHealthy:
    """Choose an endpoint of `role` that is up, and neither stalled nor ejected, for a request with
    facts of its own, beside the client's, and lease it."""

    role: Role
    facts: Facts


@dataclass(slots=True)
class Release:
    """Release the lease of an endpoint."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Retry:
    """Take one retry from the budget, to use an engine of `role` that is not excluded although it
    failed. A `Lease` with excluded engines takes one by itself."""

    role: Role


@dataclass(slots=True, init=False)
class Call:
    """POST, and read the whole reply into memory.

    `is_prefill`: the engine computes the prompt, so the reply is timed; False for its tokenizer.
    `lead`: for a large body, the pieces that precede `body`.
    """

    endpoint: Endpoint
    path: str
    body: bytes = field(repr=False)
    is_prefill: bool
    lead: tuple[bytes | memoryview, ...] = field(repr=False)

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        is_prefill: bool = True,
        lead: tuple[bytes | memoryview, ...] = (),
    ) -> None:
        self.endpoint = endpoint
        self.path = path
        self.body = body
        self.is_prefill = is_prefill
        self.lead = lead


@dataclass(slots=True, init=False)
class Stream:
    """POST, and relay the reply to the client, unless the plan keeps it.

    Replies with a status in `keep` are returned to the plan, and so are error events in place of
    the first content, as a `Reply` with the status. With `hold`, the engine loads a KV cache:
    the head is held back until the first content, and error events of any status are returned.
    `replay`: the request may be sent again if a pooled connection is closed under it. `lead`: for a
    large body, the pieces that precede `body`. `keeps_id`: its X-Request-Id, on /v1/responses also
    its `request_id`, is that of the engine request before it.
    """

    endpoint: Endpoint
    path: str
    body: bytes = field(repr=False)
    keep: frozenset[int]
    hold: bool
    replay: bool
    splice: Splice | None
    lead: tuple[bytes | memoryview, ...] = field(repr=False)
    keeps_id: bool

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        keep: frozenset[int] = frozenset(),
        hold: bool = False,
        replay: bool = True,
        splice: Splice | None = None,
        lead: tuple[bytes | memoryview, ...] = (),
        keeps_id: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.path = path
        self.body = body
        self.keep = keep
        self.hold = hold
        self.replay = replay
        self.splice = splice
        self.lead = lead
        self.keeps_id = keeps_id

    def is_load_failure(self, status: int) -> bool:
        """Whether an answer with this status may be a failed KV load, which can be the prefill
        engine's fault."""
        return self.hold and status in LOAD_FAILED


@dataclass(frozen=True, slots=True)
class AwaitKV:
    """Wait until `count` ranks of a prefill engine have reported `transfer_id` as sent."""

    transfer_id: str
    count: int


@dataclass(frozen=True, slots=True)
class BackOff:
    """Wait `seconds` before the next engine request. Only `RequestRun` yields it, no plan does."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitMove:
    """Wait until the stream may go on with another engine (`core/continuation/move_queue.py`). Only
    `RequestRun` yields it too."""


@dataclass(frozen=True, slots=True)
class Send:
    """Answer the client with a reply that is in memory."""

    reply: Reply = field(repr=False)


Step = Check | Lease | LeaseHealthy | Release | Retry | Call | Stream | AwaitKV | FellBack | Send
Outcome = Reply | Failure
Plan = Generator[Step, Any, None]
Plans = Callable[[Facts, Decision], Plan]
