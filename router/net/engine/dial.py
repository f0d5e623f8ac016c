"""One attempt to open a connection to an engine.

It takes no task: that would begin one turn of the event loop later, and return the connection two
turns after it was made. A turn takes 10 to 60 ms in a process that is overloaded.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from router.core.values import Failure, FailureKind
from router.net.engine.engine_connection import EngineConnection

__all__ = ["Dial"]

CLOSED: Final = Failure(FailureKind.REFUSED, "The router is closing its connections.")


class Dial:
    """Calls `then` once: with the connection as soon as it is made and can be written to, or with
    the failure. Not before `begin` has returned, and not after `cancel`.
    """

    __slots__ = ("_add", "_coroutine", "_future", "_is_stopped", "_then", "_timer", "loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        add: Callable[[EngineConnection], None],
        then: Callable[[EngineConnection | Failure], None],
    ) -> None:
        """`add` is called with the connection before `then`, to count it."""
        self.loop: Final = loop
        self._add: Final = add
        self._then: Callable[[EngineConnection | Failure], None] | None = then
        """None once it was called or is not to be."""
        self._coroutine: Coroutine[Any, Any, Failure | None]
        self._future: asyncio.Future[Any] | None = None
        """What the coroutine waits for."""
        self._is_stopped = False
        """Whether the coroutine is to be cancelled in its next step."""
        self._timer: asyncio.TimerHandle

    def begin(
        self,
        coroutine: Coroutine[Any, Any, Failure | None],
        seconds: float,
        timed_out: Callable[[], Failure],
    ) -> None:
        """Run `coroutine`, which opens a connection that calls `made`, or returns why it could not.
        After so many seconds it is cancelled, and the failure is what `timed_out` returns."""
        self._coroutine = coroutine
        self._timer = self.loop.call_later(seconds, self._on_timeout, timed_out)
        self._step()

    def made(self, connection: EngineConnection) -> None:
        """The connection is made. After `cancel` the coroutine closes it."""
        if self._then is not None:
            self._add(connection)
            self._report(connection)

    def cancel(self) -> None:
        """Stop. No effect if `then` has been called."""
        if self._then is not None:
            self._then = None
            self._stop()

    def _step(self, _: object = None) -> None:
        """Run the coroutine until it waits for a future again. That goes on after `made`, because
        the event loop's method closes a connection unless it comes to its end."""
        coroutine, self._future = self._coroutine, None
        try:
            if self._is_stopped:  # also if what it waited for was done already, as in a task
                self._is_stopped = False
                future = coroutine.throw(asyncio.CancelledError())
            else:
                future = coroutine.send(None)
        except StopIteration as end:
            if end.value is not None:
                self.loop.call_soon(self._report, end.value)
        except asyncio.CancelledError:  # by `_stop`, or a lookup by its pool
            self.loop.call_soon(self._report, CLOSED)
        else:
            self._future = future
            future.add_done_callback(self._step)

    def _on_timeout(self, timed_out: Callable[[], Failure]) -> None:
        self._stop()
        self._report(timed_out())

    def _report(self, result: EngineConnection | Failure) -> None:
        self._timer.cancel()
        then, self._then = self._then, None
        if then is not None:
            then(result)

    def _stop(self) -> None:
        self._timer.cancel()
        self._is_stopped = True
        if self._future is not None:
            self._future.cancel()
