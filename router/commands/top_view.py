"""How pd-router top displays a sample: the live page's tables in a terminal.

A router of another version may omit some values, which are displayed as dashes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router.commands.console import cell

__all__ = ["History", "view"]

Json = Mapping[str, Any]

SAMPLES: Final = 20
"""Number of samples in a sparkline, one a second; limited by the table's width."""

BARS: Final = "▁▂▃▄▅▆▇█"
UNKNOWN: Final = "-"

STYLES: Final[Mapping[str, str]] = {"good": "green", "warn": "yellow", "bad": "red"}
"""Style by severity."""

NO_VERDICT: Final[Json] = {
    "severity": "warn",
    "text": "no verdict: the router is of an older version than this pd-router",
}

WORST_FIRST: Final[Mapping[str, int]] = {"bad": 0, "warn": 1, "good": 2}

MAX_CHANGES: Final = 6


class History:
    """Recent values of each engine's tokens per second."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], deque[float | None]] = {}

    def add(self, sample: Json) -> None:
        """Add a sample. Engines that are not in it are removed."""
        engines = [engine for pool in sample["pools"] for engine in pool["endpoints"]]
        before = self._values
        self._values = {_key(e): before.get(_key(e), deque(maxlen=SAMPLES)) for e in engines}
        for engine in engines:
            self._values[_key(engine)].append(engine.get("tokens_per_second"))

    def bars(self, engine: Json, largest: float) -> str:
        """A sparkline; `largest` is the value of the highest bar."""
        values = self._values.get(_key(engine), ())
        return "".join(
            " " if value is None else BARS[min(len(BARS) - 1, int(value / largest * len(BARS)))]
            for value in values
        )

    def largest(self, engines: Sequence[Json]) -> float:
        """The largest value of these engines."""
        found = [v or 0.0 for e in engines for v in self._values.get(_key(e), ())]
        return max([1.0, *found])


def view(sample: Json, history: History) -> RenderableType:
    """The sample as text and tables. The engines come last, those with problems first, because a
    terminal only shows the beginning if the text is too long."""
    verdict = sample.get("verdict", NO_VERDICT)
    return Group(
        _head(sample),
        cell(verdict["text"], style=STYLES[verdict["severity"]]),
        _counts("decisions", ("mode", "reason"), sample.get("decisions", ())),
        _counts("fallbacks", ("leg", "reason"), sample.get("fallbacks", ())),
        _changes(sample.get("changes", ())),
        cell(""),
        *(_pool(pool, history) for pool in sample["pools"]),
    )


def _head(sample: Json) -> Text:
    totals = sample["totals"]
    return cell(
        f"pd-router {sample['version']}  {_clock(sample['time'])} UTC"
        + ("  shutting down" if sample["is_draining"] else ""),
        f"in flight {totals['in_flight']}  requests/s {_number(totals.get('requests_per_second'))}"
        f"  tokens/s {_number(totals.get('tokens_per_second'))}"
        f"  TTFT p50 {_seconds(totals.get('ttft_p50_seconds'))}"
        f" p99 {_seconds(totals.get('ttft_p99_seconds'))}"
        f"  failed in the last minute {_number(totals.get('failures'))}",
    )


def _pool(pool: Json, history: History) -> Table:
    table = Table(
        title=cell(f"{pool['role']} engines: {pool['status']}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("engine", overflow="fold")
    table.add_column("status", no_wrap=True)
    names = ("slowdown", "in flight", "KV", "tokens/s", "p50", "p99", "hits", "share")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    largest = history.largest(pool["endpoints"])
    for engine in sorted(pool["endpoints"], key=_rank):
        slots, style = engine.get("slots"), STYLES.get(engine.get("severity", ""), "")
        table.add_row(
            cell(engine["url"]),
            cell(engine["status"], style=style),
            _ratio(engine.get("slowdown")),
            f"{engine['in_flight']}" + ("" if slots is None else f"/{slots:.0f}"),
            _percent(engine.get("kv_cache_usage")),
            _number(engine.get("tokens_per_second")),
            _seconds(engine.get("ttft_p50_seconds")),
            _seconds(engine.get("ttft_p99_seconds")),
            _percent(engine.get("prefix_hit_ratio")),
            _percent(engine.get("share")),
            history.bars(engine, largest),
        )
        if (cause := engine.get("cause")) is not None:
            table.add_row(cell(f"  {cause}", style=style))
    return table


def _counts(title: str, names: tuple[str, str], found: Sequence[Json]) -> Text:
    told = ", ".join(f"{each[names[0]]} {each[names[1]]} {each['count']:.0f}" for each in found)
    return cell(f"{title} in the last minute: {told or 'none'}")


def _changes(changes: Sequence[Json]) -> Text:
    told = [f"{_clock(each['time'])} {each['text']}" for each in changes[:MAX_CHANGES]]
    return cell("", "last changes:", *(told or ["none"]))


def _key(engine: Json) -> tuple[str, str]:
    return engine["role"], engine["url"]


def _rank(engine: Json) -> int:
    """The position of its severity; unknown ones come last."""
    return WORST_FIRST.get(engine.get("severity", "good"), len(WORST_FIRST))


def _clock(time: str) -> str:
    """The time of day of an ISO 8601 time."""
    return time[11:19]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}x"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
