"""What happens while it happens: phase, rates, first tokens so far, the fullest worker.

On a terminal a display that is redrawn, elsewhere a line every few seconds. `Board` is pure and
takes the time as an argument.
"""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table

from benchmarks.gate.traffic.load import Progress

# Rates are over this time: shorter ones jump, longer ones hide a stall.
RATE_S = 3.0
# Seconds between two pictures, and between two lines.
DRAW_S, LINE_S = 0.5, 5.0

Busiest = Callable[[], tuple[str, float] | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """One moment. Rates are per second; absence is None."""

    phase: str
    done: int
    total: int
    requests_rate: float
    chunks_rate: float
    in_flight: int
    errors: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    worst: tuple[str, float] | None

    @property
    def line(self) -> str:
        """For logs."""
        parts = [
            f"{self.phase}: {self.done} of {self.total}",
            f"{self.requests_rate:.1f} requests/s",
            f"{self.chunks_rate:.0f} chunks/s",
            f"{self.in_flight} in flight",
            f"{self.errors} errors",
            f"TTFT {self.ttft}",
        ]
        if self.worst is not None:
            parts.append(f"fullest worker {self.worst[0]} ({self.worst[1]:.0f})")
        return ", ".join(parts)

    @property
    def ttft(self) -> str:
        """Both percentiles."""
        if self.ttft_p50_ms is None or self.ttft_p99_ms is None:
            return "none yet"
        return f"p50 {self.ttft_p50_ms:.0f} ms p99 {self.ttft_p99_ms:.0f} ms"


class Board:
    """Adds up the progress of the generator's processes in a phase."""

    def __init__(self) -> None:
        self.busiest: Busiest = lambda: None
        self.begin("", 0, 0.0)

    def begin(self, phase: str, total: int, now: float) -> None:
        """A new phase of so many requests."""
        self.phase, self.total = phase, total
        self._in_flight: dict[int, int] = {}
        self._ended = self._errors = self._chunks = 0
        self._firsts = array("d")
        self._marks: deque[tuple[float, int, int]] = deque([(now, 0, 0)])

    def hear(self, number: int, progress: Progress) -> None:
        """Progress of one process."""
        self._in_flight[number] = progress.in_flight
        self._ended += progress.ended
        self._errors += progress.errors
        self._chunks += progress.chunks
        self._firsts.extend(progress.firsts)

    def figures(self, now: float) -> Figures:
        """Of this moment, which is also a mark that rates are taken from."""
        self._marks.append((now, self._ended, self._chunks))
        while len(self._marks) > 2 and self._marks[1][0] <= now - RATE_S:
            self._marks.popleft()
        since, ended, chunks = self._marks[0]
        passed = max(now - since, 1e-9)
        p50, p99 = np.percentile(self._firsts, (50, 99)) * 1e3 if self._firsts else (None, None)
        return Figures(
            phase=self.phase,
            done=self._ended,
            total=self.total,
            requests_rate=(self._ended - ended) / passed,
            chunks_rate=(self._chunks - chunks) / passed,
            in_flight=sum(self._in_flight.values()),
            errors=self._errors,
            ttft_p50_ms=p50,
            ttft_p99_ms=p99,
            worst=self.busiest(),
        )


def table(figures: Figures) -> Table:
    """For a terminal."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    done = ProgressBar(total=max(figures.total, 1), completed=figures.done, width=40)
    grid.add_row(figures.phase, done)
    grid.add_row("requests", f"{figures.done:,} of {figures.total:,}, {figures.errors} failed")
    grid.add_row(
        "per second", f"{figures.requests_rate:,.1f} requests, {figures.chunks_rate:,.0f} chunks"
    )
    grid.add_row("in flight", f"{figures.in_flight:,}")
    grid.add_row("first token", figures.ttft)
    if figures.worst is not None:
        grid.add_row("fullest worker", f"{figures.worst[0]}: {figures.worst[1]:.0f} in flight")
    return grid


class Live:
    """Shows a board while it is entered, where there is a phase to show."""

    def __init__(self, board: Board, console: Console, *, drawn: bool) -> None:
        self._board, self._console = board, console
        self._display = Display(console=console, auto_refresh=False, transient=True)
        self._drawn = drawn and console.is_terminal
        self._task: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    async def __aenter__(self) -> Self:
        if self._drawn:
            self._display.start()
        self._task = asyncio.ensure_future(self._show())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._drawn:
            self._display.stop()

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(DRAW_S if self._drawn else LINE_S)
            if not self._board.phase:
                continue
            figures = self._board.figures(time.monotonic())
            if self._drawn:
                self._display.update(table(figures), refresh=True)
            else:
                self.say(figures.line)
