"""An engine whose API answers while it makes no token is excluded; a slow reader is no stall."""

from statistics import fmean

import pytest

from tests.e2e.judgement.cluster import cluster, engine
from tests.e2e.judgement.slow_reader import backed_up
from tests.e2e.judgement.stage import scenario

SEQUENCES = 8
"""Of all unread streams together."""


@scenario
async def test_an_engine_that_hangs_is_excluded_until_it_recovers() -> None:
    """d0 hangs while it is idle, d1 in the middle of its streams. /health says 200 all the time."""
    async with cluster([engine() for _ in range(8)]) as it:
        idle, busy = it.engines[:2]
        await it.send(60, rate=60)
        await idle.set_faults(stall=True)
        load = it.load(3600, rate=60)  # ended by `stop`, however late d0 and d1 come back
        await it.until(lambda: busy.running, "streams on d1")
        await busy.set_faults(stall=True)
        begun = busy.running
        for each in (idle, busy):
            await it.until_known(each, exclusion="stalled")
        marked = load.sent
        # What waited there for a first token has gone elsewhere; what had begun cannot.
        await it.until(lambda: idle.in_flight <= 1 and busy.waiting == 0, "they moved")
        await it.until_sent(load, marked + 120)
        during = it.figures(load.requests[marked + 1 :])
        assert during[0].requests == 0, str(during)
        assert during[1].requests == 0, str(during)
        looks = [look.exclusion for row in during.rows[:2] for look in row.looks]
        assert set(looks) == {"stalled"}, f"{looks}{during}"
        assert during.called("ejected", "stalled") == {"d0", "d1"}, str(during)
        served = len(idle.visits), len(busy.visits)
        for each in (idle, busy):
            await each.set_faults()
        await it.until(lambda: len(idle.visits) > served[0], "requests for d0 again")
        await it.until(lambda: len(busy.visits) > served[1], "requests for d1 again")
        figures = it.figures(await load.stop())
        assert figures.failed == 0, str(figures)
        assert figures[1].moved <= figures[1].requests - begun, str(figures)


@pytest.mark.parametrize("readers", [1, 4])
@scenario
async def test_slow_readers_make_their_engine_neither_slow_nor_stalled(readers: int) -> None:
    """Clients that read nothing are on d0, the only engine with their model.

    Eight choices with log probabilities are some 1 MB/s: all buffers on the way are full soon.
    """
    decode = [engine(loras=["own"], step_s=0.01), *(engine(step_s=0.01) for _ in range(3))]
    async with cluster(decode) as it:
        d0 = it.engines[0]
        await it.send(60, rate=60)
        for _ in range(readers):
            choices = SEQUENCES // readers
            await it.unread(model="own", max_tokens=20_000, logprobs=20, n=choices)
        await it.until(lambda: backed_up(d0.port) == readers, "the router stops reading")
        # d0 has these streams only: requests come one at a time, and others have none.
        light = it.figures(await it.send(40, rate=12))
        assert light.called("ejected", "stalled", "slow") == set(), str(light)
        full = it.figures(await it.send(200, rate=60, tokens=32))
        assert full.called("ejected", "stalled", "slow") == set(), str(full)
        # The unread streams are eight running sequences: with them d0 has as much load as the
        # others.
        running = [fmean(row.running) for row in full.rows]
        assert max(running) <= 2 * min(running), str(full)
        assert full[0].requests > 0, str(full)
        assert full.failed == 0, str(full)
        assert d0.running == SEQUENCES
