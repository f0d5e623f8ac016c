"""What pd-router top shows of a sample."""

import io
from typing import Any

import pytest
from rich.console import Console

from router.commands.top_view import SAMPLES, History, view


def engine(number: int, **more: Any) -> dict[str, Any]:
    """An engine as a sample has it."""
    return {
        "url": f"http://d{number}:8000",
        "role": "decode",
        "status": "up",
        "severity": "good",
        "cause": None,
        "slowdown": 1.0,
        "in_flight": 3,
        "slots": None,
        "kv_cache_usage": 0.25,
        "tokens_per_second": 120.0,
        "ttft_p50_seconds": 0.05,
        "ttft_p99_seconds": 1.5,
        "prefix_hit_ratio": 0.9,
        "share": 0.5,
        **more,
    }


def sample(*engines: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A sample of one pool."""
    return {
        "version": "0.2.0",
        "time": "2026-01-01T12:34:56Z",
        "is_draining": False,
        "verdict": {"severity": "good", "troubles": 0, "text": "All engines are up"},
        "totals": {
            "in_flight": 6,
            "requests_per_second": 2.5,
            "tokens_per_second": 1234.0,
            "failures": 0.0,
            "ttft_p50_seconds": 0.05,
            "ttft_p99_seconds": None,
        },
        "pools": [{"role": "decode", "status": "2 of 2 up", "endpoints": list(engines)}],
        "decisions": [{"mode": "direct", "reason": "below_threshold", "count": 7.0, "total": 9.0}],
        "fallbacks": [],
        "changes": [{"time": "2026-01-01T12:00:00Z", "is_bad": True, "text": "d1 is slow"}],
        **more,
    }


def shown(found: dict[str, Any], size: tuple[int, int] = (200, 100), *, style: bool = False) -> str:
    """As text on a terminal of so many columns and lines."""
    history = History()
    for _ in range(SAMPLES):
        history.add(found)
    out, (width, height) = io.StringIO(), size
    console = Console(
        file=out, width=width, height=height, color_system="standard" if style else None
    )
    console.print(view(found, history, width, height))
    return out.getvalue()


def test_engines_stand_in_a_table_with_their_figures() -> None:
    text = shown(sample(engine(0), engine(1, slots=64.0, tokens_per_second=None)))
    [first] = [line for line in text.splitlines() if "d0:8000" in line]
    words = ["up", "1.0x", "3", "25%", "120", "50", "ms", "1.5", "s", "90%", "50%"]
    assert first.split()[1:-1] == words, first
    assert "3/64" in text
    assert "decode engines: 2 of 2 up" in text
    assert "12:34:56 UTC" in text
    assert "tokens/s 1,234" in text
    assert "direct below_threshold 7" in text
    assert "fallbacks in the last minute: none" in text
    assert "12:00:00 d1 is slow" in text


def test_the_slow_engine_is_highlighted_with_its_cause() -> None:
    slow = engine(1, status="slow", severity="warn", cause="it takes 8.0 times the pool's median")
    text = shown(sample(engine(0), slow), style=True)
    assert "\x1b[33mslow" in text
    assert "it takes 8.0 times the pool's median" in text


def test_faults_come_before_the_part_that_a_terminal_may_cut_off() -> None:
    slow = engine(97, status="slow", severity="warn", cause="it takes 8.0 times the pool's median")
    down = engine(98, status="down", severity="bad", cause="nothing listens there")
    verdict = {"severity": "bad", "troubles": 2, "text": "decode d98 is down; decode d97 is slow"}
    well = [engine(number) for number in range(97)]
    lines = shown(sample(*well, slow, down, verdict=verdict), (80, 24)).splitlines()
    wanted = (
        *("decode d98 is down; ", "d98:8000  down", "nothing listens there"),
        *("d97:8000  slow", "it takes", "d0:", "d1:", "more", "last changes:"),
    )
    places = [next(n for n, line in enumerate(lines) if text in line) for text in wanted]
    assert places == sorted(places)
    assert places[-1] == 24, "only the changes are cut off"
    assert f"and {99 - sum(':8000' in line for line in lines)} more" in lines


DECODE = {"role": "decode", "status": "8 of 8 up"}
PREFILL = {"role": "prefill", "status": "4 of 4 up"}


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (40, "engine status slowdown in flight"),
        (80, "engine status slowdown in flight KV tokens/s p50 p99 hits share"),
        (120, "engine status slowdown in flight KV tokens/s p50 p99 hits share"),
    ],
)
def test_in_a_narrow_terminal_right_hand_columns_go_first(width: int, columns: str) -> None:
    engines = [engine(number, slots=256.0) for number in range(8)]
    lines = shown(sample(*engines), (width, 24)).splitlines()
    [head] = [line for line in lines if "slowdown" in line]
    assert head.split() == columns.split()
    assert [line.split()[0] for line in lines if ":8000" in line] == [
        f"d{number}:8000" for number in range(8)
    ]
    [row] = [line for line in lines if "d7:8000" in line]
    assert ("▁" in row or "█" in row) is (width == 120)


def test_all_pools_and_decisions_are_on_the_smallest_terminal() -> None:
    pools = [
        {**PREFILL, "endpoints": [engine(n, role="prefill") for n in range(10, 14)]},
        {**DECODE, "endpoints": [engine(n) for n in range(8)]},
    ]
    lines = shown(sample(pools=pools), (80, 24)).splitlines()[:24]
    assert sum(":8000" in line for line in lines) == 12
    assert any("fallbacks in the last minute: none" in line for line in lines)


def test_a_long_name_is_cut_and_not_folded() -> None:
    url = "http://vllm-decode-0.vllm-decode.default.svc.cluster.local:8000"
    found = sample({**engine(0), "url": url})
    assert "\nvllm-decode-0.vllm-decode.defa…  up " in shown(found, (60, 24))
    assert f"\n{url.removeprefix('http://')}  up " in shown(found, (100, 24))


def test_a_period_other_than_a_minute_is_named() -> None:
    assert "failed in the last minute 0" in shown(sample(window_seconds=69.0))
    text = shown(sample(window_seconds=12.3))
    assert "failed in the last 12 s 0" in text
    assert "decisions in the last 12 s" in text


def test_the_verdict_has_the_colour_of_its_severity() -> None:
    none = {"severity": "bad", "troubles": 1, "text": "No decode engine can take requests"}
    assert "\x1b[31mNo decode engine can take requests" in shown(sample(verdict=none), style=True)


def test_foreign_text_cannot_control_the_terminal() -> None:
    hostile = engine(
        1, url="http://d1\x1b]0;owned\x07", cause="[red]\x1b[2J", status="down", severity="bad"
    )
    text = shown(sample(hostile, changes=[{"time": "x" * 20, "is_bad": True, "text": "\x1b[2J"}]))
    assert "\x1b" not in text
    assert "[red]\\x1b[2J" in text


def test_a_draining_router_reports_it() -> None:
    assert "shutting down" in shown(sample(engine(0), is_draining=True))
    assert "shutting down" not in shown(sample(engine(0)))


def test_history_is_bounded_and_only_of_present_engines() -> None:
    history = History()
    for number in range(3 * SAMPLES):
        history.add(sample(engine(0, tokens_per_second=float(number))))
    largest = history.largest([engine(0)])
    assert largest == 3 * SAMPLES - 1
    bars = history.bars(engine(0), largest)
    assert len(bars) == SAMPLES
    assert bars[-1] == "█"
    history.add(sample(engine(1, tokens_per_second=None)))
    assert history.bars(engine(0), 1.0) == ""
    assert history.bars(engine(1), 1.0) == " "


def test_values_unknown_to_an_older_router_are_a_dash() -> None:
    old = {"url": "http://d0:8000", "role": "decode", "status": "up", "in_flight": 3}
    found = sample(old, totals={"in_flight": 6})
    for name in ("verdict", "decisions", "fallbacks", "changes"):
        del found[name]
    text = shown(found)
    assert "the router is of an older version" in text
    [engine] = [line for line in text.splitlines() if "d0:8000" in line]
    assert engine.split()[1:] == ["up", "-", "3", *"------"]
    assert "TTFT p50 - p99 -" in text
