"""Pictures of a simulation: read off the figure, not off the PNG."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from router.simulator.virtual.cluster import simulate
from router.simulator.virtual.plots import plot
from router.simulator.virtual.results import Result
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size

SMALL = Size(engines=4, streams=16, requests=200)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    chosen = scenario("slow8", SMALL)
    return [simulate(chosen, policy, seed=1) for policy in ("round_robin", "least_loaded")]


@pytest.fixture
def figure(results: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    drawn: list[Figure] = []

    def keep(self: Figure, *_: Any, **__: Any) -> None:
        drawn.append(self)

    monkeypatch.setattr(Figure, "savefig", keep)
    assert plot(results, tmp_path) == [tmp_path / "slow8.png"]
    [figure] = drawn
    return figure


def test_every_axis_has_a_label_and_unit(figure: Figure) -> None:
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert axes.get_title()
        assert "seconds" in axes.get_xlabel()
        assert axes.get_ylabel()


def test_the_legend_is_beside_the_data(figure: Figure) -> None:
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["round_robin", "least_loaded"]
    assert all(axes.get_legend() is None for axes in figure.axes)


def test_curves_are_the_requests_themselves(figure: Figure, results: list[Result]) -> None:
    for axes, name in zip(figure.axes[2:], ("ttft", "e2e"), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        for line, result in zip(axes.lines, results, strict=False):
            values = getattr(result, name)
            at, share = (np.asarray(each) for each in line.get_data())
            assert (at[0], at[-1]) == (values[0], values[-1])
            assert (share[0], share[-1]) == (1, pytest.approx(1 / len(values)))
            # Where the curve comes down to 0.01 is p99, which lies between two requests.
            p99 = max(x for x, y in zip(at, share, strict=True) if y > 0.01 + 1e-9)
            assert p99 == pytest.approx(getattr(result, f"{name}_p99"), rel=1e-2)
        assert not axes.patches, "no bars"


def test_the_title_describes_the_simulation(figure: Figure) -> None:
    assert figure.get_suptitle().startswith("slow8: 4 modelled engines, 200 requests, seed 1, virt")


def test_single_requests_are_in_no_table(results: list[Result]) -> None:
    assert not {"samples", "ttft", "e2e"} & results[0].row().keys()
