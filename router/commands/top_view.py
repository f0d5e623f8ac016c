"""How pd-router top displays a sample: the live page's tables in a terminal.

A router of another version may omit some values, which are displayed as dashes.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from router.commands.console import UNBOUNDED, cell
from router.commands.flags import one_line

__all__ = ["History", "view"]

Json = Mapping[str, Any]

SAMPLES: Final = 20
"""Number of samples in a sparkline, one a second."""

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

FIGURES: Final[Mapping[str, Callable[[Json], str]]] = {
    "slowdown": lambda engine: _ratio(engine.get("slowdown")),
    "in flight": lambda engine: _in_flight(engine),
    "KV": lambda engine: _percent(engine.get("kv_cache_usage")),
    "tokens/s": lambda engine: _number(engine.get("tokens_per_second")),
    "p50": lambda engine: _seconds(engine.get("ttft_p50_seconds")),
    "p99": lambda engine: _seconds(engine.get("ttft_p99_seconds")),
    "hits": lambda engine: _percent(engine.get("prefix_hit_ratio")),
    "share": lambda engine: _percent(engine.get("share")),
}
"""The columns after an engine's name and status. A narrow terminal leaves out the right-hand
ones."""

LEAST_COLUMNS: Final = 4
"""Columns that are shown in any terminal: name, status, slowdown and requests in flight."""

LEAST_NAME: Final = 12
"""Least width of the engines' names in characters."""

GAP: Final = "  "

LINES_BESIDE: Final = 6
"""Lines for totals, verdict, decisions, fallbacks and a blank."""

LINES_OF_POOL: Final = 3
"""Lines of a pool besides those of its engines: a blank, its title, the columns' names."""


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


def view(
    sample: Json, history: History, width: int = UNBOUNDED, height: int = UNBOUNDED
) -> RenderableType:
    """The sample as text for a terminal of this size in characters. Pools come before the changes,
    and engines with problems first, because a terminal only shows the beginning of a long text."""
    verdict, span, pools = sample.get("verdict", NO_VERDICT), _span(sample), sample["pools"]
    lines: list[Text] = []
    for place, pool in enumerate(pools):
        room = height - LINES_BESIDE - len(lines)
        lines += _pool(pool, history, width, room // (len(pools) - place) - LINES_OF_POOL)
    return Group(
        _head(sample, span),
        cell(verdict["text"], style=STYLES[verdict["severity"]]),
        *lines,
        cell(""),
        _counts(f"decisions in the {span}", ("mode", "reason"), sample.get("decisions", ())),
        _counts(f"fallbacks in the {span}", ("leg", "reason"), sample.get("fallbacks", ())),
        _changes(sample.get("changes", ())),
    )


def _span(sample: Json) -> str:
    """The period of counts. It is shorter soon after a start of the router, and longer for a first
    viewer of very many engines."""
    seconds = sample.get("window_seconds", 60.0)
    return "last minute" if 55 < seconds < 75 else f"last {seconds:.0f} s"


def _head(sample: Json, span: str) -> Text:
    totals = sample["totals"]
    return cell(
        f"pd-router {sample['version']}  {_clock(sample['time'])} UTC"
        f"  failed in the {span} {_count(totals.get('failures'))}"
        + ("  shutting down" if sample["is_draining"] else ""),
        f"in flight {totals['in_flight']}  requests/s {_number(totals.get('requests_per_second'))}"
        f"  tokens/s {_number(totals.get('tokens_per_second'))}"
        f"  TTFT p50 {_seconds(totals.get('ttft_p50_seconds'))}"
        f" p99 {_seconds(totals.get('ttft_p99_seconds'))}",
    )


def _pool(pool: Json, history: History, width: int, room: int) -> list[Text]:
    """The lines of a pool. `room`: lines for its engines."""
    engines = sorted(pool["endpoints"], key=_rank)
    largest = history.largest(engines)
    names = ["engine", "status", *FIGURES, ""]
    rows = [[*_row(engine), history.bars(engine, largest)] for engine in engines]
    widths = _fitting([names, *rows], width)
    title = cell(f"{pool['role']} engines: {pool['status']}", style="bold")
    lines = [cell(""), title, _line(names, widths)]
    room += len(lines)
    for left, engine, row in zip(range(len(engines))[::-1], engines, rows, strict=True):
        style, cause = STYLES.get(engine.get("severity", ""), ""), engine.get("cause")
        if len(lines) + 1 + (cause is not None) + (left > 0) > room:
            return [*lines, cell(f"and {left + 1} more")]
        lines.append(_line(row, widths, style))
        if cause is not None:
            lines.append(cell(f"  {cause}", style=style))
    return lines


def _row(engine: Json) -> list[str]:
    url: str = engine["url"]
    name = url.partition("://")[2] or url
    return [one_line(name), engine["status"], *(figure(engine) for figure in FIGURES.values())]


def _fitting(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The widths of the columns that fit."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    beside = sum(len(GAP) + each for each in widths[1:LEAST_COLUMNS])
    widths[0] = min(widths[0], max(LEAST_NAME, width - beside))
    while len(widths) > LEAST_COLUMNS and sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widths.pop()
    return widths


def _line(row: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    """A line of a table. `style`: of the status."""
    name, status, *figures = row
    if len(name) > widths[0]:
        name = f"{name[: widths[0] - 1]}…"
    line = Text(name.ljust(widths[0]) + GAP, no_wrap=True)
    line.append(status.ljust(widths[1]), style)
    for text, width in zip(figures, widths[2:], strict=False):
        line.append(GAP + text.rjust(width))
    return line


def _counts(title: str, names: tuple[str, str], found: Sequence[Json]) -> Text:
    counted = ", ".join(f"{each[names[0]]} {each[names[1]]} {each['count']:.0f}" for each in found)
    return cell(f"{title}: {counted or 'none'}")


def _changes(changes: Sequence[Json]) -> Text:
    lines = [f"{_clock(each['time'])} {each['text']}" for each in changes[:MAX_CHANGES]]
    return cell("last changes:", *(lines or ["none"]))


def _key(engine: Json) -> tuple[str, str]:
    return engine["role"], engine["url"]


def _rank(engine: Json) -> int:
    """The position of its severity; unknown ones come last."""
    return WORST_FIRST.get(engine.get("severity", "good"), len(WORST_FIRST))


def _clock(time: str) -> str:
    """The time of day of an ISO 8601 time."""
    return time[11:19]


def _in_flight(engine: Json) -> str:
    slots = engine.get("slots")
    return f"{engine['in_flight']}" + ("" if slots is None else f"/{slots:.0f}")


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


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
