"""Plots of results. matplotlib is in the extra `bench` and is only imported here, when needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from router import __version__
from router.simulator.virtual.results import Result

WINDOW = 8
"""Number of samples, two seconds, over which the throughput is averaged."""

POINTS = 500
"""Points of a curve, including all of its last ones, where p99 is."""

LINES = ("-", "--", "-.", ":")
"""Line styles in addition to ten colours, because the curves of similar policies overlap."""


class PlotsUnavailable(Exception):
    """matplotlib is not installed."""


def plot(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write one PNG per scenario with its policies side by side. Raises PlotsUnavailable or
    OSError."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PlotsUnavailable(str(error)) from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in dict.fromkeys(result.scenario for result in results):
        shown = [result for result in results if result.scenario == name]
        figure = Figure(figsize=(13, 9), layout="constrained")
        figure.suptitle(_title(shown[0]))
        _draw(figure, shown)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        paths.append(path)
    return paths


def _title(result: Result) -> str:
    """The common title of all policies' plots."""
    return (
        f"{result.scenario}: {len(result.engines)} modelled engines, {result.requests} requests, "
        f"seed {result.seed}, virtual time (pd-router {__version__})"
    )


def _draw(figure: Any, results: Sequence[Result]) -> None:
    (rate, load), (ttft, e2e) = figure.subplots(2, 2)
    for number, result in enumerate(results):
        style = {"color": f"C{number % 10}", "linestyle": LINES[number % len(LINES)]}
        ends = result.samples[WINDOW:]
        pairs = [*zip(result.samples, ends, strict=False)]
        speed = [(b.ended - a.ended) / (b.at - a.at) for a, b in pairs]
        rate.plot([b.at for _, b in pairs], speed, label=result.policy, **style)
        load.plot([s.at for s in result.samples], [s.loads[0] for s in result.samples], **style)
        for axes, values in ((ttft, result.ttft), (e2e, result.e2e)):
            axes.step(*_tail(values), where="post", **style)
    now = "virtual time, seconds"
    rate.set(title="Throughput, over 2 s", xlabel=now, ylabel="requests per second", ylim=(0, None))
    load.set(title="Engine 0, one of the slowest", xlabel=now, ylabel="requests in flight")
    load.set_ylim(bottom=0)
    for axes, name in ((ttft, "time to first token"), (e2e, "time to the last token")):
        axes.set(
            title=name.capitalize(),
            xlabel=f"{name}, seconds",
            ylabel="share of requests that took longer",
            xscale="log",
            yscale="log",
        )
        for share in (0.5, 0.01):
            axes.axhline(share, color="0.6", linewidth=0.8, linestyle=":")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(visible=True, alpha=0.3)
    # Below the plots, where it covers nothing.
    figure.legend(loc="outside lower center", ncols=min(len(results), 5), frameon=False)


def _tail(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The share of the ascending `values` that is larger than each of them. Times of zero are left
    out, because the axis is logarithmic."""
    count = len(values)
    step = max(1, count // POINTS)
    places = sorted({*range(0, count, step), *range(max(0, count - POINTS), count)})
    shown = [place for place in places if values[place] > 0]
    return [values[place] for place in shown], [1 - place / count for place in shown]
