"""Pictures of one run, as PNG.

Figures are drawn without pyplot: no display, no state. They need requests.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter

from benchmarks.gate.analysis.metrics import Metrics
from benchmarks.gate.analysis.records import Diagnosis, Kind, Run
from benchmarks.gate.analysis.timeline import (
    Numbers,
    attributed,
    chunk_times,
    end_of,
    rate,
    timeline,
    workers_of,
)

WIDTH, HEIGHT, DPI = 9.0, 3.6, 110
# Shares of the figure, with two rows of a legend below. To find the least margins would double the
# time of drawing.
MARGINS = {"left": 0.09, "right": 0.98, "top": 0.91, "bottom": 0.31, "wspace": 0.22}
# One colour for the culprit, everywhere; the rest stays grey.
BLAME, OTHERS, PLAIN, LIMIT = "#c62828", "#9aa5b1", "#1f5fa8", "#2e7d32"
BINS = 60
# More points than this overlap in the plot.
POINTS = 6000
# A logarithmic axis has no zero.
LEAST_MS = 0.1
SHADED = {Kind.BACKUP: "backed up", Kind.HEALTHY: "stood still", Kind.COLD: "slow start"}
THOUSANDS = StrMethodFormatter("{x:,.10g}")


def draw(
    run: Run, metrics: Metrics, diagnosis: Diagnosis, limit_ms: float | None = None
) -> dict[str, bytes]:
    """PNGs by name: workers, first-tokens, throughput, distributions. `limit_ms` is the TTFT p99
    that still passes."""
    if not run.requests:
        return {}
    found = {}
    if (figure := workers(run, diagnosis)) is not None:
        found["workers"] = _png(figure)
    if metrics.ttft_ms is not None:
        found["first-tokens"] = _png(first_tokens(run, diagnosis, limit_ms))
        found["throughput"] = _png(throughput(run, diagnosis))
        found["distributions"] = _png(distributions(run, metrics, limit_ms))
    return found


def save(pictures: dict[str, bytes], folder: Path, prefix: str = "") -> list[Path]:
    """Write them as files; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{prefix}{name}.png" for name in pictures]
    for path, data in zip(paths, pictures.values(), strict=True):
        path.write_bytes(data)
    return paths


def _figure(columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI)
    figure.subplots_adjust(**MARGINS)
    axes = [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(visible=True, alpha=0.25, linewidth=0.6)
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _legend(figure: Figure) -> None:
    """Below the axes, so that no data are covered. Each label once."""
    named = {
        str(label): handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if named:
        figure.legend(
            [*named.values()],
            [*named],
            loc="lower center",
            ncols=4,
            frameon=False,
            fontsize="small",
        )


def _shade(axes: Axes, diagnosis: Diagnosis) -> None:
    """The time in which it happened."""
    if diagnosis.since is not None and diagnosis.until is not None:
        label = SHADED.get(diagnosis.kind, "in question")
        axes.axvspan(
            diagnosis.since, diagnosis.until, color=BLAME, alpha=0.08, linewidth=0, label=label
        )


def workers(run: Run, diagnosis: Diagnosis) -> Figure | None:
    """What each worker held over time, the one to blame in red; None if that is not known."""
    seen = timeline(run)
    if seen is None or not seen.loads:
        return None
    figure, (axes,) = _figure()
    plain = 0
    for name, load in seen.loads.items():
        if name == diagnosis.worker:
            continue
        label = "other workers" if diagnosis.worker else "workers"
        axes.plot(seen.times, load, color=OTHERS, linewidth=1, label=None if plain else label)
        plain += 1
    if diagnosis.worker in seen.loads:
        load = seen.loads[diagnosis.worker]
        axes.plot(seen.times, load, color=BLAME, linewidth=2, label=diagnosis.worker)
        _name_peak(axes, seen.times, load, diagnosis)
    fair = run.concurrency / len(seen.loads)
    axes.axhline(fair, color=LIMIT, linewidth=1, linestyle="--", label=f"fair share ({fair:.0f})")
    _shade(axes, diagnosis)
    axes.set_title(f"Requests held by each worker (as counted by the {seen.source})")
    axes.set_ylabel("requests in flight")
    axes.margins(y=0.12)
    axes.set_xlabel("seconds since the measured phase began")
    axes.set_ylim(bottom=0)
    _legend(figure)
    return figure


def _name_peak(axes: Axes, times: Numbers, load: Numbers, diagnosis: Diagnosis) -> None:
    if diagnosis.kind is not Kind.BACKUP or np.isnan(load).all():
        return
    peak = int(np.nanargmax(load))
    axes.annotate(
        f"{load[peak]:.0f}",
        (times[peak], load[peak]),
        xytext=(0, 4),
        ha="center",
        textcoords="offset points",
        color=BLAME,
        fontweight="bold",
    )


def first_tokens(run: Run, diagnosis: Diagnosis, limit_ms: float | None) -> Figure:
    """Each request's TTFT by when it was sent; those of the worker to blame in red."""
    figure, (axes,) = _figure()
    good = [each for each in run.requests if each.succeeded]
    good = good[:: len(good) // POINTS + 1]
    blamed = [each for each in good if each.waited_for and each.waited_for == diagnosis.worker]
    rest = [each for each in good if not (each.waited_for and each.waited_for == diagnosis.worker)]
    mine = [each for each in blamed if not each.left]
    moved = [each for each in blamed if each.left]
    for some, colour, label, marker, size in (
        (rest, OTHERS if blamed else PLAIN, "other workers" if blamed else "requests", "o", 5),
        (mine, BLAME, diagnosis.worker, "o", 5),
        (moved, BLAME, f"waited for {diagnosis.worker}, then moved to another", "^", 16),
    ):
        if some:
            at = [each.sent for each in some]
            waited = [max(((each.first or 0.0) - each.sent) * 1e3, LEAST_MS) for each in some]
            axes.scatter(
                at,
                waited,
                s=size,
                marker=marker,
                color=colour,
                label=label,
                linewidths=0,
                alpha=0.7,
            )
    ended = [each for each in run.requests if each.ended is not None and not run.gave_up(each)]
    failed = [each for each in ended if not each.succeeded]
    if failed:
        at = [each.sent for each in failed]
        lasted = [max(((each.ended or 0.0) - each.sent) * 1e3, LEAST_MS) for each in failed]
        axes.scatter(at, lasted, s=18, marker="x", color="black", label="failed", linewidths=0.8)
    _limit(axes.axhline, limit_ms)
    _shade(axes, diagnosis)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.margins(y=0.12)
    axes.set_title("How long each request waited for its first token")
    axes.set_ylabel("time to first token, ms")
    axes.set_xlabel("sent, seconds since the measured phase began")
    _legend(figure)
    return figure


def _limit(line: Callable[..., Line2D], limit_ms: float | None) -> None:
    if limit_ms is not None:
        line(limit_ms, color=LIMIT, linewidth=1, linestyle="--", label=f"limit {limit_ms:.0f} ms")


def throughput(run: Run, diagnosis: Diagnosis) -> Figure:
    """Tokens per second over time: all together, and the worker to blame beside the others."""
    several = attributed(run) and len(workers_of(run)) > 1
    figure, axes = _figure(2 if several else 1)
    end = end_of(run)
    edges = np.linspace(0.0, end if end > 0 else 1.0, BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    axes[0].plot(middle, rate(chunk_times(run.requests), edges), color=PLAIN)
    axes[0].set_title("Content chunks, all workers")
    axes[0].set_ylabel("chunks per second")
    if several:
        for name in sorted(workers_of(run), key=lambda name: name == diagnosis.worker):
            mine = chunk_times(each for each in run.requests if each.worker == name)
            blamed = name == diagnosis.worker
            axes[1].plot(
                middle,
                rate(mine, edges),
                color=BLAME if blamed else OTHERS,
                linewidth=2 if blamed else 1,
                label=name if blamed else None,
            )
        axes[1].set_title("Content chunks, each worker")
    for each in axes:
        _shade(each, diagnosis)
        each.set_xlabel("seconds since the measured phase began")
        each.yaxis.set_major_formatter(THOUSANDS)
        each.set_ylim(bottom=0)
    _legend(figure)
    return figure


def distributions(run: Run, metrics: Metrics, limit_ms: float | None) -> Figure:
    """TTFT and the gaps between chunks, both on logarithmic axes: tails are what matters."""
    figure, (left, right) = _figure(2)
    good = [each for each in run.requests if each.succeeded]
    waits = [((each.first or 0.0) - each.sent) * 1e3 for each in good]
    gaps = [gap * 1e3 for each in good for gap in each.gaps]
    _tail(left, waits, "Time to first token", "requests")
    if metrics.ttft_ms is not None:
        for name, value in (("p50", metrics.ttft_ms.p50), ("p99", metrics.ttft_ms.p99)):
            if value is not None:
                text, colour = f"{name} {value:.0f} ms", BLAME if name == "p99" else "black"
                left.axvline(value, color=colour, linewidth=1, label=text)
    _limit(left.axvline, limit_ms)
    _tail(right, gaps, "Gap between content chunks", "gaps")
    _legend(figure)
    return figure


def _tail(axes: Axes, values: Sequence[float], title: str, counted: str) -> None:
    """The share that is larger than each value: a line through the data itself, without bins."""
    axes.set_title(title)
    axes.set_xlabel(f"{title.lower()}, ms")
    axes.set_ylabel(f"share of {counted} that took longer")
    array = np.sort(np.asarray([each for each in values if each > 0], dtype=np.float64))
    if not len(array):
        return
    # Of the last ones each is drawn, of the many before them some.
    place = np.unique(np.append(np.linspace(0, len(array) - 1, POINTS), np.arange(-POINTS, 0)))
    place = np.unique(place.astype(int) % len(array))
    share = 1.0 - place / len(array)
    axes.step(array[place], share, where="post", color=PLAIN)
    for level in (0.5, 0.01):
        axes.axhline(level, color=OTHERS, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
