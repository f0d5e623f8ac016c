from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.diagnosis import classify
from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.records import Diagnosis, Kind, Run
from benchmarks.gate.output import plots
from tests.benchmarks.gate.runs import Stall, loop, request, round_robin, run, sampled

ASKED = Constraints(ttft_p99="<= 300")
PNG = b"\x89PNG\r\n\x1a\n"


def drawn(seen: Run) -> dict[str, bytes]:
    metrics = summarise(seen)
    return plots.draw(seen, metrics, classify(seen, metrics, ASKED), ASKED.ttft_limit_ms)


def test_the_stalled_worker_alone_is_red_and_named() -> None:
    seen = loop(round_robin, stall=Stall(2, 0.5, 2.5))
    found = classify(seen, summarise(seen), ASKED)
    figure = plots.workers(seen, found)
    assert figure is not None
    red = [line for line in figure.axes[0].lines if to_hex(line.get_color()) == plots.BLAME]
    assert [line.get_label() for line in red] == ["w2"]
    assert len(figure.axes[0].lines) == 5, "four workers and the fair share"
    assert any(text.get_text() == "61" for text in figure.axes[0].texts), "its peak"


def test_in_a_healthy_run_nothing_is_red() -> None:
    seen = loop(round_robin)
    figure = plots.workers(seen, classify(seen, summarise(seen), ASKED))
    assert figure is not None
    assert plots.BLAME not in {to_hex(line.get_color()) for line in figure.axes[0].lines}


@pytest.mark.parametrize(
    "seen",
    [
        loop(round_robin),
        sampled(loop(round_robin, stall=Stall(1, 0.5, 2.5))),
        run([request()]),
        run([request(gaps=(), last=0.1, worker=None)]),
        run([request(first=0.0, last=0.0, gaps=(0.0,))]),
        run([request(0), request(1, error="timeout", first=None, last=None)]),
    ],
    ids=["loop", "sampled", "one", "one chunk", "no time", "a failure"],
)
def test_every_run_with_an_answer_can_be_drawn(seen: Run) -> None:
    found = drawn(seen)
    assert {"first-tokens", "throughput", "distributions"} <= set(found)
    assert all(data.startswith(PNG) for data in found.values())


def test_where_there_is_nothing_there_is_no_picture() -> None:
    assert drawn(run()) == {}
    dead = [request(worker=None, status=None, error="refused", first=None, last=None)]
    assert drawn(run(dead)) == {}


def test_a_worker_that_nobody_saw_is_not_drawn() -> None:
    seen = loop(round_robin)
    ghost = Diagnosis(Kind.UNDER_PROVISIONED, "w9", "")
    assert plots.draw(replace(seen), summarise(seen), ghost)["workers"].startswith(PNG)


def test_pictures_are_saved_under_their_names(tmp_path: Path) -> None:
    paths = plots.save({"workers": PNG}, tmp_path / "deep" / "er", "run1-")
    assert [path.name for path in paths] == ["run1-workers.png"]
    assert paths[0].read_bytes() == PNG
