"""The picture beside the results: CPU per chunk by router and streams, and the burst's TTFT p99.

The same figures give the same bytes, and the file says of which figures it is (`digest`). Drawn
without pyplot: no display, no state.
"""

import hashlib
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import orjson
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.distributions import Summary

WIDTH, HEIGHT, DPI = 9.0, 3.6, 110
COLOURS = {
    "ours": "#c62828",
    "ours-2": "#ef9a9a",
    "vllm-router": "#1f5fa8",
    "smg-power-of-two": "#6a4c93",
    "nginx": "#2e7d32",
    "direct": "#9aa5b1",
}
OTHER = "#555555"
KEY = "Comment"


@dataclass(frozen=True)
class Bars:
    """One panel: groups of bars, one bar per router."""

    title: str
    unit: str
    groups: Mapping[str, Mapping[str, Summary]]


def digest(panels: Sequence[Bars]) -> str:
    """What the picture is of, as a hash."""
    plain = orjson.dumps([asdict(panel) for panel in panels], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(plain).hexdigest()


def draw(panels: Sequence[Bars]) -> bytes:
    """The picture as PNG."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    shares = [max(len(panel.groups), 1) + 1 for panel in panels]
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=shares)[0]
    for ax, panel in zip(axes, panels, strict=True):
        _panel(ax, panel)
    # The first bar of each router in any panel stands for it.
    keys: dict[str, Artist] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            keys.setdefault(name, handle)
    if keys:
        figure.legend(
            list(keys.values()), list(keys), loc="outside lower center", ncols=6, fontsize=8
        )
    output = io.BytesIO()
    figure.savefig(output, format="png", metadata={"Software": None, KEY: digest(panels)})
    return output.getvalue()


def _panel(ax: Axes, panel: Bars) -> None:
    ax.set_title(panel.title, fontsize=10)
    ax.set_ylabel(panel.unit, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    if not panel.groups:
        ax.text(0.5, 0.5, "not measured", ha="center", transform=ax.transAxes)
        ax.set_xticks([])
        return
    names = list(dict.fromkeys(name for group in panel.groups.values() for name in group))
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        at = [place for place, group in enumerate(panel.groups.values()) if name in group]
        seen = [group[name] for group in panel.groups.values() if name in group]
        offset = (index - (len(names) - 1) / 2) * width
        ax.bar(
            [place + offset for place in at],
            [each.median for each in seen],
            width,
            yerr=[[s.median - s.low for s in seen], [s.high - s.median for s in seen]],
            label=name,
            color=COLOURS.get(name, OTHER),
            error_kw={"elinewidth": 0.8, "capsize": 2},
        )
    ax.set_xticks(range(len(panel.groups)), list(panel.groups))


def read_digest(png: bytes) -> str | None:
    """The digest that a picture carries; None where it has none."""
    at = 8  # behind the signature
    while at + 8 <= len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        name, _, text = png[at + 8 : at + 8 + size].partition(b"\0")
        if kind == b"tEXt" and name.decode() == KEY:
            return text.decode()
        at += 12 + size
    return None
