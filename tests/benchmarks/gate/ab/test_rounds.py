"""Policies side by side: refusals, results of a comparison, and one real run."""

import asyncio
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from benchmarks.distributions import Summary
from benchmarks.gate.ab import options, plot
from benchmarks.gate.ab.fleet import Injected, listening
from benchmarks.gate.ab.options import Comparison, Fault
from benchmarks.gate.ab.result import Row, document, lines, named, one_input, verdicts
from benchmarks.gate.endpoint.control_client import control_client
from tests import forked
from tests.benchmarks.gate.real import engines

AT = datetime(2026, 11, 21, tzinfo=UTC)
BOTH = ("--policies", "round_robin,least_loaded")
# Far more than any of them takes on a busy machine.
HANGS_S = 200.0
LOOK_S = 0.02


def comparison(*flags: str) -> Comparison:
    return options.read([*BOTH, *flags], AT)


def row(policy: str = "round_robin", number: int = 1, word: str = "PASS", **changes: object) -> Row:
    plain: dict[str, object] = {
        "message": "",
        "kind": "healthy",
        "worker": None,
        "why": "",
        "throughput": 100.0 * number,
        "ttft_p50_ms": 10.0,
        "ttft_p99_ms": 20.0,
        "errors": 0,
        "checksum": "abc",
    }
    return Row(policy, number, word, **{**plain, **changes})  # type: ignore[arg-type]


def test_the_load_is_as_in_validate() -> None:
    found = comparison("--engines", "4", "--profile", "smoke", "--ttft-p99", "<= 500")
    plan = found.plan(2, "least_loaded", "http://127.0.0.1:8000")
    assert (plan.gpus, plan.workers_expected, plan.runs) == (4, 4, 1)
    assert plan.label == "least_loaded, round 2"
    assert plan.out.name == "round-2-least_loaded"
    assert plan.constraints.ttft_p99 == "<= 500"


def test_every_policy_is_first_in_its_turn() -> None:
    found = comparison("--engines", "2")
    orders = [found.order(number) for number in (1, 2, 3)]
    assert [each[0] for each in orders] == ["round_robin", "least_loaded", "round_robin"]
    assert all(sorted(each) == ["least_loaded", "round_robin"] for each in orders)


def test_faults_are_as_the_simulator_takes_them() -> None:
    stall = comparison("--engines", "3", "--stall", "3", "--stall-at", "2", "--stall-engine", "1")
    assert stall.fault == Fault(1, 2.0, 3.0, None)
    assert stall.fault.body == {"stall": True, "for_s": 3.0}
    slow = comparison("--engines", "3", "--slow", "4").fault
    assert slow is not None
    assert slow.body == {"slow": 4.0}
    assert slow.line == "engine 2 is 4 times slower, from 1 s"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--engine URL, repeated, or --engines N"),
        (("--engines", "2", "--engine", "http://a:1"), "one of them"),
        (("--engine", "http://a:1"), "leaves no choice"),
        (("--engines", "2", "--stall", "1", "--stall-engine", "3"), "there are only 2"),
        (("--engines", "2", "--stall", "1", "--stall-at", "-1"), "--stall-at"),
        (("--engines", "2", "--stall", "1", "--slow", "2"), "not allowed with"),
        (("--engines", "2", "--policies", "a b"), "'a b' is no name"),
        (("--engines", "2", "--policies", ","), "name at least one"),
        (("--engines", "2", "--throughput", "many"), "many"),
        (("--engines", "2", "--runs", "2"), "--runs: no such argument"),
        (("--engines", "2", "--router-options", "'"), "quotation"),
    ],
)
def test_invalid_input_ends_with_3(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        comparison(*flags)
    assert ended.value.code == 3
    assert words in capsys.readouterr().err


def test_the_router_logs_its_address() -> None:
    line = '{"message":"listening","url":"http://127.0.0.1:9"}\n'
    assert listening(line[:20]) is None
    assert listening("starting\n[]\n" + line + '{"mess') == "http://127.0.0.1:9"


def test_a_line_has_the_diagnosis_of_failed_runs() -> None:
    backup = {"kind": "single-worker backup", "worker": "engine 2"}
    rows = [
        row(number=1, word="FAIL", **backup),
        row(number=2, word="FAIL", **backup),
        row(number=3, word="VOID", kind="client-limited"),
        row("least_loaded"),
    ]
    first, second = lines(("round_robin", "least_loaded", "never_ran"), rows)
    assert first.verdicts == "0 of 3 passed, 1 void"
    assert first.failed == ("single-worker backup: engine 2 (2 of 3)", "client-limited (1 of 3)")
    assert first.throughput == Summary(150, 100, 200, 2)  # without the void one's 300
    assert (second.verdicts, second.failed) == ("1 of 1 passed", ())
    assert verdicts([row(word="SKIPPED")]) == "nothing was asked"


def test_engines_are_called_by_their_number() -> None:
    assert named("http://b", ("http://a", "http://b")) == "engine 2"
    assert named("http://c", ("http://a",)) == "http://c"
    assert named(None, ("http://a",)) is None


def test_the_document_records_whether_inputs_were_equal() -> None:
    found = comparison("--engines", "2")
    rows = [row(), row("least_loaded")]
    assert document(found, rows, None)["checksum"] == one_input(rows) == "abc"
    rows.append(row(checksum="other"))
    assert document(found, rows, "broken")["checksum"] is None


def test_a_picture_is_drawn_also_where_a_figure_is_missing() -> None:
    rows = [row(), row(number=2, word="FAIL", throughput=None, ttft_p99_ms=None)]
    assert plot.draw(("round_robin", "unknown"), rows, "title", 500.0).startswith(b"\x89PNG")


def command(out: Path, *flags: str) -> list[str]:
    return [
        *("ab", *BOTH, "--rounds", "1", "--engines", "2"),
        *("--profile", "smoke", "--out", str(out), *flags),
    ]


def started_by(pid: int) -> set[int]:
    """The processes below one."""
    found = set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return found.union(*(started_by(each) for each in found)) if found else found


def alive(pid: int) -> bool:
    """A moment later: multiprocessing's own tracker ends when it sees that its process has."""
    for _ in range(int(HANGS_S / LOOK_S)):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        if state == "Z":  # no reader of its result is left
            return False
        time.sleep(LOOK_S)
    return True


async def on_given_engines(*flags: str) -> tuple[int, str, float]:
    """Status and output of the command on two engines, and the second one's slowdown afterwards."""
    async with engines(2) as them:
        given = [flag for url in them.urls for flag in ("--engine", url)]
        status, said, _ = await forked.ended("pd-bench", "ab", *flags, *given)
        async with control_client(them.urls[1], {}) as asked:
            faults = (await asked.endpoint("/sim/faults", timeout=HANGS_S)).json()
    return status, said, faults["slow"]


def test_two_policies_on_engines_that_are_sound_again_afterwards(tmp_path: Path) -> None:
    flags = [*BOTH, "--rounds", "1", "--profile", "smoke", "--out", str(tmp_path)]
    flags += ["--throughput", ">= 1", "--concurrency", "4", "--slow", "3", "--stall-at", "0"]
    code, said, slow = asyncio.run(on_given_engines(*flags))
    assert code == 0, said
    assert "engine 2 is 3 times slower, from 0 s" in said
    assert slow == 1.0
    found = orjson.loads((tmp_path / "ab.json").read_bytes())
    assert [each["policy"] for each in found["runs"]] == ["round_robin", "least_loaded"]
    assert found["runs"][0]["checksum"] == found["checksum"]
    assert {"ab.png", "report.html", "round-1-least_loaded"} <= {e.name for e in tmp_path.iterdir()}


async def test_a_missing_fault_is_reported() -> None:
    injected = Injected(Fault(1, 60.0, 1.0, None), ("http://127.0.0.1:1",))
    assert injected.wrong == "the measured phase was over before 60 s"
    injected = Injected(Fault(1, 0.0, 1.0, None), ("http://127.0.0.1:1",))
    await injected.happen()
    assert injected.wrong is not None
    assert "cannot connect" in injected.wrong


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--policies", "round_robin,magic"), "error: --policies: magic: "),
        (("--router-options", "--stall-timeout never"), "error: --router-options: --stall-timeout"),
    ],
)
async def test_flags_refused_by_the_router_are_reported_before_the_run(
    flags: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    status, said, complaints = await forked.ended("pd-bench", *command(out), *flags)
    assert status == 3
    (line,) = complaints.splitlines()
    assert line.startswith(words)
    assert said == ""
    assert not out.exists()


async def test_a_lost_terminal_ends_everything(tmp_path: Path) -> None:
    """Ctrl-C and a kill are the same: tests/benchmarks/system/test_signals.py."""
    process = await forked.start(
        *("pd-bench", *command(tmp_path, "--requests", "4000")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(HANGS_S):
        while b"1: 4000 requests" not in await process.stdout.readline():
            pass
        started = started_by(process.pid)
        process.send_signal(signal.SIGHUP)
        _, said = await process.communicate()
    assert process.returncode == 3
    assert b"interrupted" in said
    assert len(started) >= 3
    assert not [each for each in started if alive(each)]
