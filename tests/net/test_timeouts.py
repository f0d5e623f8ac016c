"""Time-outs towards engines: each limit ends what it should, and only that.

No test measures time. Those that must not meet a limit have none that could be met.
"""

import asyncio
from typing import Any

import pytest

from router.core.events import FellBack, LegFailed
from router.core.values import FailureKind, Role
from router.net.engine.dial import Dial
from router.net.limits.timers import SWEEP_SECONDS, IdleTimeoutSweep
from tests.net.client import SECONDS, Truncated
from tests.net.engine import json_reply
from tests.net.harness import NEVER, Harness, eventually
from tests.net.mute_server import mute_server
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    ROLE,
    STREAM,
    answer_remotely,
    completion,
    error_in,
    token,
)
from tests.net.streams import fall_silent, held, relay_of

COMMENT = b": keep-alive\n\n"
SOON = 0.05
OK = json_reply({})


@pytest.mark.parametrize("body", [STREAM, completion()], ids=["stream", "unary"])
async def test_an_engine_without_an_answer_is_504_and_its_request_is_aborted(
    harness: Harness, body: dict[str, object]
) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, body)
    call = await engine.call()
    fall_silent(router)
    await call.left()
    answer = await client.answer()
    assert answer.status == 504
    assert answer.error["type"] == "EngineTimeoutError"
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.TIMEOUT]
    assert router.all(FellBack) == []
    assert router.router.fleet.is_ready  # slow is not dead


async def test_a_unary_answer_that_stops_half_way_is_504(harness: Harness) -> None:
    engine, router = await harness.single(stream_idle_timeout=SOON)
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
    await call.left()
    assert (await client.answer()).status == 504


async def test_a_stream_that_falls_silent_ends_with_an_error_event(harness: Harness) -> None:
    _, router, client, call = await harness.stream(stream_idle_timeout=SOON)
    call.stream(token("a"))
    answer = await client.answer()
    assert answer.status == 200
    assert answer.body.startswith(token("a"))
    assert error_in(answer.body)["code"] == 504
    await call.left()
    record = await router.record()
    assert (record.status, record.outcome) == (200, "broken")
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.TIMEOUT]


async def test_stream_without_events_ends_with_an_error(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    assert answer.status == 200
    fall_silent(router)
    await answer.rest()
    assert error_in(answer.body)["code"] == 504


async def test_a_passed_through_answer_that_falls_silent_breaks(harness: Harness) -> None:
    engine, router = await harness.single(stream_idle_timeout=SOON)
    client = await router.send(EMBEDDINGS, {"input": "x"})
    call = await engine.call()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
    with pytest.raises(Truncated):
        await client.answer()
    await call.left()
    assert (await router.record()).outcome == "broken"


async def test_a_passed_through_answer_without_a_byte_of_body_is_504(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(EMBEDDINGS, {"input": "x"})
    call = await engine.call()
    call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    relay = await relay_of(router, engine)
    await eventually(lambda: relay.status)
    fall_silent(router)
    answer = await client.answer()
    assert answer.status == 504
    assert answer.error["type"] == "EngineTimeoutError"
    await call.left()


async def test_a_prefill_that_takes_too_long_is_tried_elsewhere(harness: Harness) -> None:
    slow, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(slow,))
    decode.answer_all(lambda call: call.send(OK))
    client = await router.send(COMPLETIONS, completion())
    call = await slow.call()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    relay = await relay_of(router, slow)
    await eventually(lambda: relay.status)
    fall_silent(router)
    await call.left()
    assert (await client.answer()).status == 200
    assert router.all(FellBack) == [FellBack(Role.PREFILL, "timeout")]
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.TIMEOUT]
    record = await router.record()
    assert record.prefill_seconds is not None


async def test_the_time_of_a_prefill_counts_from_the_request_and_not_from_its_connection(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    decode.answer_all(lambda call: call.send(OK))
    pool = router.pool(prefill)
    dial = pool.dial

    def dial_late(*arguments: Any) -> Dial:
        """After longer than a prefill may take."""
        (served,) = router.router.handler.active
        served.run.asked_at -= 2 * NEVER  # type: ignore[attr-defined]
        return dial(*arguments)

    monkeypatch.setattr(pool, "dial", dial_late)
    client = await router.send(COMPLETIONS, completion())
    call = await prefill.call()
    router.router.clients.idle_sweep._sweep()
    await call.left()
    assert (await client.answer()).status == 200
    assert router.all(FellBack) == [FellBack(Role.PREFILL, "timeout")]


async def test_a_connection_that_is_never_made_counts_as_refused(harness: Harness) -> None:
    """On 127.0.0.1 only a TLS handshake can hang."""
    engine = await harness.engine(tls=True)
    router = await harness.router(engine, connect_timeout=SECONDS)
    pool = router.pool(engine)
    pool._connect_seconds = SOON
    async with mute_server() as mute:
        origin = pool.origin
        pool.origin = type(origin)("127.0.0.1", mute.port, True, "")
        answer = await router.ask(COMPLETIONS, completion())
        assert answer.status == 502
        assert "did not accept a connection" in answer.error["message"]
        assert [f.kind for f in router.all(LegFailed)] == [FailureKind.REFUSED]
        async with asyncio.timeout(SECONDS):
            await mute.has_come.wait()
            await mute.is_gone.wait()  # the attempt was given up


async def test_an_engine_that_sends_now_and_then_is_never_silent(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    (relay,) = router.router.clients.idle_sweep._watched
    limit = router.router.settings.stream_idle_timeout
    for letter in "abc":
        call.events(token(letter))
        await answer.until(token(letter))
        relay.check_idle(relay._heard_at + limit * 0.99)  # type: ignore[attr-defined]
    call.end(DONE)
    await answer.rest()
    assert answer.body.endswith(token("c") + DONE)


async def test_the_first_byte_has_a_limit_of_its_own(harness: Harness) -> None:
    engine, router = await harness.single(first_byte_timeout=500, stream_idle_timeout=1)
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    (relay,) = router.router.clients.idle_sweep._watched
    relay.check_idle(relay._asked_at + 499)  # type: ignore[attr-defined]
    assert not call.connection.closed.is_set()
    call.send(OK)
    assert (await client.answer()).status == 200


@pytest.mark.parametrize("preamble", [COMMENT, ROLE], ids=["comment", "role"])
async def test_bytes_before_the_first_content_are_not_the_first_byte(
    harness: Harness, preamble: bytes
) -> None:
    _, router, client, call = await harness.stream(first_byte_timeout=500, stream_idle_timeout=1)
    (relay,) = router.router.clients.idle_sweep._watched
    call.stream(preamble)
    await eventually(lambda: held(relay) or relay._downstream.record.chunks)  # type: ignore[attr-defined]
    relay.check_idle(relay._asked_at + 499)  # type: ignore[attr-defined]
    assert relay._listener is not None  # type: ignore[attr-defined]
    relay.check_idle(relay._asked_at + 501)  # type: ignore[attr-defined]
    await call.left()
    assert error_in((await client.answer()).body)["code"] == 504


async def test_comments_after_prefill_do_not_reset_the_timeout(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    limits: dict[str, Any] = {"first_byte_timeout": 500, "stream_idle_timeout": 1000}
    router = await harness.router(decode, prefill=(prefill,), **limits)
    client = await router.send(COMPLETIONS, STREAM)
    call = await decode.call()
    (relay,) = router.router.clients.idle_sweep._watched
    call.stream(COMMENT, COMMENT)
    await eventually(lambda: held(relay))
    relay.check_idle(relay._asked_at + 501)  # type: ignore[attr-defined]
    answer = await client.answer()
    assert answer.status == 504
    assert answer.error["type"] == "EngineTimeoutError"
    await call.left()
    assert prefill.seen == 1  # it is not begun anew: the client has waited long enough


@pytest.mark.parametrize("comment", [COMMENT, b": ping\r\n\r\n"])
async def test_engine_with_only_comments_is_silent(harness: Harness, comment: bytes) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    (relay,) = router.router.clients.idle_sweep._watched
    since = relay._heard_at = relay._heard_at - 9.0  # type: ignore[attr-defined]
    for _ in range(3):
        call.events(comment)
        await answer.until(comment)
        relay.check_idle(since + 1.0)
        assert relay._heard_at == since  # type: ignore[attr-defined]
    relay.check_idle(since + router.router.settings.stream_idle_timeout + 1.0)
    await answer.rest()
    assert error_in(answer.body)["code"] == 504
    await call.left()


async def test_paused_client_stops_the_engines_timeout(harness: Harness) -> None:
    """It may not have read the answer to the request before this one."""
    _, router, client, call = await harness.stream()
    (relay,) = router.router.clients.idle_sweep._watched
    call.stream(ROLE)
    await eventually(lambda: held(relay))
    late = relay._asked_at + 2 * router.router.settings.first_byte_timeout  # type: ignore[attr-defined]
    relay.on_write_paused(late)  # type: ignore[attr-defined]
    relay.check_idle(late)
    relay.on_write_resumed()  # type: ignore[attr-defined]
    relay.check_idle(late)
    call.end(token("a"), DONE)
    assert (await client.answer()).body == ROLE + token("a") + DONE


async def test_tokens_that_pass_unchanged_count_once(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    for text in "ab":  # from the third on as whole chunks
        call.events(token(text))
        await answer.until(token(text))
    (relay,) = router.router.clients.idle_sweep._watched
    patience = router.router.settings.stream_idle_timeout
    now = relay._heard_at  # type: ignore[attr-defined]
    for text in "cd":
        now += patience - 0.1
        call.events(token(text))
        await answer.until(token(text))
        relay.check_idle(now)
    assert relay._listener is not None  # type: ignore[attr-defined]
    relay.check_idle(now + patience + 0.1)
    await answer.rest()
    assert error_in(answer.body)["code"] == 504
    await call.left()


async def test_a_token_after_a_comment_counts(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    (relay,) = router.router.clients.idle_sweep._watched
    relay._heard_at = 0.0  # type: ignore[attr-defined]
    call.events(COMMENT + token("b"))
    await answer.until(token("b"))
    assert relay._heard_at > 0.0  # type: ignore[attr-defined]
    call.end(DONE)
    await answer.rest()


# The sweep itself.


class Sleeper:
    """Notes when it is looked at."""

    def __init__(self, idle_sweep: IdleTimeoutSweep) -> None:
        self.checks = 0
        self.idle_sweep = idle_sweep

    def check_idle(self, now: float) -> None:
        self.checks += 1


async def test_one_timer_serves_all_and_rests_when_there_is_nothing_to_watch() -> None:
    idle_sweep = IdleTimeoutSweep(0.004)
    one, other = Sleeper(idle_sweep), Sleeper(idle_sweep)
    idle_sweep.watch(one)
    timer = idle_sweep._timer
    idle_sweep.watch(other)
    assert idle_sweep._timer is timer
    await eventually(lambda: one.checks > 2 and other.checks > 2)
    idle_sweep.forget(one)
    idle_sweep.forget(one)
    before = one.checks
    idle_sweep.forget(other)
    await eventually(lambda: idle_sweep._timer is None)
    assert one.checks == before
    idle_sweep.watch(one)
    await eventually(lambda: one.checks > before)
    idle_sweep.close()
    assert idle_sweep._timer is None
    idle_sweep.close()


async def test_a_shorter_timeout_shortens_the_sweep() -> None:
    idle_sweep = IdleTimeoutSweep(3600)
    idle_sweep.configure(0.004)
    idle_sweep.watch(Sleeper(idle_sweep))
    assert idle_sweep._timer is not None
    assert idle_sweep._timer.when() < asyncio.get_running_loop().time() + SWEEP_SECONDS
    idle_sweep.close()


async def test_one_that_is_forgotten_during_a_sweep_does_no_harm() -> None:
    idle_sweep = IdleTimeoutSweep(0.004)

    class Quitter(Sleeper):
        def check_idle(self, now: float) -> None:
            super().check_idle(now)
            self.idle_sweep.forget(self)

    quitters = [Quitter(idle_sweep) for _ in range(5)]
    for one in quitters:
        idle_sweep.watch(one)
    await eventually(lambda: idle_sweep._timer is None)
    assert [one.checks for one in quitters] == [1] * 5


async def test_one_timer_however_many_move(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_sweep = IdleTimeoutSweep(3600)
    armed: list[asyncio.TimerHandle] = []

    class Loop:
        """The running loop, whose timers are noted."""

        def __init__(self) -> None:
            self.real = asyncio.get_running_loop()

        def time(self) -> float:
            return self.real.time()

        def call_later(self, *given: Any) -> asyncio.TimerHandle:
            armed.append(self.real.call_later(*given))
            return armed[-1]

    loop = Loop()
    monkeypatch.setattr("router.net.limits.timers.asyncio.get_running_loop", lambda: loop)

    class Mover(Sleeper):
        """Leaves its engine at every sweep; its next attempt is watched in its stead."""

        def check_idle(self, now: float) -> None:
            self.idle_sweep.forget(self)
            self.idle_sweep.watch(Mover(self.idle_sweep))

    idle_sweep.watch(Mover(idle_sweep))
    idle_sweep.watch(Mover(idle_sweep))
    for _ in range(20):
        idle_sweep._sweep()
        assert [timer for timer in armed if not timer.cancelled()] == [idle_sweep._timer]
    assert len(armed) == 21
    idle_sweep.close()
