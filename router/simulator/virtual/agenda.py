"""Virtual time: a queue of events, ordered by time and then by insertion."""

from collections.abc import Callable
from heapq import heappop, heappush

Event = Callable[[float], None]
"""Called with its time."""


class Agenda:
    """A heap of events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Number of events that have happened."""
        self._heap: list[tuple[float, int, Event]] = []
        self._planned = 0

    def at(self, when: float, event: Event) -> None:
        """Schedule an event. Of two at the same time the one scheduled first happens first."""
        self._planned += 1
        heappush(self._heap, (when, self._planned, event))

    def every(self, seconds: float, first: float, event: Event) -> None:
        """Schedule an event repeatedly, without end."""

        def again(now: float) -> None:
            event(now)
            self.at(now + seconds, again)

        self.at(first, again)

    def run_while(self, is_going_on: Callable[[], bool], until: float) -> None:
        """Process events. Raises RuntimeError if it is still going on at `until`."""
        heap = self._heap
        while is_going_on():
            self.now, _, event = heappop(heap)
            if self.now > until:
                raise RuntimeError(f"the simulation did not end within {until:g} virtual seconds")
            self.events += 1
            event(self.now)
