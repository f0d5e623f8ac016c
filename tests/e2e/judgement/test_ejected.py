"""Engines that answer with errors are ejected; client errors eject no engine.

Failure rates are compared over intervals of 10 s, for engines with at least 20 requests in it
(router/core/judge/tuning.py, MINIMUM_REQUESTS): the loads of 75/s on 5 engines give each of them
some 150 under the default strategy. (In rotation: tests/simulator/virtual/test_faults.py.)
"""

from collections.abc import Mapping
from typing import Any

from tests.e2e.judgement.cluster import Cluster, cluster, engine
from tests.e2e.judgement.figures import Figures
from tests.e2e.judgement.stage import scenario

RATE = 75

INTERVAL_REQUESTS = 15 * RATE
"""A whole interval lies within 15 s, wherever it begins."""


@scenario
async def test_an_engine_that_breaks_every_stream_is_ejected() -> None:
    """They break some 15 times a second, less than a tick of the router's judgement apart."""
    async with cluster([engine() for _ in range(4)]) as it:
        await it.engines[0].set_faults(cut_after_tokens=3)
        figures = it.figures(await it.send(420, rate=60))
        assert figures.called("ejected", "stalled") == {"d0"}, str(figures)
        # Five failures eject it, of those that break together one counts: 1.25 s of the 7 s.
        assert figures[0].requests <= figures.fair / 2, str(figures)
        assert figures.failed == figures[0].failed, str(figures)


@scenario
async def test_engine_failing_a_fifth_is_ejected() -> None:
    async with cluster([engine(step_s=0.01) for _ in range(5)]) as it:
        await it.engines[0].set_faults(status=500, rate=0.2)
        load = it.load(3 * INTERVAL_REQUESTS, rate=RATE, tokens=4)
        await it.until_known(it.engines[0], exclusion="ejected")
        before = load.sent
        await it.until_sent(load, before + 150)
        await load.close()
        figures = it.figures()
        assert figures.called("ejected", "stalled") == {"d0"}, str(figures)
        after = it.figures(load.requests[before + 1 :])
        assert after[0].requests == 0, str(after)
        assert after.failed == 0, str(after)


@scenario
async def test_a_model_that_fails_on_all_engines_ejects_none() -> None:
    """Every second request is for an adapter that no engine can serve; the others go well."""
    async with cluster([engine(loras=["broken"]) for _ in range(8)]) as it:
        for status in (400, 500):
            figures = await _with_faults(it, {"model": "broken"}, "broken", status, 2, 200)
            assert figures.called("ejected", "stalled") == set(), str(figures)
            assert figures.failed == 100, str(figures)


@scenario
async def test_one_poisoned_prompt_ejects_no_engine() -> None:
    """One 500 among 400 requests is no evidence against its engine."""
    async with cluster([engine(step_s=0.01) for _ in range(5)]) as it:
        poison = {"prompt": "this prompt is poison"}
        figures = await _with_faults(it, poison, "poison", 500, 400, INTERVAL_REQUESTS)
        assert figures.called("ejected", "stalled") == set(), str(figures)
        assert figures.failed == 3, str(figures)


async def _with_faults(
    it: Cluster, wrong: Mapping[str, Any], text: str, status: int, every: int, count: int
) -> Figures:
    """A load in which `every` so manieth request is `wrong`: all engines fail it, by its text."""
    for each in it.engines:
        await each.set_faults(status=status, containing=text)
    load = it.load(
        count, rate=RATE, tokens=4, body=lambda place: wrong if place % every == every // 2 else {}
    )
    return it.figures(await load.done())
