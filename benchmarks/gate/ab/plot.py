"""The picture of a comparison: throughput and TTFT p99 by policy, a dot for each round."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.gate.ab.result import Row
from benchmarks.gate.analysis.verdict import Exit
from benchmarks.gate.output.plots import BLAME, DPI, LIMIT, OTHERS, THOUSANDS, WIDTH

# A row of dots and its surroundings.
ROW, FRAME = 0.55, 1.5
COLOURS = {Exit.PASS.name: LIMIT, Exit.FAIL.name: BLAME}
# Vertical distance between dots of one policy, so that equal values are visible.
APART = 0.08
# Margin of an axis beyond its last dot.
ROOM = 1.06


def draw(policies: Sequence[str], rows: Sequence[Row], title: str, limit: float | None) -> bytes:
    """A PNG. `limit` is the TTFT p99 in ms that still passes."""
    height = FRAME + ROW * len(policies)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    left: Any = figure.add_subplot(1, 2, 1)
    right: Any = figure.add_subplot(1, 2, 2, sharey=left)
    _dots(left, policies, rows, lambda each: each.throughput)
    _dots(right, policies, rows, lambda each: each.ttft_p99_ms)
    left.set_xlabel("output tokens/s")
    right.set_xlabel("TTFT p99 in ms")
    left.set_yticks(range(len(policies)), policies)
    left.set_ylim(len(policies) - 0.5, -0.5)
    right.tick_params(labelleft=False)
    if limit is not None:
        right.axvline(limit, color=OTHERS, linewidth=1, linestyle="--")
    figure.suptitle(
        f"{title}\na dot for each round: green passed, red failed, grey neither", fontsize=9
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _dots(
    axes: Axes,
    policies: Sequence[str],
    rows: Sequence[Row],
    figure_of: Callable[[Row], float | None],
) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    axes.xaxis.set_major_formatter(THOUSANDS)
    known = [value for each in rows if (value := figure_of(each)) is not None]
    axes.set_xlim(0, ROOM * max(known, default=1.0))
    most = max((each.round for each in rows), default=1)
    for each in rows:
        if (value := figure_of(each)) is not None:
            place = policies.index(each.policy) + (each.round - (most + 1) / 2) * APART
            axes.plot(value, place, "o", markersize=5, color=COLOURS.get(each.verdict, OTHERS))
