"""Engines that differ, permanently or at times, without a fault."""

from statistics import fmean

from tests.e2e.judgement.cluster import cluster, engine
from tests.e2e.judgement.stage import scenario


@scenario
async def test_two_honest_speeds_are_both_used_at_full_load() -> None:
    """Four engines are three times as fast as the other four, as H100 are to L40S.

    Each runs 4 sequences at a time, and 64 are open always: with fewer a short queue at a fast
    engine is over sooner than a slow one's answer.
    """
    decode = [engine(step_s=step, max_num_seqs=4) for step in (0.04, 0.12) for _ in range(4)]
    async with cluster(decode) as it:
        figures = it.figures(await it.send(280, rate=1000, most_open=64))
        assert figures.failed == 0, str(figures)
        assert figures.called("ejected", "stalled", "slow") == set(), str(figures)
        # A slow one's part of the work is 1/16, of which it has at least half.
        assert all(row.requests >= 280 / 32 for row in figures.rows[4:]), str(figures)
        assert all(row.requests >= figures.fair / 2 for row in figures.rows[:4]), str(figures)


@scenario
async def test_small_engines_have_no_queue_while_large_ones_have_room() -> None:
    """Two engines with 2 slots and four with 32; some 30 streams at a time, 5 for each if even."""
    decode = [engine(max_num_seqs=slots) for slots in (2, 2, 32, 32, 32, 32)]
    async with cluster(decode) as it:
        load = it.load(240, rate=30, tokens=25)
        await it.until_sent(load, 90)
        figures = it.figures((await load.done())[90:])
        assert figures.failed == 0, str(figures)
        assert figures.called("ejected", "stalled", "slow") == set(), str(figures)
        assert all(row.queue <= 1 for row in figures.rows), str(figures)
        assert all(fmean(row.running) >= 1 for row in figures.rows[:2]), str(figures)
        large = [row.requests for row in figures.rows[2:]]
        assert min(large) >= fmean(large) / 2, str(figures)


@scenario
async def test_no_engine_is_excluded_when_all_are_slow_at_once() -> None:
    async with cluster([engine() for _ in range(6)]) as it:
        load = it.load(240, rate=40)
        await it.until_sent(load, 60)
        for each in it.engines:
            await each.set_faults(slow=5)
        figures = it.figures((await load.done())[60:])
        assert figures.failed == 0, str(figures)
        assert figures.called("ejected", "stalled", "slow") == set(), str(figures)
        assert figures.is_even(), str(figures)


@scenario
async def test_an_engine_with_slow_phases_gets_less_work_and_fails_no_request() -> None:
    """d0 is 8 times slower for 5 s, twice. The load is a third of what 6 engines can serve."""
    async with cluster([engine(max_num_seqs=8) for _ in range(6)]) as it:
        load = it.load(660, rate=40, tokens=10)
        slow = []
        for phase in range(3):
            begins = load.sent
            await it.engines[0].set_faults(slow=1 if phase % 2 else 8)
            # 5 s at 40/s. The first 2 s of each are for finding out.
            await it.until_sent(load, begins + 200)
            if phase % 2 == 0:
                slow += load.requests[begins + 80 : load.sent]
        await it.engines[0].set_faults()
        figures = it.figures(await load.done())
        assert figures.failed == 0, str(figures)
        relieved = it.figures(slow)
        assert relieved[0].requests <= relieved.fair / 2, f"{relieved}\n{figures}"
        others = [row.requests for row in relieved.rows[1:]]
        assert max(others) <= 2 * min(others), f"{relieved}\n{figures}"
