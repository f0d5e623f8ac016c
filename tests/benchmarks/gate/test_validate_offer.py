"""The real command with a load beyond the plain closed loop, against a real process."""

from pathlib import Path

import orjson
import pytest

from benchmarks.gate.traffic.pace import UNLIMITED
from tests.benchmarks.gate.real import engines, gate, refused

ASKED = ("--throughput", ">= 1", "--ttft-p99", "<= 20000", "--no-sentinel")


async def test_an_open_loop_with_cancelled_requests(tmp_path: Path) -> None:
    flags = ("--rate", "100", "--requests", "60", "--cancel-share", "0.3", "--cancel-after", "0.03")
    async with engines() as them, gate(them.urls[0], tmp_path, *ASKED, *flags) as it:
        assert await it.ended() == 0, it.text
    found = it.result()
    offered = found["pd_router"]["input"]
    assert (offered["loop"], offered["begun"], offered["late"]["requests"]) == ("open", 60, 60)
    assert found["pd_router"]["unfinished"] == offered["cancelled"] > 0
    assert found["request_count"]["avg"] + offered["cancelled"] == 60
    assert f"given up by their clients: {offered['cancelled']} of 60 requests" in it.text
    assert "latencies count from the intended time" in it.text
    lines = (tmp_path / "profile_export.jsonl").read_bytes().splitlines()
    rows = [orjson.loads(line) for line in lines]
    assert sum(row["metadata"]["was_cancelled"] for row in rows) == offered["cancelled"]


async def test_conversations_until_the_clock_ends_them(tmp_path: Path) -> None:
    flags = ("--duration", "3", "--ramp", "0.5", "--turns", "3", "--think", "0.05")
    async with engines() as them, gate(them.urls[0], tmp_path, *ASKED, *flags) as it:
        assert await it.ended() == 0, it.text
    assert "smoke: for 3 s, 4 at once" in it.text
    found = it.result()
    assert found["pd_router"]["input"]["mean_turns"] == 3
    assert found["pd_router"]["input"]["tokens_counted_by"] == "tokenize"
    assert "tokens counted by the server" in it.text
    assert 3 < found["request_count"]["avg"] < UNLIMITED
    assert found["input_sequence_length"]["max"] > 2 * found["input_sequence_length"]["min"]


async def test_answers_that_the_server_does_not_count(tmp_path: Path) -> None:
    flags = ("--count-answers", "--extra-inputs", "stream_options:null")
    async with engines() as them, gate(them.urls[0], tmp_path, *ASKED, *flags) as it:
        assert await it.ended() == 0, it.text
    assert "output tokens: 40 answers by the bundled tokenizer" in it.text


@pytest.mark.parametrize(
    "flags",
    [("--arrival", "gamma"), ("--mooncake", "/nowhere"), ("--rate", "5", "--generator", "aiperf")],
)
def test_an_impossible_load_is_refused(
    tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(tmp_path, *flags)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "--arrival: " in said or "/nowhere" in said or "not with --generator aiperf" in said
