"""Pictures of one run, as PNG.

Figures are drawn without pyplot: no display, no state. Without requests there is nothing to draw.
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

WIDTH, HEIGHT, DPI = 9.0, 3.4, 110
# One colour for what is to blame, everywhere; the rest stays grey.
BLAME, OTHERS, PLAIN, LIMIT = "#c62828", "#9aa5b1", "#1f5fa8", "#2e7d32"
BINS = 60
# More points than this are drawn by nobody's eye.
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
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    axes = [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(visible=True, alpha=0.25, linewidth=0.6)
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _shade(axes: Axes, diagnosis: Diagnosis) -> None:
    """The time in which it happened."""
    if diagnosis.since is not None and diagnosis.until is not None:
        label = SHADED.get(diagnosis.kind, "in question")
        axes.axvspan(
            diagnosis.since, diagnosis.until, color=BLAME, alpha=0.08, linewidth=0, label=label
        )


def workers(run: Run, diagnosis: Diagnosis) -> Figure | None:
    """What each worker held over time, the one to blame in red; None where nobody knows."""
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
    axes.legend(frameon=False, fontsize="small")
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
    mine = [each for each in good if each.worker and each.worker == diagnosis.worker]
    rest = [each for each in good if not (each.worker and each.worker == diagnosis.worker)]
    for some, colour, label in (
        (rest, OTHERS if mine else PLAIN, "other workers" if mine else "requests"),
        (mine, BLAME, diagnosis.worker),
    ):
        if some:
            at = [each.sent for each in some]
            waited = [max(((each.first or 0.0) - each.sent) * 1e3, LEAST_MS) for each in some]
            axes.scatter(at, waited, s=5, color=colour, label=label, linewidths=0, alpha=0.7)
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
    axes.set_ylabel("ms")
    axes.set_xlabel("sent, seconds since the measured phase began")
    axes.legend(frameon=False, fontsize="small")
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
    axes[0].set_title("Content chunks per second, all workers")
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
        axes[1].set_title("the same, each worker")
        if diagnosis.worker in workers_of(run):
            axes[1].legend(frameon=False, fontsize="small")
    for each in axes:
        _shade(each, diagnosis)
        each.set_xlabel("seconds since the measured phase began")
        each.yaxis.set_major_formatter(THOUSANDS)
        each.set_ylim(bottom=0)
    return figure


def distributions(run: Run, metrics: Metrics, limit_ms: float | None) -> Figure:
    """TTFT and the gaps between chunks, both on logarithmic axes: tails are what matters."""
    figure, (left, right) = _figure(2)
    good = [each for each in run.requests if each.succeeded]
    waits = [((each.first or 0.0) - each.sent) * 1e3 for each in good]
    gaps = [gap * 1e3 for each in good for gap in each.gaps]
    _histogram(left, waits, "Time to first token", "requests")
    if metrics.ttft_ms is not None:
        for name, value in (("p50", metrics.ttft_ms.p50), ("p99", metrics.ttft_ms.p99)):
            if value is not None:
                text, colour = f"{name} {value:.0f} ms", BLAME if name == "p99" else "black"
                left.axvline(value, color=colour, linewidth=1, label=text)
    _limit(left.axvline, limit_ms)
    left.legend(frameon=False, fontsize="small")
    _histogram(right, gaps, "Gaps between content chunks", "gaps")
    return figure


def _histogram(axes: Axes, values: Sequence[float], title: str, counted: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("ms")
    axes.set_ylabel(counted)
    array = np.asarray([each for each in values if each > 0], dtype=np.float64)
    if not len(array):
        return
    low, high = float(array.min()), float(array.max())
    bins = np.geomspace(low * 0.99, max(high, low) * 1.01, BINS)
    axes.hist(array, bins=bins.tolist(), color=PLAIN)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(THOUSANDS)
