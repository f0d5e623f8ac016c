"""Models on different engines of one pool: each model's requests are spread over its engines."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import pytest

from tests.e2e.judgement.cluster import Cluster, cluster, engine
from tests.e2e.judgement.load import Request
from tests.e2e.judgement.stage import scenario

Served = Mapping[str, tuple[int, ...]]
"""The places of the engines that serve each model."""

OVERLAPPING = {"A": (0, 1, 2, 3), "B": (2, 3, 4, 5), "C": (4, 5, 6, 7)}
APART = {"D": (0, 1, 2, 3), "E": (4, 5, 6, 7)}
MEETING = {"A": (0, 1, 2), "B": (2, 3, 4)}
"""Two models that share one engine."""

each_strategy = pytest.mark.parametrize("strategy", ["round_robin", "shortest_expected_delay"])


@each_strategy
@scenario
async def test_each_model_is_spread_over_its_engines(strategy: str) -> None:
    """Requests for the models alternate: any regularity in the choice would show."""
    async with _serving({**OVERLAPPING, **APART}, strategy) as it:
        apart = await _alternating(it, APART, 216)
        _check(it, apart, APART, least=0.5)
        # Here the engines are even, not the models: those with two models have less of each.
        overlapping = await _alternating(it, OVERLAPPING, 432)
        assert it.figures(overlapping).is_even(), str(it.figures(overlapping))
        # Where engines are even, those that serve B as well have half of A's equal share.
        _check(it, overlapping, OVERLAPPING, least=0.25)


@each_strategy
@scenario
async def test_two_models_share_the_engine_on_which_they_meet(strategy: str) -> None:
    async with _serving(MEETING, strategy) as it:
        requests = await _alternating(it, MEETING, 432)
        assert it.figures(requests).is_even(), str(it.figures(requests))
        # Where engines are even, that with both models has 0.6 of either one's equal share.
        _check(it, requests, MEETING, least=0.3)


def _serving(served: Served, strategy: str) -> AbstractAsyncContextManager[Cluster]:
    engines = 1 + max(place for places in served.values() for place in places)
    names = [[m for m, places in served.items() if at in places] for at in range(engines)]
    decode = [engine(model=first, loras=rest) for first, *rest in names]
    return cluster(decode, strategy=("--load-balancing-strategy", strategy))


async def _alternating(it: Cluster, served: Served, count: int) -> list[Request]:
    models = list(served)
    return await it.send(count, rate=72, body=lambda place: {"model": models[place % len(models)]})


def _check(it: Cluster, requests: list[Request], served: Served, least: float) -> None:
    """Each engine has between `least` and two equal shares of every model that it serves."""
    for model, places in served.items():
        figures = it.figures([r for r in requests if r.body["model"] == model])
        assert figures.failed == 0, str(figures)
        fair = figures.sent / len(places)
        shares = [figures[place].requests / fair for place in places]
        assert all(least <= share <= 2 for share in shares), f"{model}: {shares} {figures}"
