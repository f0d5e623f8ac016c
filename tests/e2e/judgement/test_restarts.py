"""Engines and routers that are restarted under load."""

import signal

from tests.e2e.judgement.cluster import cluster, engine
from tests.e2e.judgement.stage import scenario


@scenario
async def test_an_engine_that_is_restarted_breaks_its_open_streams_only_and_returns() -> None:
    async with cluster([engine() for _ in range(4)]) as it:
        load = it.load(3600, rate=60)
        victim = it.engines[0]
        await it.until_sent(load, 90)
        await it.until(lambda: victim.running, "streams on d0")
        broken = victim.in_flight
        await victim.stop()
        await it.until_known(victim, state="down")
        await victim.start_again()
        await it.until_known(victim, state="up")
        returned = load.sent
        await it.until_sent(load, returned + 30)
        await it.until_known(victim, slow_start_weight=1.0)
        whole = load.sent
        await it.until_sent(load, whole + 120)
        again = it.figures(load.requests[whole : load.sent])
        begin = it.figures(load.requests[returned : (returned + whole) // 2])
        await load.close()
        figures = it.figures()
        assert figures.failed <= broken, str(figures)
        assert 0 < begin[0].requests < begin.fair, str(begin)
        assert again.is_even(), str(again)


@scenario
async def test_a_router_that_is_replaced_under_load_loses_nothing() -> None:
    """The new process takes new connections; the old one finishes its requests."""
    async with cluster([engine() for _ in range(6)]) as it:
        load = it.load(3600, rate=60, tokens=25)
        await it.until_sent(load, 90)
        (old,) = it.targets
        new = await it.add_router()
        it.targets = [new]
        sent = load.requests[: load.sent]

        async def old_has_all() -> bool:
            return all(request.status for request in sent)

        await it.until(old_has_all, "the old router has all that was sent to it")
        old.signal(signal.SIGTERM)
        assert await old.status() == 0
        replaced = load.sent
        await it.until_sent(load, replaced + 60)
        await load.stop()
        figures = it.figures(load.requests[replaced:])
        assert figures.is_even(), str(figures)
        whole = it.figures()
        assert whole.failed == 0, str(whole)

        async def none_in_flight() -> bool:
            return not any(e["in_flight"] or e["other_requests"] for e in await it.endpoints(new))

        await it.until(none_in_flight, "counts are right")
        assert not any(each.in_flight for each in it.engines)
