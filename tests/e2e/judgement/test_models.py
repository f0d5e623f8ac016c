"""Models on different engines of one pool: each model's requests are spread over its engines."""

from collections.abc import Mapping

import pytest

from tests.e2e.judgement.cluster import Cluster, cluster, engine
from tests.e2e.judgement.load import Request
from tests.e2e.judgement.stage import scenario

OVERLAPPING = {"A": (0, 1, 2, 3), "B": (2, 3, 4, 5), "C": (4, 5, 6, 7)}
APART = {"D": (0, 1, 2, 3), "E": (4, 5, 6, 7)}
ENGINES = 8


@pytest.mark.parametrize("strategy", ["round_robin", "shortest_expected_delay"])
@scenario
async def test_each_model_is_spread_over_its_engines(strategy: str) -> None:
    """Requests for the models alternate: any regularity in the choice would show."""
    served = {**OVERLAPPING, **APART}
    names = [[m for m, places in served.items() if at in places] for at in range(ENGINES)]
    decode = [engine(model=first, loras=tuple(rest)) for first, *rest in names]
    async with cluster(decode, strategy=("--load-balancing-strategy", strategy)) as it:
        apart = await _alternating(it, APART)
        _check(it, apart, APART)
        # Here the engines are even, not the models: those with two models have less of each.
        figures = it.figures(await _alternating(it, OVERLAPPING))
        assert figures.failed == 0, str(figures)
        assert figures.is_even(), str(figures)


async def _alternating(it: Cluster, served: Mapping[str, tuple[int, ...]]) -> list[Request]:
    models = list(served)
    return await it.send(216, rate=72, body=lambda place: {"model": models[place % len(models)]})


def _check(it: Cluster, requests: list[Request], served: Mapping[str, tuple[int, ...]]) -> None:
    """Each model's requests are spread evenly over the engines that serve it."""
    for model, places in served.items():
        figures = it.figures([r for r in requests if r.body["model"] == model])
        assert figures.failed == 0, str(figures)
        fair = figures.sent / len(places)
        shares = [figures[place].requests / fair for place in places]
        assert all(0.5 <= share <= 2 for share in shares), f"{model}: {shares} {figures}"
