from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.diagnosis import classify
from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.records import Diagnosis, Kind, Run
from benchmarks.gate.output import plots
from tests.benchmarks.gate.runs import Stall, loop, request, rescued, round_robin, run, sampled

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


def test_requests_that_moved_are_marked() -> None:
    stall = Stall(2, 0.5, 3.5)
    seen = rescued(loop(round_robin, count=1280, stall=stall), stall)
    figure = plots.first_tokens(seen, classify(seen, summarise(seen), ASKED), None)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "waited for w2, then moved to another" in labels


def test_axes_are_labelled_and_legends_cover_no_data() -> None:
    seen = loop(round_robin, stall=Stall(2, 0.5, 2.5))
    metrics = summarise(seen)
    found = classify(seen, metrics, ASKED)
    figures = [
        plots.workers(seen, found),
        plots.first_tokens(seen, found, 300.0),
        plots.throughput(seen, found),
        plots.distributions(seen, metrics, 300.0),
    ]
    for figure in figures:
        assert figure is not None
        assert len(figure.legends) == 1
        for number, axes in enumerate(figure.axes):
            assert axes.get_legend() is None
            assert axes.get_xlabel()
            # Two of the same kind stand side by side.
            assert axes.get_ylabel() or (
                number and axes.get_title() == "Content chunks, each worker"
            )


def test_distributions_are_curves_through_the_data() -> None:
    seen = loop(round_robin, stall=Stall(2, 0.5, 2.5))
    left, right = plots.distributions(seen, summarise(seen), None).axes
    waits = sorted(((each.first or 0.0) - each.sent) * 1e3 for each in seen.requests)
    at, share = (np.asarray(each) for each in left.lines[0].get_data())
    assert (at[0], at[-1]) == pytest.approx((waits[0], waits[-1]))
    assert (share[0], share[-1]) == pytest.approx((1, 1 / len(waits)))
    for axes in (left, right):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert not axes.patches, "no bars"


def test_in_a_healthy_run_nothing_is_red() -> None:
    seen = loop(round_robin)
    figure = plots.workers(seen, classify(seen, summarise(seen), ASKED))
    assert figure is not None
    assert plots.BLAME not in {to_hex(line.get_color()) for line in figure.axes[0].lines}


@pytest.mark.parametrize(
    "seen",
    [
        sampled(loop(round_robin, stall=Stall(1, 0.5, 2.5))),
        run([request()]),
        run([request(gaps=(), last=0.1, worker=None)]),
        run([request(first=0.0, last=0.0, gaps=(0.0,))]),
        run([request(0), request(1, error="timeout", first=None, last=None)]),
    ],
    ids=["sampled", "one", "one chunk", "no time", "a failure"],
)
def test_every_run_with_an_answer_can_be_drawn(seen: Run) -> None:
    found = drawn(seen)
    assert {"first-tokens", "throughput", "distributions"} <= set(found)
    assert all(data.startswith(PNG) for data in found.values())


def test_where_there_is_nothing_there_is_no_picture() -> None:
    assert drawn(run()) == {}
    dead = [request(worker=None, status=None, error="refused", first=None, last=None)]
    assert drawn(run(dead)) == {}


def test_a_worker_without_samples_is_not_drawn() -> None:
    seen = loop(round_robin)
    ghost = Diagnosis(Kind.UNDER_PROVISIONED, "w9", "")
    assert plots.draw(replace(seen), summarise(seen), ghost)["workers"].startswith(PNG)


def test_pictures_are_saved_under_their_names(tmp_path: Path) -> None:
    paths = plots.save({"workers": PNG}, tmp_path / "deep" / "er", "run1-")
    assert [path.name for path in paths] == ["run1-workers.png"]
    assert paths[0].read_bytes() == PNG
