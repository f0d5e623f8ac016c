"""Puts the batches of one publisher of KV-cache events in order, and says what to do about gaps.

vLLM numbers its batches from 0 and sends them over PUB, where they can get lost. What is lost is
asked for again at the replay socket, which keeps the last 10,000 batches; live ones wait meanwhile.
What cannot be had again may have been a removal: then all that is known of the cache is dropped. A
number that goes back, and a new connection, mean a new engine: the same.
"""

from typing import Final, NamedTuple

__all__ = ["CLEAR", "Apply", "Clear", "EventStream", "Replay", "Step"]

MAX_AHEAD: Final = 8_192
"""Live batches that wait for a replay: a minute of a busy engine's steps."""

MAX_AHEAD_BYTES: Final = 64 << 20

MAX_TRIES: Final = 3
"""Replays in a row that bring nothing new: before vLLM 0.33 they lose batches."""


class Apply(NamedTuple):
    """The next batch."""

    payload: bytes


class Clear(NamedTuple):
    """What is known of the cache is out of date: forget it."""


class Replay(NamedTuple):
    """Ask for all batches from `start` on; one that is under way is over."""

    start: int


CLEAR: Final = Clear()

Step = Apply | Clear | Replay


class EventStream:
    """The order of one publisher's batches. Each method returns the steps to take, in order."""

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self.is_replaying = False
        """Whether a replay is under way; `replay_ended` must follow."""
        self.is_whole = False
        """Whether it has all batches since the engine's start: a cache is fully known only then."""
        self.gaps = self.replays = self.restarts = self.losses = 0
        """Gaps seen, replays requested, engine restarts, and how often batches could not be
        replayed."""
        self._next: int | None = None
        """The number of the batch to apply next; None: whichever comes first."""
        self._live = -1
        """The highest number that came live."""
        self._ahead: dict[int, bytes] = {}
        """Batches that wait for those before them."""
        self._ahead_bytes = 0
        self._tries = 0

    def connected(self) -> list[Step]:
        """A connection has been made: to an engine that is not known yet, or not any more."""
        self._live = -1
        self._forget()
        return [CLEAR, *self._replay(0)]

    def unreadable(self) -> None:
        """A message was not understood: what it announced is not known."""
        self.is_whole = False

    def live(self, seq: int, payload: bytes) -> list[Step]:
        """A batch came over PUB."""
        if seq == self._live:
            return []
        steps: list[Step] = []
        if seq < self._live:
            self.restarts += 1
            self._forget()
            steps = [CLEAR, *(self._replay(0) if seq else ())]
        self._live = seq
        if self.is_replaying:
            return steps + self._keep(seq, payload)
        if self._next is None:
            self.is_whole = seq == 0
        elif seq < self._next:
            return steps  # a replay has brought it
        elif seq > self._next:
            self.gaps += 1
            if self._can_replay:
                return [*steps, *self._replay(self._next), *self._keep(seq, payload)]
            self.losses += 1
            self.is_whole = False
            steps.append(CLEAR)
        self._next = seq + 1
        return [*steps, Apply(payload)]

    def replayed(self, seq: int, payload: bytes) -> list[Step]:
        """A batch came from the replay socket."""
        if not self.is_replaying:
            return []
        if self._next is None:  # as far back as the engine's memory goes
            self._next = seq
            self.is_whole = seq == 0
        if seq > self._next:
            return self._keep(seq, payload)
        if seq < self._next:
            return []
        self._next = seq + 1
        self._tries = 0
        return [Apply(payload)]

    def replay_ended(self, *, is_complete: bool = True) -> list[Step]:
        """The replay is over, because the engine says so or because no more came of it."""
        if not self.is_replaying:
            return []
        if self._next is None and self._ahead:  # the engine remembers nothing
            self._next = min(self._ahead)
            self.is_whole = self._next == 0
        elif self._next is None:
            self.is_whole = is_complete  # an engine that has announced nothing yet
        steps = self._take_ahead()
        self.is_replaying = False
        if not self._ahead:
            self._tries = 0
            return steps
        self._tries += 1
        if self._tries < MAX_TRIES and self._next is not None:
            return [*steps, *self._replay(self._next)]
        return steps + self._give_up()

    def _replay(self, start: int) -> list[Step]:
        if not self._can_replay:
            return []
        self.replays += 1
        self.is_replaying = True
        return [Replay(start)]

    def _forget(self) -> None:
        self._next = None
        self.is_replaying = self.is_whole = False
        self._drop_ahead()
        self._tries = 0

    def _drop_ahead(self) -> None:
        self._ahead.clear()
        self._ahead_bytes = 0

    def _keep(self, seq: int, payload: bytes) -> list[Step]:
        if seq not in self._ahead:
            self._ahead[seq] = payload
            self._ahead_bytes += len(payload)
        if len(self._ahead) > MAX_AHEAD or self._ahead_bytes > MAX_AHEAD_BYTES:
            return self._give_up()
        return []

    def _take_ahead(self) -> list[Step]:
        """What waited and follows on what was applied."""
        steps: list[Step] = []
        at = self._next
        if at is None:
            return steps
        for seq in sorted(self._ahead):
            if seq > at:
                break
            payload = self._ahead.pop(seq)
            self._ahead_bytes -= len(payload)
            if seq == at:
                steps.append(Apply(payload))
                at += 1
        self._next = at
        return steps

    def _give_up(self) -> list[Step]:
        """The missing batches will not come: restart from the last batches without a gap."""
        waiting = sorted(self._ahead)
        start = waiting[-1]
        for seq in reversed(waiting):
            if seq < start - 1:
                break
            start = seq
        self.losses += 1
        self.is_replaying = self.is_whole = False
        self._tries = 0
        self._next = start
        steps = [CLEAR, *self._take_ahead()]
        self._drop_ahead()
        return steps
