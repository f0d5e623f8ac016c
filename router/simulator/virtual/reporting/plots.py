"""Plots of results. matplotlib is in the extra `bench` and is loaded here only, when asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from router.simulator.virtual.reporting.results import Result

WINDOW = 8
"""Samples that a point of the throughput looks back on: two seconds."""


class PlotsUnavailable(Exception):
    """matplotlib is not installed."""


def plot(results: Sequence[Result], folder: Path) -> list[Path]:
    """One PNG per scenario, its policies side by side. Raises PlotsUnavailable, or OSError."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PlotsUnavailable(str(error)) from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in dict.fromkeys(result.scenario for result in results):
        figure = Figure(figsize=(13, 8), layout="constrained")
        figure.suptitle(f"{name} (virtual time)")
        _draw(figure.subplots(2, 2), [result for result in results if result.scenario == name])
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        paths.append(path)
    return paths


def _draw(axes: Any, results: Sequence[Result]) -> None:
    (rate, load), (ttft, e2e) = axes
    for result in results:
        ends = result.samples[WINDOW:]
        pairs = [*zip(result.samples, ends, strict=False)]
        speed = [(b.ended - a.ended) / (b.at - a.at) for a, b in pairs]
        rate.plot([b.at for _, b in pairs], speed, label=result.policy)
        load.plot([s.at for s in result.samples], [s.loads[0] for s in result.samples])
    rate.set(title="requests per second, over 2 s", xlabel="seconds", ylim=(0, None))
    load.set(title="requests on the slowest engine", xlabel="seconds", ylim=(0, None))
    rate.legend(fontsize="small")
    names = [result.policy for result in results]
    for axis, title, low, high in (
        (ttft, "TTFT", "ttft_p50", "ttft_p99"),
        (e2e, "end to end", "e2e_p50", "e2e_p99"),
    ):
        axis.barh(names, [getattr(r, high) for r in results], color="tab:orange", label="p99")
        axis.barh(names, [getattr(r, low) for r in results], color="tab:blue", label="p50")
        axis.set(title=f"{title}, seconds", xscale="log")
        axis.invert_yaxis()
        axis.legend(fontsize="small")
