"""Several processes as one router: they share port, counts and measurements."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests import forked
from tests.e2e.hanging import HANG
from tests.e2e.process import Process, serving
from tests.e2e.worker_processes import (
    CPU,
    WORKERS,
    all_tell,
    everywhere,
    figure,
    flags,
    served_by,
    spread,
    streams,
    until,
    workers_of,
)
from tests.net.client import Client, request
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, error_in, token
from tests.simulated import Engine

IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_in_flight_counts_of_all_processes_are_one(harness: Harness) -> None:
    """24 streams over connections that the kernel deals out at random: 8 engines get 3 each."""
    engines = [await harness.engine() for _ in range(8)]
    async with serving(*flags(*engines)) as process:
        await process.ready()
        found = await streams(process, engines, 24)
        assert spread(found) == [3] * 8
        await everywhere(process, "pd_router_endpoint_in_flight_requests", 24)
        for stream in found[:12]:
            stream.client.leave()
            await stream.call.left()
        await everywhere(process, "pd_router_endpoint_in_flight_requests", 12)
        process.signal(signal.SIGINT)
        for stream in found[12:]:
            stream.end()
        assert await process.status() == 0
    # The ticker may find an engine slow: tokens come when the test gets to it.
    others = [line for line in process.records if line["logger"] != "router.web.admin"]
    assert {line["level"] for line in others} == {"info"}


async def test_key_limits_hold_across_processes(harness: Harness, tmp_path: Path) -> None:
    keys, one, three = tmp_path / "keys", b"sk-0123456789abcdef", b"sk-fedcba9876543210"
    keys.write_bytes(b"one %b requests=1\nthree %b requests=3" % (one, three))
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    async with serving(*flags(engine), "--api-key-file", str(keys)) as process:
        await process.ready()
        asked: dict[bytes, list[int]] = {one: [], three: []}
        client = await process.client()
        for _ in range(3):  # one connection has all of it
            asked[three].append((await client.ask(COMPLETIONS, {}, _bearer(three))).status)
        for _ in range(12):  # connections to all processes: it is given out once
            client = await process.client()
            asked[one].append((await client.ask(COMPLETIONS, {}, _bearer(one))).status)
            client.leave()
        assert asked == {one: [200] + [429] * 11, three: [200] * 3}


async def test_key_file_reload_is_logged_once(harness: Harness, tmp_path: Path) -> None:
    keys, one, other = tmp_path / "keys", b"sk-0123456789abcdef", b"sk-fedcba9876543210"
    keys.write_bytes(b"one %b" % one)
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    async with serving(*flags(engine), "--api-key-file", str(keys)) as process:
        await process.ready()
        keys.write_bytes(b"one")
        wrong = "line 1 is not a name and a key; keeping the previous keys"
        await process.until(f"API keys: {keys}: {wrong}")
        keys.write_bytes(b"other %b" % other)

        async def takes_it(client: Client) -> bool:
            return (await client.ask(COMPLETIONS, {}, _bearer(other))).status == 200

        def logged() -> list[str]:
            return [line["level"] for line in process.records if "API keys" in line["message"]]

        await all_tell(process, takes_it, "the new key")
        await eventually(lambda: len(logged()) > 1)  # a line comes later than the answers
        assert logged() == ["error", "info"]


def _bearer(key: bytes) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key


async def test_every_process_answers_with_the_metrics_of_all(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving(*flags(engine)) as process:
        await process.ready()
        engine.answer_all(_whole)
        await ask_whole(process, 20)
        await everywhere(process, "pd_router_requests_total", 20)
        await everywhere(process, "pd_router_time_to_first_byte_seconds_count", 20)
        await everywhere(process, "pd_router_build_info", 1)
        memory = sum(await figure(process, "pd_router_process_resident_memory_bytes"))
        assert memory > WORKERS * 10e6
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


async def test_a_hung_worker_dumps_its_stack_and_is_replaced(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(_whole)
    launcher = (sys.executable, "-m", "tests.e2e.hanging")
    async with serving(*flags(engine, workers=2), launcher=launcher) as process:
        await process.ready()
        await ask_whole(process, 20)  # both workers run
        before = workers_of(process)
        os.kill(before[0], HANG)

        async def replaced() -> bool:
            now = workers_of(process)
            return len(now) == 2 and before[0] not in now

        await until(replaced, "a new worker")
        assert before[1] in workers_of(process)
        await ask_whole(process, 20)
        errors = [line["message"] for line in process.records if line["level"] == "error"]
        assert errors[0] == f"worker 0 (pid {before[0]}) hangs, for 5 s: ending it"
        assert errors[-1] == f"worker 0 (pid {before[0]}) ended by SIGABRT; restarting it"
        assert any("Fatal Python error: Aborted" in error for error in errors)
        assert any("in _hang" in error for error in errors)
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


async def test_dead_worker_is_restarted_and_its_leases_end(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(2)]
    async with serving(*flags(*engines, workers=2)) as process:
        await process.ready()
        for engine in engines:
            engine.answer_all(_whole)
        await ask_whole(process, 20)
        for engine in engines:
            engine.answer_all(None)
        found = await streams(process, engines, 12)
        assert spread(found) == [6, 6]
        before = workers_of(process)
        [cpu] = await figure(process, CPU)
        of = [served_by(process, stream.client) for stream in found]
        assert set(of) <= set(before)
        victim = of[0]
        os.kill(victim, signal.SIGKILL)
        lost = [stream for stream, pid in zip(found, of, strict=True) if pid == victim]
        kept = [stream for stream, pid in zip(found, of, strict=True) if pid != victim]
        for stream in lost:
            await stream.call.left()
        await everywhere(process, "pd_router_endpoint_in_flight_requests", len(kept))

        async def replaced() -> bool:
            now = workers_of(process)
            return len(now) == 2 and victim not in now

        await until(replaced, "a new worker")
        for engine in engines:
            engine.answer_all(_whole)
        await ask_whole(process, 20)  # new connections reach the old and the new worker
        await everywhere(process, "pd_router_engine_answers_total", 20 + 12 + 20)
        assert (await figure(process, CPU))[0] >= cpu
        (line,) = [line for line in process.records if line["level"] == "error"]
        assert line["message"].endswith("ended by SIGKILL (out of memory?); restarting it")
        process.signal(signal.SIGTERM)
        for stream in kept:
            stream.end()
            assert (await stream.answer.rest()).body == token("a") + DONE
        assert await process.status() == 0


async def test_restarted_worker_knows_ejected_engines(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(3)]
    for engine in engines:
        engine.answer_all(_whole)
    engines[0].answer_all(lambda call: call.send(json_reply({}, status=500)))
    ejection = ("--outlier-ejection-time", "300")
    async with serving(*flags(*engines, workers=2), *ejection) as process:
        await process.ready()
        for _ in range(60):
            client = await process.client()
            await client.ask(COMPLETIONS, STREAM)
            client.leave()
        await everywhere(process, "pd_router_pool_usable_engines", 2)
        victim = workers_of(process)[1]
        os.kill(victim, signal.SIGKILL)

        async def replaced() -> bool:
            now = workers_of(process)
            return len(now) == 2 and victim not in now

        await until(replaced, "a new worker")
        await everywhere(process, "pd_router_pool_usable_engines", 2)
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


async def test_changes_of_an_engine_are_logged_once_for_all_workers(own_port: int) -> None:
    engine = Engine(own_port, "--role", "decode")
    # A busy machine may answer a probe late.
    probes = ("--health-check-interval", "0.1", "--health-check-timeout", "60")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.kill)
        process = await stack.enter_async_context(
            serving("--decode", engine.url, "--workers", "2", *probes)
        )

        def said() -> list[str]:
            news = rf"{engine.url} is (up again|up|down)"
            found = [re.search(news, record["message"]) for record in process.records]
            return [each[1] for each in found if each]

        for usable, news in ((1, "up"), (0, "down"), (1, "up again")):
            await (engine.start() if usable else engine.kill())
            await everywhere(process, "pd_router_pool_usable_engines", usable)

            async def is_logged(news: str = news) -> bool:
                return news in said()  # by a tick: later than it is counted

            await until(is_logged, f"not logged: {news}")
        process.signal(signal.SIGTERM)
        assert await process.status() == 0
    assert said() == ["up", "down", "up again"]


async def test_workers_end_when_their_parent_is_killed(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving(*flags(engine)) as process:
        await process.ready()
        pids = workers_of(process)
        assert len(pids) == WORKERS
        process.signal(signal.SIGKILL)

        async def gone() -> bool:
            return not any(_lives(pid) for pid in pids)

        await until(gone, "the end of the workers")


async def test_workers_are_watched_though_sigchld_is_ignored(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving(*flags(engine), launcher=(sys.executable, "-c", IGNORING)) as process:
        await process.ready()
        victim = workers_of(process)[0]
        os.kill(victim, signal.SIGKILL)

        async def replaced() -> bool:
            now = workers_of(process)
            return len(now) == WORKERS and victim not in now

        await until(replaced, "a new worker")
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


async def test_a_parent_that_is_stopped_for_a_while_goes_on(harness: Harness) -> None:
    """Python returns signals then that nobody has sent."""
    engine = await harness.engine()
    probes = ("--health-check-interval", "0.05")
    async with serving("--decode", engine.url, "--workers", "2", *probes) as process:
        await process.ready()
        process.signal(signal.SIGSTOP)
        before = len(engine.probes)
        await eventually(lambda: len(engine.probes) > before + 8)  # longer than a tick
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGHUP)
        await process.until("configuration applied")
        assert {record["level"] for record in process.records} == {"info"}
        assert not [r for r in process.records if r["message"].startswith("shutting down")]
        assert (await (await process.client()).get("/ready")).status == 200


async def test_a_port_that_is_taken_is_refused(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving(*flags(engine)) as process:
        command = ("serve", "--host", "127.0.0.1", "--port", str(process.port), *flags(engine))
        status, _, text = await forked.ended("pd-router", *command)
        assert status == 2
        where = f"127.0.0.1:{process.port}"
        line = f"pd-router: --port: {where} is taken by another process; 0 takes a free port\n"
        assert text == line


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)],
    ids=["kill", "terminal"],
)
async def test_streams_finish_and_no_new_connection_is_accepted(
    harness: Harness, number: int, send: Callable[[int, int], None]
) -> None:
    """Ctrl-C in a terminal signals the whole process group."""
    engine = await harness.engine()
    async with serving(*flags(engine), "--shutdown-grace", "3600") as process:
        await process.ready()
        found = await streams(process, [engine], 6)
        send(process.pid, number)
        await process.refuses()
        for stream in found:
            stream.end()
            assert (await stream.answer.rest()).body == token("a") + DONE
        assert await process.status() == 0


async def test_a_second_signal_ends_all_workers_at_once(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving(*flags(engine), "--shutdown-grace", "3600") as process:
        await process.ready()
        found = await streams(process, [engine], 6)
        for pid in workers_of(process):  # as systemd does: to each, and to their parent
            os.kill(pid, signal.SIGTERM)
        process.signal(signal.SIGTERM)
        await process.refuses()
        found[0].end()
        assert (await found[0].answer.rest()).body == token("a") + DONE
        process.signal(signal.SIGTERM)
        for stream in found[1:]:
            await stream.answer.rest()
            assert error_in(stream.answer.body)["code"] == 503
        assert await process.status() == 0


async def ask_whole(process: Process, number: int) -> None:
    """So many requests, each on a connection of its own."""
    for _ in range(number):
        client = await process.client()
        assert (await client.ask(COMPLETIONS, STREAM)).status == 200
        client.leave()


def _whole(call: Call) -> None:
    call.stream_whole(token("a"), DONE)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_every_worker_sends_a_prompt_to_the_engine_that_caches_its_beginning(
    harness: Harness,
) -> None:
    engines = [await harness.engine() for _ in range(4)]
    for engine in engines:
        engine.answer_all(lambda call: call.send(json_reply({"choices": []})))
    urls = [word for engine in engines for word in ("--decode", engine.url)]
    # An engine whose first probe came late to a process would have the weight of one that starts.
    async with serving(*urls, "--workers", str(WORKERS), "--slow-start", "0") as process:
        await process.ready()

        async def ask(prompt: int) -> int:
            """The engine that answers it, by its place."""
            before = [engine.seen for engine in engines]
            client = await process.client()
            body = {"prompt": f"{prompt} is a number. " * 500}
            assert (await client.ask(COMPLETIONS, body)).status == 200
            client.leave()
            (place,) = (n for n in range(4) if engines[n].seen > before[n])
            return place

        # A process that knows of nothing takes the first engine, one that has asked it another.
        prompt = 1
        while (holder := await ask(prompt)) == 0:
            prompt += 1

        async def knows(client: Client) -> bool:
            told = orjson.loads((await client.get("/endpoints")).body)
            return bool(told[holder]["prefix_cache"]["held_tokens"])

        await all_tell(process, knows, "all processes to know where the prompt lies")
        assert {await ask(prompt) for _ in range(20)} == {holder}


async def test_queue_share_moves_between_processes(harness: Harness) -> None:
    engine = await harness.engine()
    limits = ("--max-in-flight", "1", "--queue-size", "2")
    async with serving(*flags(engine, workers=2), *limits) as process:
        await process.ready()
        clients: dict[int, list[Client]] = {}
        while len(clients) < 2 or max(map(len, clients.values())) < 4:
            client = await process.client()
            await client.get("/version")  # then it has been accepted
            clients.setdefault(served_by(process, client), []).append(client)
        [other, *_], [first, second, third, last, *_] = sorted(clients.values(), key=len)
        await first.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        for each in (second, third):
            await each.send(request(COMPLETIONS, STREAM))
        await everywhere(process, "pd_router_queue_length", 2)
        assert (await last.ask(COMPLETIONS, STREAM)).status == 429
        await other.send(request(COMPLETIONS, STREAM))
        assert (await third.answer()).status == 429
        for _ in range(2):
            call.stream(token("a"), DONE)
            call.end()
            call = await engine.call()
        call.stream(token("a"), DONE)
        call.end()
        answers = [await each.answer() for each in (first, second, other)]
        assert [each.status for each in answers] == [200] * 3
