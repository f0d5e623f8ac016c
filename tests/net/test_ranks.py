"""Data-parallel ranks of an engine over real sockets: the header that pins requests to them."""

from collections import Counter
from collections.abc import Iterable

from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, OK, completion

RANK = b"x-data-parallel-rank"


def label(engine: ScriptedEngine, ranks: Iterable[int]) -> None:
    """Set the ranks on the engine's metrics page."""
    line = b'vllm:num_requests_running{engine="%d"} 0.0\n'
    engine.metrics = json_reply(b"".join(line % rank for rank in ranks))


async def found(router: Running, engine: ScriptedEngine, ranks: Iterable[int]) -> None:
    """Wait until these ranks are up, and no others."""
    names = {f"{engine.url}#{rank}" for rank in ranks}
    fleet = router.router.fleet
    await eventually(lambda: {m.endpoint.url for m in fleet} == names)
    await eventually(lambda: all(member.health.is_up for member in fleet))


async def pinned(router: Running, engine: ScriptedEngine, number: int) -> Counter[bytes]:
    """The values of the header in requests, which are as many at a time as there are ranks."""
    values: Counter[bytes] = Counter()
    clients = [await router.send(COMPLETIONS, completion()) for _ in range(number)]
    calls: list[Call] = [await engine.call() for _ in clients]
    for call in calls:
        values.update(call.values(RANK))
        call.send(OK)
    for client in clients:
        assert (await client.answer()).status == 200
    return values


async def test_ranks_of_a_second_node_are_addressed_from_zero(harness: Harness) -> None:
    """vLLM with --data-parallel-start-rank 2 and hybrid load balancing labels its metrics by 2 and
    3, and accepts only 0 and 1 in requests."""
    engine = await harness.engine()
    label(engine, (2, 3))
    router = await harness.router(
        engine,
        ready=False,
        engine_stats_interval=0.01,
        load_balancing_strategy="least_loaded",
    )
    await found(router, engine, (2, 3))
    assert await pinned(router, engine, 2) == {b"0": 1, b"1": 1}
    label(engine, range(4))  # another start: two endpoints keep their names
    await found(router, engine, range(4))
    assert await pinned(router, engine, 4) == {b"%d" % place: 1 for place in range(4)}
