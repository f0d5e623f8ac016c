"""A configuration that changes while it is served by: at SIGHUP, and when the file changes."""

import os
import signal
from pathlib import Path

from tests.e2e.process import Process, serving
from tests.e2e.worker_processes import everywhere, until, workers_of
from tests.net.client import request
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, OK, STREAM, completion, token

LONG = completion("x" * 2000)


def write(path: Path, text: str) -> None:
    """Replace the file as a whole."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


async def status(process: Process) -> int:
    """Of the answer to a long request, on a connection of its own."""
    client = await process.client()
    answer = await client.ask(COMPLETIONS, LONG)
    client.leave()
    return answer.status


async def everybody_says(process: Process, wanted: int) -> None:
    """Wait until all workers do: twenty connections in a row agree."""

    async def agree() -> bool:
        return {await status(process) for _ in range(20)} == {wanted}

    await until(agree, f"not all say {wanted}")


async def test_every_process_follows_the_file_and_streams_do_not_notice(
    harness: Harness, tmp_path: Path
) -> None:
    engine = await harness.engine()
    file = tmp_path / "router.yaml"
    write(file, "max_body_bytes: 1000000")
    flags = ("--decode", engine.url, "--config", str(file), "--workers", "3")
    async with serving(*flags) as process:
        await process.ready()
        client = await process.client()
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream(token("a"))
        answer = await (await client.begin()).until(token("a"))
        engine.answer_all(lambda call: call.send(OK))

        write(file, "max_body_bytes: 1024")
        assert (await process.until("configuration applied"))["changed"] == "--max-body-bytes"
        await everybody_says(process, 413)
        await everywhere(process, "pd_router_config_last_reload_successful", 1.0)

        write(file, "max_body_bytes: 1000000\nhealth_check_interval: 7")

        async def is_rejected() -> bool:
            return any("needs a restart" in record["message"] for record in process.records)

        await until(is_rejected, "no word of it")
        await everywhere(process, "pd_router_config_last_reload_successful", 0.0)
        await everybody_says(process, 413)

        write(file, "max_body_bytes: 1000000")
        process.signal(signal.SIGHUP)
        await everybody_says(process, 200)
        call.end(token("b"), DONE)
        await answer.rest()
        assert answer.body == token("a") + token("b") + DONE
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


async def test_restarted_worker_has_the_new_settings(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    file = tmp_path / "router.yaml"
    write(file, "max_body_bytes: 1000000")
    flags = ("--decode", engine.url, "--config", str(file), "--workers", "2")
    async with serving(*flags) as process:
        await process.ready()
        write(file, "max_body_bytes: 1024")
        await everybody_says(process, 413)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        await everywhere(process, "pd_router_worker_restarts_total", 1.0)
        await everybody_says(process, 413)


async def test_sighup_without_a_file_ends_nothing(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving("--decode", engine.url) as process:
        await process.ready()
        process.signal(signal.SIGHUP)
        assert (await process.until("configuration applied"))["changed"] == "nothing"
        assert (await (await process.client()).get("/ready")).status == 200
