"""Streams that go on with another engine: a few at a time, whether theirs died, stalled or drains.

An engine may leave hundreds of streams at once. Each needs its prompt computed anew, and new
requests would wait behind all of them.
"""

from typing import Final, Protocol

from router.core.fleet.pool import Pool

__all__ = ["MOVES_PER_ENGINE", "MoveQueue", "Mover"]

MOVES_PER_ENGINE: Final = 4
"""Streams that move at a time, for each engine that may get requests. vLLM computes at most 8,192
prompt tokens in a step by default: four prompts of usual length. More would not be faster."""


class Mover(Protocol):
    """A request whose stream is to go on with another engine."""

    def on_move(self) -> None:
        """It may move now, and calls `MoveQueue.leave` once it has, or does not move any more. May
        be called again."""


class MoveQueue:
    """The streams of one process that move, each until its first token on the next engine, and
    those that wait for it. A stream without an engine precedes one that its engine still serves."""

    def __init__(self, engines: Pool) -> None:
        self._engines = engines
        self._moving: set[Mover] = set()
        self._cut: dict[Mover, None] = {}
        """In the order of their arrival, as those below."""
        self._whole: dict[Mover, None] = {}
        """Streams that their engine still serves."""
        self._is_starting = False

    def enter(self, mover: Mover, *, is_cut: bool) -> None:
        """Let a stream move now, or later. Idempotent. `is_cut`: its engine is gone."""
        if mover in self._moving:
            mover.on_move()
            return
        if is_cut:
            self._whole.pop(mover, None)
        (self._cut if is_cut else self._whole)[mover] = None
        self._start()

    def leave(self, mover: Mover) -> None:
        """The stream has moved, or does not have to. Idempotent."""
        self._cut.pop(mover, None)
        self._whole.pop(mover, None)
        if mover in self._moving:
            self._moving.discard(mover)
            self._start()

    def _start(self) -> None:
        """Let as many move as the bound allows. One that fails at once leaves while this runs."""
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while waiting := self._cut or self._whole:
                # At least one, so that each gets its error if there is no engine.
                if len(self._moving) >= max(1, MOVES_PER_ENGINE * self._engines.usable()):
                    return
                mover = next(iter(waiting))
                del waiting[mover]
                self._moving.add(mover)
                mover.on_move()
        finally:
            self._is_starting = False
