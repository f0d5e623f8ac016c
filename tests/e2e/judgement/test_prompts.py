"""Long prompts are work: for the engine that computes them, and while they are computed."""

from tests.e2e.judgement.cluster import cluster, engine
from tests.e2e.judgement.load import prompt_of
from tests.e2e.judgement.stage import scenario

SIZE = {"max_model_len": 80_000, "total_blocks": 30_000}
"""Room for some prompts of 60,000 tokens."""


@scenario
async def test_decode_engines_compute_long_prompts_when_the_prefill_pool_is_gone() -> None:
    decode = [engine(**SIZE, prefill_tokens_per_second=20_000) for _ in range(4)]
    prefill = [engine(**SIZE) for _ in range(2)]

    # 3 s for one prompt: longer than an engine may be silent by default.
    def long(place: int) -> dict[str, str]:
        return {"prompt": prompt_of(place, 60_000)}

    async with cluster(decode, prefill=prefill) as it:
        await it.send(60, rate=60)
        for each in it.prefills:
            await each.stop()
        # So that decode engines are known to compute prompts, and at what speed.
        await it.send(40, rate=40, tokens=30)
        alone = await it.send(4, rate=20, body=lambda place: long(place))
        figures = it.figures(alone)
        assert [row.requests for row in figures.rows] == [1, 1, 1, 1], str(figures)

        short = it.load(80, rate=20, tokens=30)
        await it.until_sent(short, 15)
        first = it.load(2, rate=20, body=lambda place: long(10 + place))
        # The other engines have more requests now, but these two have more work.
        await it.until_sent(short, 35)
        second = it.load(2, rate=20, body=lambda place: long(20 + place))
        among = [*await first.done(), *await second.done()]
        figures = it.figures(among)
        assert [row.requests for row in figures.rows] == [1, 1, 1, 1], str(figures)
        await short.done()
        figures = it.figures([*alone, *among, *short.requests])
        assert figures.failed == 0, str(figures)
        assert figures.moved == 0, str(figures)
        assert figures.called("stalled", "ejected") == set(), str(figures)


@scenario
async def test_a_prefill_of_10_s_is_no_stall_and_short_prompts_avoid_it() -> None:
    prefill = [engine(**SIZE, prefill_tokens_per_second=4000) for _ in range(4)]
    async with cluster([engine(**SIZE) for _ in range(4)], prefill=prefill) as it:
        await it.send(40, rate=20)
        long = it.load(2, rate=20, body=lambda place: {"prompt": prompt_of(place, 40_000)})
        await it.until(lambda: long.sent == 2, "long prompts")
        short = await it.send(60, rate=8)
        numbers = {request.number for request in long.requests}
        busy = [each for each in it.prefills if any(v.number in numbers for v in each.visits)]
        figures = it.prefill_figures(short)
        assert len(busy) == 2, str(figures)
        assert all(each.running for each in busy), "the long prompts are still computed"
        waited = [row for row in figures.rows if row.name in {each.name for each in busy}]
        assert all(row.requests <= figures.fair / 2 for row in waited), str(figures)
        everything = [*await long.done(), *short]
        for figures in (it.prefill_figures(everything), it.figures(everything)):
            assert figures.failed == 0, str(figures)
            assert figures.moved == 0, str(figures)
            assert figures.called("stalled", "ejected") == set(), str(figures)


@scenario
async def test_an_engine_that_was_slow_with_prompts_returns_by_a_few_probes() -> None:
    """d0 keeps prompts of 0.1 s waiting for 1.5 s, and then no longer. Its tokens come as usual."""
    async with cluster([engine(prefill_tokens_per_second=20_000) for _ in range(4)]) as it:
        d0 = it.engines[0]
        load = it.load(1000, rate=12, body=lambda place: {"prompt": prompt_of(place, 2000)})
        await it.until_sent(load, 24)
        await d0.set_faults(delay_s=1.5)
        await it.until(lambda: d0.probes, "the router asks d0 itself")
        await it.until(lambda: not d0.in_flight, "what it had is answered")
        await d0.set_faults()
        probes, marked = d0.probes, load.sent
        await it.until(lambda: len([v for v in d0.visits if v.number > marked]) > 9, "its share")
        probes = d0.probes - probes
        entry = await it.entry(d0)
        figures = it.figures(await load.stop())
        assert 0 < probes <= 10, f"{probes} {entry}\n{figures}"
        assert not entry["speed_probes_fail"], entry
        assert figures.failed == 0, str(figures)
