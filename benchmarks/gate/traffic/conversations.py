"""Conversations instead of single requests, when they are due: the load beyond the closed loop.

One process's part of it. Streams are a pool of connections: a request that is ready is taken by the
one that ends its answer, or by a free one. In a closed loop a conversation that ends begins the
next; in an open loop each begins at its time, and latencies count from then.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gate.inputs.datasets import Conversation
from benchmarks.gate.traffic.answers import said
from benchmarks.gate.traffic.arrivals import Times, starts
from benchmarks.gate.traffic.generator import ChatStream
from benchmarks.gate.traffic.load import Load, Outcome, Phase, Target, Tickets
from benchmarks.gate.traffic.pace import UNLIMITED, RequestTemplate
from benchmarks.streaming.client import Seen, Stream

# libuv's timers are whole milliseconds: a request due within half of one is sent now.
TICK_S = 0.0005


@dataclass(slots=True)
class ActiveConversation:
    """A conversation under way. Its `number` counts those of the phase."""

    number: int
    prompt: int
    conversation: Conversation
    name: bytes = field(default_factory=lambda: str(uuid.uuid4()).encode())
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ready:
    """A turn that waits for a stream. `due` is a time of time.monotonic, None for at once."""

    active: ActiveConversation
    body: bytes
    due: float | None


class ConversationLoad(Load):
    """The conversations of one process. A `Crowd`."""

    def __init__(self, target: Target, template: RequestTemplate, tickets: Tickets) -> None:
        super().__init__(target, tickets)
        self._template = template
        self._free: list[Stream] = []
        self._clear()

    def _clear(self) -> None:
        self._ready: deque[Ready] = deque()
        self._active: dict[int, ActiveConversation] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._cap, self._began, self._until = UNLIMITED, 0.0, float("inf")
        self._schedule: Times = starts(0, 0.0)
        self._begun, self._under_way, self._dropped = 0, 0, 0

    async def run(self, phase: Phase) -> Outcome:
        """Offer one phase; return when the outcome of every request is known, or it is stopped."""
        outcome = await super().run(phase)
        for timer in self._timers:
            timer.cancel()
        for seen in outcome.seen:
            seen.events = None  # cancelled by `stop`
        return replace(outcome, dropped=self._dropped)

    def _prepare(self, phase: Phase) -> None:
        self._clear()
        self._cap = phase.pace.cap_of(phase.part, phase.parts)
        if phase.pace.open_loop:
            self._schedule = phase.pace.schedule(
                self._template.dataset, phase.requests, phase.offset, phase.part, phase.parts
            )
        else:
            self._schedule = starts(phase.streams, phase.pace.ramp)

    def _start(self) -> None:
        self._began = self._phase.begin or time.monotonic()
        if self._phase.pace.duration is not None:
            self._until = self._began + self._phase.pace.duration
        self._arm()
        self._settle()

    # what begins

    def _arm(self) -> None:
        """Start due requests, and wait for the next."""
        open_loop = self._phase.pace.open_loop
        while self._begun < len(self._schedule):
            due = self._began + float(self._schedule[self._begun])
            # What is sent is made before it is due, not after.
            waiting = self._scheduled(due) if open_loop else None
            if due > time.monotonic() + TICK_S:
                self._later(due, self._begin, waiting)
                return
            self._launch(waiting)

    def _begin(self, waiting: Ready | None) -> None:
        self._launch(waiting)
        self._arm()
        self._settle()

    def _launch(self, waiting: Ready | None) -> None:
        """A conversation of the schedule, or a closed loop's next one."""
        self._begun += 1
        if waiting is None:
            self._take()
        else:
            self._under_way += 1
            self._ready.append(waiting)
        self._pump()

    def _scheduled(self, due: float) -> Ready:
        number = self._phase.part + self._begun * self._phase.parts
        return self._turn(self._conversation(number), due)

    def _take(self) -> None:
        """A closed loop's next conversation, unless the phase is over."""
        if time.monotonic() >= self._until:
            return
        number = self._tickets.take()
        if number < self._phase.requests:
            self._under_way += 1
            self._ready.append(self._turn(self._conversation(number), None))

    def _conversation(self, number: int) -> ActiveConversation:
        conversations = self._template.dataset.conversations
        prompt = (self._phase.offset + number) % len(conversations)
        return ActiveConversation(number, prompt, conversations[prompt])

    def _turn(self, active: ActiveConversation, due: float | None) -> Ready:
        body = self._template.body(active.conversation, len(active.answers), active.answers)
        return Ready(active, body, due)

    def _pump(self) -> None:
        """Assign ready conversations to free or new streams, up to the cap."""
        while self._ready and self._in_flight < self._cap and not self._stopped:
            if not self._free:
                self._streams.append(ChatStream(self, self._loop))
                self._free.append(self._streams[-1])
            self._free.pop().ask()

    # what streams ask

    def next_request(self) -> tuple[Seen, bytes] | None:
        if not self._ready or self._in_flight >= self._cap:
            return None
        now = time.monotonic()
        if now >= self._until:
            self._drop()
            return None
        ready = self._ready.popleft()
        active, turn, pace = ready.active, len(ready.active.answers), self._phase.pace
        number = active.number * self._template.dataset.longest + turn
        seen = Seen(number, active.prompt, now, turn=turn)
        if ready.due is not None:
            seen.sent, seen.late = min(ready.due, now), max(now - ready.due, 0.0)
        seen.give_up = pace.cancel.after_of(number)
        if pace.keep or turn + 1 < len(active.conversation.turns):
            seen.events = []
        self._active[number] = active
        self._seen.append(seen)
        self._in_flight += 1
        name = str(uuid.uuid4()).encode()
        head = self._target.head % (name, active.name, active.name, len(ready.body))
        return seen, head + ready.body

    def ended(self, seen: Seen) -> None:
        super().ended(seen)
        active = self._active.pop(seen.number)
        answer = self._read(seen)
        if not self._goes_on(active, seen):
            self._under_way -= 1
            if not self._phase.pace.open_loop:
                self._take()  # for the stream that ended: it asks next
        else:
            active.answers.append(answer)
            self._answered(active)
        self._settle()

    def idle(self, stream: Stream) -> None:
        self._free.append(stream)

    def _read(self, seen: Seen) -> str:
        if seen.events is None:
            return ""
        answer, reasoning = said(seen.events)
        seen.events = None
        if self._phase.pace.keep:
            seen.text = reasoning + answer
        return answer

    def _goes_on(self, active: ActiveConversation, seen: Seen) -> bool:
        """After a failure or a disconnect the conversation ends."""
        if seen.error is not None or seen.cancelled:
            return False
        turn = len(active.answers) + 1
        if turn == len(active.conversation.turns):
            return False
        return time.monotonic() + active.conversation.turns[turn].think < self._until

    def _answered(self, active: ActiveConversation) -> None:
        """The next turn, after the user has thought."""
        think = active.conversation.turns[len(active.answers)].think
        if think <= TICK_S:
            self._ready.append(self._turn(active, None))  # for the stream that ended: it asks next
        else:
            due = time.monotonic() + think
            self._later(due, self._resume, self._turn(active, due))

    def _resume(self, ready: Ready) -> None:
        self._ready.append(ready)
        self._pump()

    # the end

    def _drop(self) -> None:
        """The duration is over: what waits, as the cap was reached, is not begun any more."""
        self._dropped += sum(each.due is not None for each in self._ready)
        self._under_way -= len(self._ready)
        self._ready.clear()
        self._settle()

    def _settle(self) -> None:
        if not self._under_way and self._begun >= len(self._schedule):
            self._end()

    def _later(self, due: float, act: Callable[..., None], *arguments: Any) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            act(*arguments)

        timer = self._loop.call_later(max(due - time.monotonic(), 0.0), fire)
        self._timers.add(timer)
