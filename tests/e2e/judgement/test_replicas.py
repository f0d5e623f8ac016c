"""Several worker processes, and several routers without reports."""

import pytest

from tests.e2e.judgement.cluster import cluster, engine
from tests.e2e.judgement.stage import scenario


@pytest.mark.parametrize("workers", [1, 4])
@scenario
async def test_the_load_is_even_with_any_number_of_workers(workers: int) -> None:
    async with cluster([engine() for _ in range(8)], "--workers", str(workers)) as it:
        figures = it.figures(await it.send(200, rate=60))
        assert figures.failed == 0, str(figures)
        assert figures.called("ejected", "stalled", "slow") == set(), str(figures)
        assert figures.is_even(), str(figures)


@scenario
async def test_the_load_is_even_with_routers_that_do_not_know_of_each_other() -> None:
    async with cluster([engine(max_num_seqs=8) for _ in range(8)], routers=3) as it:
        figures = it.figures(await it.send(300, rate=75))
        assert figures.failed == 0, str(figures)
        assert figures.called("ejected", "stalled", "slow") == set(), str(figures)
        assert figures.is_even(), str(figures)
        assert all(max(row.in_flight) <= 16 for row in figures.rows), str(figures)
