from pathlib import Path

import orjson
import pytest

from benchmarks.__main__ import RESULTS, main
from benchmarks.distributions import Summary
from benchmarks.reporting import chart, results, stored
from tests.benchmarks.filed import chunks, run

FIGURES = {"ours": chunks(9, 8, 7, 8, 9), "vllm-router": chunks(10, 10, 10, 10, 10)}


def test_the_page_and_the_picture_match_the_stored_runs() -> None:
    """After a new run: `python -m benchmarks results`."""
    runs = stored.load(RESULTS)
    assert (RESULTS.parent / results.PAGE).read_text() == results.render(runs)
    picture = (RESULTS.parent / results.PICTURE).read_bytes()
    assert chart.read_digest(picture) == chart.digest(results.panels(runs))


def test_the_page_describes_the_measurement() -> None:
    text = results.render([run("relay", FIGURES, void={"ours": [1]})])
    measured = "<= 0.75 x vllm-router | 0.85 [0.70–0.90] | 4 |"
    assert f"| CPU per chunk, 256 streams | `relay` | {measured}" in text
    assert "commit 0123456789 with changes to the router, compiled;" in text
    assert "vllm-router 0.1.17" in text
    assert "`python -m benchmarks compare --scenario relay`" in text
    assert "10 turns, 1 void." in text
    assert "| CPU µs per chunk | 8.5 [7.0–9.0] | 10.0 |" in text
    assert "nginx did not run: nginx is not installed" in text


def test_missing_measurements_are_reported() -> None:
    text = results.render([])
    assert (
        "| memory per open stream | `idle-streams` | <= 16 KiB | – | – | not measured |  |" in text
    )
    assert "not told: relay, relay-1024," in text


def test_fewer_streams_than_requested_are_reported() -> None:
    memory: list[dict[str, float | None]] = [{"kib_per_stream": 15.0}]
    text = results.render([run("idle-streams", {"ours": memory}, clients=9800)])
    assert "| <= 16 KiB | 15.0 KiB | 1 | too few rounds |" in text
    assert "9800 clients" in text


def test_a_tiny_run_is_no_result() -> None:
    assert "## relay" not in results.render([run("relay", FIGURES, clients=4)])


def test_the_same_figures_are_the_same_picture() -> None:
    panels = results.panels([run("relay", FIGURES), run("burst", {"ours": [{"ttft_p99_ms": 3}]})])
    assert panels[0].groups["256 streams"]["ours"] == Summary(8.0, 7.0, 9.0, 5)
    assert panels[1].groups["2048 at once"]["ours"] == Summary(3.0, 3.0, 3.0, 1)
    picture = chart.draw(panels)
    assert picture == chart.draw(panels)
    assert chart.read_digest(picture) == chart.digest(panels)
    assert chart.digest(panels) != chart.digest(results.panels([]))


def test_an_empty_plot_and_a_foreign_plot() -> None:
    assert chart.read_digest(chart.draw(results.panels([]))) is not None
    assert chart.read_digest(b"\x89PNG\r\n\x1a\n") is None


def test_the_command_writes_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "results"
    place.mkdir()
    (place / "relay.json").write_bytes(orjson.dumps(run("relay", FIGURES).body))
    monkeypatch.setattr("benchmarks.__main__.RESULTS", place)
    assert main(["results"]) == 0
    assert "## relay" in (tmp_path / results.PAGE).read_text()
    assert str(tmp_path / results.PICTURE) in capsys.readouterr().out
