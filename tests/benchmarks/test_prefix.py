"""Loads with prefixes in common over HTTP are those of virtual time, and are measured truly."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.prefix import loads
from benchmarks.prefix.__main__ import LOADS, main
from benchmarks.prefix.loads import Load, load
from router.simulator.virtual.scenarios.prefixes import LOADS as EXPORTED


def common(one: str, other: str) -> int:
    """Characters with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.fixture(scope="module")
def conversations() -> Load:
    """Of six turns; all takes a quarter of the time."""
    return load("multi-turn", 2, 24, 4.0)


def test_requests_have_the_lengths_and_the_pauses_of_the_load(conversations: Load) -> None:
    what = conversations
    assert what.requests == 24
    for session in what.sessions:
        assert session.turns[0].pause == 0.0
        for turn in session.turns:
            assert len(turn.said) % (16 * loads.CHARACTERS) == 0
    slow = load("multi-turn", 2, 24, 1.0)
    assert [each.at for each in slow.sessions] == [4 * each.at for each in what.sessions]
    assert what.engine["prefill_tokens_per_second"] == 4 * slow.engine["prefill_tokens_per_second"]


def test_shorter_answers_make_no_shorter_prompts(conversations: Load) -> None:
    whole, short = conversations.sessions, load("multi-turn", 2, 24, 4.0, 0.1).sessions
    for one, other in zip(whole, short, strict=True):
        for turn, quick in zip(one.turns, other.turns, strict=True):
            assert quick.output == max(1, round(0.1 * turn.output))
            assert quick.said.endswith(turn.said)
        # Of the last prompt: all that was said, and all answers before it.
        lengths = [
            sum(len(turn.said) for turn in each.turns)
            + sum(loads.CHARACTERS * turn.output for turn in each.turns[:-1])
            for each in (one, other)
        ]
        assert abs(lengths[0] - lengths[1]) < 64 * len(one.turns)


def test_texts_share_the_prefixes_of_the_load() -> None:
    one, other, *_ = (each.turns[0].said for each in load("one-prefix", 2, 4, 1.0).sessions)
    assert common(one, other) == 6000 // 16 * 16 * loads.CHARACTERS
    one, other, *_ = (each.turns[0].said for each in load("no-reuse", 2, 4, 1.0).sessions)
    assert common(one, other) < 8


def test_all_loads_are_available() -> None:
    assert LOADS.keys() <= EXPORTED.keys()


def test_invalid_loads_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--load", "nowhere.jsonl"])
    assert ended.value.code == 2
    assert "nowhere.jsonl is not one of conversation," in capsys.readouterr().err


def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes, two routers, no judgement on speed."""
    kept = tmp_path / "runs.jsonl"
    given = ["--load", "agents", "--router", "ours-sed-events", "--routers", "2"]
    small = ["--engines", "2", "--requests", "20", "--speed", "50", "--json", str(kept)]
    assert main([*given, *small]) == 0
    assert "agents" in capsys.readouterr().out
    run: dict[str, Any] = orjson.loads(kept.read_bytes())
    assert (run["requests"], run["failed"]) == (20, 0)
    assert run["hit_rate"] > 0.3, "each turn begins with the one before"
    assert 1.0 <= run["spread"] <= 2.0
    assert 0 < run["ttft_mean"] <= run["e2e_mean"]


def test_a_trace_of_ones_own_is_replayed(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 2, "hash_ids": [1, 2]},
        {"timestamp": 500, "input_length": 1024, "output_length": 2, "hash_ids": [1, 3]},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    one, other = load(str(trace), 2, None, 2.0).sessions
    assert other.at == 0.25
    assert common(one.turns[0].said, other.turns[0].said) == 512 * loads.CHARACTERS
