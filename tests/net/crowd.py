"""A router with a full queue, and a listener of the admission gate, for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from router.core.candidate import Candidate
from router.core.errors import RouterError
from router.core.events import RequestEnded
from router.core.limits.places import Group
from router.net.limits.admission_gate import AdmissionGate, DecodeEngines
from tests.net.client import Client, request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, completion

NEVER = 3600.0
TENANT = b"authorization"


class Crowd:
    """A router that serves one request at a time, which waits at its engine."""

    def __init__(self, router: Running, engine: ScriptedEngine) -> None:
        self.router = router
        self.engine = engine
        self.first: Call

    @property
    def gate(self) -> AdmissionGate:
        """The router's."""
        gate = self.router.router.handler.network.admission
        assert gate is not None
        return gate

    async def come(self, name: bytes, body: object = None, *headers: tuple[bytes, bytes]) -> Client:
        """A request of a tenant; it waits, or is refused, when this returns."""
        client = await self.router.client()
        asked = completion(name.decode()) if body is None else body
        before = self.gate.admission.waiting, len(self.router.all(RequestEnded))
        await client.send(request(COMPLETIONS, asked, (TENANT, name), *headers))
        await eventually(
            lambda: (self.gate.admission.waiting, len(self.router.all(RequestEnded))) != before
        )
        return client

    async def next(self, answer: object = None) -> str:
        """Whose request the engine gets when it has answered the one that it has."""
        self.first.send(json_reply(answer or {}))
        self.first = await self.engine.call()
        await self.first.read()
        return str(self.first.json["prompt"])

    async def end(self) -> None:
        """Answer the engine's requests."""
        self.first.send(json_reply({}))
        await eventually(lambda: self.gate.admission.in_flight == 0)


async def crowd(harness: Harness, **settings: Any) -> Crowd:
    """One request is being served."""
    engine = await harness.engine()
    usual: dict[str, Any] = {"max_in_flight": 1, "queue_timeout": NEVER}
    router = await harness.router(engine, **{**usual, **settings})
    found = Crowd(router, engine)
    await router.send(COMPLETIONS, completion("first"))
    found.first = await engine.call()
    await found.first.read()
    return found


class Unheard:
    """A request without a listener."""

    def __init__(self) -> None:
        self.refusals: list[RouterError] = []

    def on_turn(self, waited: float) -> None:
        """It is its turn."""

    def on_refused(self, error: RouterError) -> None:
        """It waits no longer."""
        self.refusals.append(error)


class FixedEngines(DecodeEngines):
    """The engines of each group, always; no group replaces another."""

    def __init__(self, groups: Mapping[Any, Sequence[Candidate]]) -> None:
        self._groups = groups

    def usable(self, group: Group, now: float) -> Sequence[Candidate]:
        return self._groups.get(group, ())

    def merged(self, group: Group) -> Group:
        return group


class Uncounted:
    """Nothing is counted."""

    def queue_length(self, waiting: int) -> None: ...

    def queue_waited(self, seconds: float) -> None: ...

    def queue_rejected(self, reason: str) -> None: ...


def answers(call: Call) -> None:
    call.send(json_reply({}))


def gate_of(router: Running) -> AdmissionGate:
    """The router's."""
    gate = router.router.handler.network.admission
    assert gate is not None
    return gate
