"""Puts the batches of one publisher of KV-cache events in order, and handles gaps.

vLLM numbers its batches from 0 and sends them over PUB, which may lose some. Lost batches are
requested at the replay socket, which keeps the last 10,000; live batches wait meanwhile. A batch
that cannot be recovered may have announced a removal, so all known blocks are dropped. The same is
done if a number goes back or the connection is new, which mean that the engine has restarted.
"""

from typing import Final, NamedTuple

__all__ = ["CLEAR", "Apply", "Clear", "EventStream", "Replay", "Step"]

MAX_AHEAD: Final = 8_192
"""Most live batches that wait for a replay: a minute of a busy engine's steps."""

MAX_AHEAD_BYTES: Final = 64 << 20

MAX_TRIES: Final = 3
"""Most replays in a row that bring nothing new. vLLM before 0.33 loses batches in replays."""


class Apply(NamedTuple):
    """Apply the next batch."""

    payload: bytes


class Clear(NamedTuple):
    """Drop all known blocks, which are out of date."""


class Replay(NamedTuple):
    """Request all batches from `start` on; a replay in progress is aborted."""

    start: int


CLEAR: Final = Clear()

Step = Apply | Clear | Replay


class EventStream:
    """Orders the batches of one publisher. Each method returns the steps to perform, in order."""

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self.is_replaying = False
        """Whether a replay is in progress; `replay_ended` must follow."""
        self.is_whole = False
        """Whether all batches since the engine's start were received; only then is the whole cache
        known."""
        self.gaps = self.replays = self.restarts = self.losses = 0
        """Gaps seen, replays requested, engine restarts, and how often batches could not be
        replayed."""
        self._next: int | None = None
        """The number of the batch to apply next; None: that of the next one to arrive."""
        self._live = -1
        """The highest number of a live batch."""
        self._ahead: dict[int, bytes] = {}
        """Batches that wait for missing ones before them."""
        self._ahead_bytes = 0
        self._tries = 0

    def connected(self) -> list[Step]:
        """A connection was made, perhaps to a restarted engine."""
        self._live = -1
        self._forget()
        return [CLEAR, *self._replay(0)]

    def unreadable(self) -> None:
        """A message could not be parsed, so its content is unknown."""
        self.is_whole = False

    def live(self, seq: int, payload: bytes) -> list[Step]:
        """A batch arrived over PUB."""
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
            return steps  # a replay has already brought it
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
        """A batch arrived from the replay socket."""
        if not self.is_replaying:
            return []
        if self._next is None:  # the oldest that the engine still has
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
        """The replay has ended: the engine said so, or nothing more arrived."""
        if not self.is_replaying:
            return []
        if self._next is None and self._ahead:  # the engine keeps no batches
            self._next = min(self._ahead)
            self.is_whole = self._next == 0
        elif self._next is None:
            self.is_whole = is_complete  # the engine has announced nothing yet
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
        """Apply waiting batches that directly follow the applied ones."""
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
        """The missing batches will not arrive: continue with the last waiting ones that have no
        gap."""
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
