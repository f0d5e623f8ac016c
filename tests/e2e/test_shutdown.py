"""A real process and real signals: requests in progress succeed, and the status is 0."""

import signal

from tests.e2e.process import Process, serving
from tests.net.client import Answer, Client, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, answer_remotely, error_in, token


async def _streaming(process: Process, engine: ScriptedEngine) -> tuple[Client, Answer, Call]:
    """A stream that has begun."""
    client = await process.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    return client, await answer.until(token("a")), call


async def test_requests_in_progress_finish_within_the_grace_period(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    engines = ("--prefill", prefill.url, "--decode", decode.url)
    flags = (*engines, "--routing-threshold", "0", "--shutdown-grace", "3600")
    async with serving(*flags) as process:
        await process.ready()
        idle, late = await process.client(), await process.client()
        assert (await idle.get("/health")).status == 200
        prefill.answer_all(answer_remotely)
        client, answer, call = await _streaming(process, decode)
        prefill.answer_all(lambda call: waiting.append(call))
        waiting: list[Call] = []
        await late.send(request(COMPLETIONS, STREAM))  # between its legs when the signal comes
        await eventually(lambda: waiting)

        process.signal(signal.SIGTERM)
        await process.refuses()
        assert await idle.ended() == b""
        for text in "bcd":
            call.events(token(text))
            await answer.until(token(text))
        call.end(DONE)
        await answer.rest()
        assert answer.body.endswith(token("d") + DONE)
        assert await client.ended() == b""
        answer_remotely(waiting[0])
        last = await decode.call()
        last.stream_whole(token("e"), DONE)
        assert (await late.answer()).body == token("e") + DONE
        assert await process.status() == 0
    records = [r for r in process.records if r["message"] == "request"]
    assert [r["outcome"] for r in records] == ["ok", "ok"]
    assert {r["level"] for r in process.records} == {"info"}


async def test_unfinished_streams_end_with_an_error_after_the_grace_period(
    harness: Harness,
) -> None:
    engine = await harness.engine()
    async with serving("--decode", engine.url, "--shutdown-grace", "0.1") as process:
        await process.ready()
        streaming, answer, first = await _streaming(process, engine)
        waiting = await process.client()
        await waiting.send(request(COMPLETIONS, {"model": "m", "prompt": "x"}))
        second = await engine.call()
        process.signal(signal.SIGTERM)
        await answer.rest()
        assert answer.body.startswith(token("a"))
        error = error_in(answer.body)
        assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
        assert await streaming.ended() == b""
        refusal = await waiting.answer()
        assert refusal.status == 503
        assert refusal.values(b"retry-after") == [b"1"]
        await first.left()
        await second.left()
        assert await process.status() == 0
    records = [r for r in process.records if r["message"] == "request"]
    assert [r["outcome"] for r in records] == ["aborted", "aborted"]


async def test_a_second_signal_does_not_wait_for_the_grace(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving("--decode", engine.url, "--shutdown-grace", "3600") as process:
        await process.ready()
        _, answer, call = await _streaming(process, engine)
        process.signal(signal.SIGTERM)
        line = await process.until("shutting down; a second signal ends at once")
        assert (line["requests"], line["grace_seconds"]) == (1, 3600)
        process.signal(signal.SIGTERM)
        await answer.rest()
        assert error_in(answer.body)["code"] == 503
        await call.left()
        assert await process.status() == 0


async def test_engines_may_be_absent_at_the_start_and_join_later(harness: Harness) -> None:
    engine = await harness.engine(listening=False)
    async with serving("--decode", engine.url) as process:
        client = await process.client()
        assert (await client.get("/health")).status == 200
        answer = await process.ready(503)
        assert answer.error["message"] == "No decode engine is up: 0 of 1 up: 1 starting."
        refused = await client.ask(COMPLETIONS, STREAM)
        assert refused.status == 503
        assert refused.values(b"retry-after") == [b"1"]
        await engine.listen()
        await process.ready(200)
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream_whole(token("a"), DONE)
        assert (await client.answer()).body == token("a") + DONE
        process.signal(signal.SIGINT)
        assert await client.ended() == b""
        assert await process.status() == 0
