"""Clients: closed loops, bursts, an open loop and sessions, with the record of their requests.

Request n has the same lengths under every policy, so that all policies get the same work.
"""

from collections.abc import Sequence
from functools import partial
from random import Random

from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.replica import Replica
from router.simulator.virtual.requests import Done, VirtualRequest
from router.simulator.virtual.values import Session, Turn, Workload

BACK_OFF_SECONDS = 1.0
"""Seconds after an error; the router's own Retry-After."""

NO_STREAM = -1
"""The stream of requests that belong to none."""


class Clients:
    """All clients of a run, and the results of their requests."""

    def __init__(
        self,
        workload: Workload,
        replicas: list[Replica],
        agenda: Agenda,
        rng: Random,
        sessions: Sequence[Session] = (),
    ) -> None:
        self.issued = 0
        self.ended: list[VirtualRequest] = []
        self._workload = workload
        self._replicas = replicas
        self._agenda = agenda
        self._rng = rng
        self._sessions = sessions

    def is_going_on(self) -> bool:
        """Whether any request has not ended."""
        return len(self.ended) < self._workload.requests

    def start(self) -> None:
        """Start all streams at once, as load generators do, and each session at its time."""
        work = self._workload
        for place, session in enumerate(self._sessions):
            self._agenda.at(session.at, partial(self._ask, place, session, 0))
        self._agenda.at(0.0, self._start)
        if work.rate:
            self._agenda.at(self._rng.expovariate(work.rate), self._arrive)
        if work.burst_seconds:
            self._agenda.every(work.burst_seconds, work.burst_seconds, self._burst)

    def done(self, request: VirtualRequest, now: float) -> None:
        """Note that a request has ended, successfully or not."""
        if request.ended is not None:
            raise RuntimeError(f"request {request.number} ended twice")
        request.ended = now
        self.ended.append(request)
        if request.stream == NO_STREAM:
            return
        if request.is_good:
            self._issue(request.stream, now)
        else:
            self._agenda.at(now + BACK_OFF_SECONDS, lambda then: self._issue(request.stream, then))

    def _start(self, now: float) -> None:
        for stream in range(self._workload.streams):
            self._issue(stream, now)

    def _burst(self, now: float) -> None:
        for _ in range(self._workload.burst_requests):
            self._issue(NO_STREAM, now)

    def _arrive(self, now: float) -> None:
        self._issue(NO_STREAM, now)
        self._agenda.at(now + self._rng.expovariate(self._workload.rate), self._arrive)

    def _issue(self, stream: int, now: float) -> None:
        work = self._workload
        if self.issued < work.requests:
            is_held = work.held_share > 0.0 and self._rng.random() < work.held_share
            output = (work.held_output if is_held else None) or work.output
            is_poison = work.poison_share > 0.0 and self._rng.random() < work.poison_share
            if is_poison and work.poison is not None:
                self._send(work.poison, stream, now, self.done, is_poison=True)
                return
            turn = Turn(work.prompt.draw(self._rng), output.draw(self._rng))
            self._send(turn, stream, now, self.done, is_held=is_held)

    def _send(
        self,
        turn: Turn,
        stream: int,
        now: float,
        done: Done,
        *,
        is_held: bool = False,
        is_poison: bool = False,
        session: int | None = None,
    ) -> None:
        work, number = self._workload, self.issued
        self.issued += 1
        door = (number if stream == NO_STREAM else stream) % len(self._replicas)
        model = work.models[number % len(work.models)] if work.models else None
        request = VirtualRequest(
            number,
            stream,
            turn.prompt,
            turn.output,
            now,
            done,
            model,
            is_held=is_held,
            shows_first=work.shows_first,
            is_unary=work.is_unary,
            is_poison=is_poison,
            contents=turn.contents,
            session=session,
        )
        self._replicas[door].send(request, now)

    def _ask(self, place: int, session: Session, number: int, now: float) -> None:
        """Send the next request of a session."""
        answered = partial(self._answered, place, session, number + 1)
        self._send(session.turns[number], NO_STREAM, now, answered, session=place)

    def _answered(
        self, place: int, session: Session, number: int, request: VirtualRequest, now: float
    ) -> None:
        self.done(request, now)
        if number < len(session.turns):
            pause = session.turns[number].pause + (0.0 if request.is_good else BACK_OFF_SECONDS)
            self._agenda.at(now + pause, partial(self._ask, place, session, number))
