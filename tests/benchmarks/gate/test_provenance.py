import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.gate import options
from benchmarks.gate.ab import options as ab_options
from benchmarks.gate.endpoint.workers import Workers
from benchmarks.gate.provenance import command_line, provenance
from router import __version__
from tests.benchmarks.gate.runs import loop, round_robin

AT = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
GIVEN = ["--url", "http://r:8000", "--model", "m", "--gpus", "4", "--profile", "smoke"]
BEHIND = Workers(("http://a", "http://b"), "router")


def rows(*flags: str, workers: Workers = BEHIND, version: str | None = "1.2.3") -> dict[str, str]:
    return provenance(options.read([*GIVEN, *flags], AT), loop(round_robin), workers, version)


def test_the_report_has_its_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pd-bench", "validate", "--note", "policy=a b"])
    found = rows("--note", "policy=a b", "--note", "kernel=none")
    assert found["endpoint"] == "http://127.0.0.1:8000, model m"
    assert found["version"] == "pd-router 1.2.3"
    assert found["workers"] == "2 workers, from the router's list"
    assert (found["policy"], found["kernel"]) == ("a b", "none")
    assert found["load"].startswith("profile smoke: 640 requests, 64 streams, 32 tokens in, 16 out")
    assert found["measured by"] == f"pd-bench {__version__}, 1 load generator processes"
    assert found["command"] == "pd-bench validate --note 'policy=a b'"
    assert found["began"].startswith("2026-11-21 10:00:00 UTC; ")
    assert found["began"].endswith(" on the client")
    assert " cores of " in found["client"]


def test_unknown_values_are_reported() -> None:
    found = rows(workers=Workers((), None), version=None)
    assert (found["version"], found["workers"]) == ("the endpoint does not tell", "none known")
    assert rows(workers=Workers(("http://a",), "told"))["version"] == "1.2.3"


@pytest.mark.parametrize(
    "options_",
    [
        "--engine-api-key sk-secret --stall-timeout 1",
        "--stall-timeout 1 --engine-api-key=sk-secret",
    ],
)
def test_a_key_is_not_shown(options_: str) -> None:
    shown = command_line(["ab", "--router-options", options_])
    assert "secret" not in shown
    assert "--stall-timeout 1" in shown
    assert "secret" not in command_line(["ab", "--engine-api-key", "sk-secret"])


def test_a_comparison_records_the_policy_and_the_started_processes(tmp_path: Path) -> None:
    flags = ["--policies", "round_robin,least_loaded", "--engines", "4", "--stall", "3"]
    more = ["--profile", "smoke", "--router-options", "--slow-start 1", "--out", str(tmp_path)]
    comparison = ab_options.read([*flags, *more], AT)
    notes = dict(comparison.plan(1, "least_loaded", "http://r:1").notes)
    assert notes["policy"] == "least_loaded"
    assert notes["router options"] == "--slow-start 1"
    assert notes["engines"].startswith("4 simulated, --model=sim --step-ms=10.0")
    assert notes["fault"] == "engine 2 stands still for 3 s, from 1 s"


def test_a_note_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rows("--note", "policy")
    assert ended.value.code == 3
    assert "--note policy: not NAME=TEXT" in capsys.readouterr().err
