"""The time of day jumps while a router works: only the times in its log change."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.clock import Clock, needs_faketime
from tests.e2e.process import Process, serving
from tests.e2e.worker_processes import until
from tests.net.client import request
from tests.net.engine import ScriptedEngine
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, OK, STREAM, completion, token

HOUR = 3600

PROBES = 30
"""Of the engine after a jump, in a second and a half: time-outs are looked at once a second."""


async def probed_and_answered(process: Process, engine: ScriptedEngine) -> None:
    """Requests continue until the engine has been probed repeatedly."""
    wanted = len(engine.probes) + PROBES
    client = await process.client()

    async def is_over() -> bool:
        for _ in range(10):
            assert (await client.ask(COMPLETIONS, completion("hi"))).status == 200
        return len(engine.probes) >= wanted

    await until(is_over, "no probes")
    client.leave()


@needs_faketime
async def test_nothing_changes_when_the_time_of_day_jumps(harness: Harness, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    engine = await harness.engine()
    flags = ["--decode", engine.url, "--workers", "2", "--health-check-interval", "0.05"]
    flags += ("--stall-timeout", "600", "--stream-idle-timeout", "600")
    async with serving(*flags, launcher=clock.launcher) as process:
        await process.ready()
        client = await process.client()
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream(token("a"))
        answer = await (await client.begin()).until(token("a"))
        engine.answer_all(lambda call: call.send(OK))
        idle = await process.client()
        assert (await idle.get("/health")).status == 200
        await probed_and_answered(process, engine)
        for jump in (HOUR, 0, -HOUR, 0):
            clock.set(jump)
            await probed_and_answered(process, engine)
        assert (await idle.get("/health")).status == 200  # it was not closed
        call.end(token("b"), DONE)
        await answer.rest()
        assert answer.body == token("a") + token("b") + DONE
        assert {record["level"] for record in process.records} == {"info"}
        times = [datetime.fromisoformat(record["time"]) for record in process.records]
        assert max(times) - datetime.now(UTC) > timedelta(minutes=50)  # there was a jump
        assert datetime.now(UTC) - min(times) > timedelta(minutes=50)
