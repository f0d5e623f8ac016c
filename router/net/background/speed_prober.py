"""Makes speed probes: tiny generations on stalled or slow engines, to detect that they have
recovered.

`core/fleet/probing.py` decides which engines are probed, and how.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random

from router.core.events import Event, SpeedProbed, cause_of
from router.core.fleet import probing
from router.core.fleet.fleet import Fleet
from router.core.fleet.leg_timer import LegTimer
from router.core.judge.member import Member
from router.core.values import Endpoint, Failure, FailureKind, Role
from router.core.wire import usage
from router.core.wire.api_errors import MAX_BYTES, short_message
from router.core.wire.sse import DONE
from router.net.engine.answer import AnswerHead, Sink
from router.net.engine.pool import EnginePool
from router.net.tasks import MemberLoops, TaskSet

__all__ = ["SpeedProber"]

JITTER = 0.2


class SpeedProber:
    """Probes each engine that needs it about every `seconds`; 0: never."""

    def __init__(
        self,
        fleet: Fleet,
        pools: Mapping[Endpoint, EnginePool],
        observe: Callable[[Event], None],
        *,
        seconds: float,
        engine_api_key: str | None,
        rng: Random,
        tasks: TaskSet,
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._observe = observe
        self._seconds = seconds
        self.speed_roles: frozenset[Role] = frozenset()
        """The roles whose policy avoids slow engines."""
        self._key = engine_api_key
        self._rng = rng
        self._loops = MemberLoops(tasks, {"speed probe": self._watch})
        self._is_started = False

    def start(self) -> None:
        """Start the loops."""
        self._is_started = bool(self._seconds)
        self.follow()

    def follow(self) -> None:
        """Adapt the loops to a change of the fleet, if they were started."""
        if self._is_started:
            self._loops.follow(self._fleet)

    async def _watch(self, member: Member) -> None:
        while True:
            await asyncio.sleep(self._seconds * self._rng.uniform(1 - JITTER, 1 + JITTER))
            if probing.needs_speed_probe(member, self.speed_roles, time.monotonic()):
                self._observe(await self._probe(member))
            elif member.failed_speed_probes:
                self._observe(SpeedProbed(member.endpoint))

    async def _probe(self, member: Member) -> SpeedProbed:
        """Probe once."""
        pool = self._pools[member.endpoint]  # the loop ends before the engine is removed
        connection = pool.take(replay=False) or await pool.connect()
        if isinstance(connection, Failure):
            return _failed(member.endpoint, connection)
        leg = probing.speed_probe_leg(member, time.monotonic())
        sink = _Sink(member.endpoint, leg)
        body = probing.speed_probe_body(member, self._rng)
        try:
            async with asyncio.timeout(probing.SPEED_PROBE_TIMEOUT_SECONDS):
                connection.start(self._head(pool, len(body)), body, sink)
                return await sink.outcome
        except TimeoutError:
            return SpeedProbed(member.endpoint, "timeout")
        finally:
            if not sink.is_over:
                connection.abort()
            leg.end(time.monotonic())

    def _head(self, pool: EnginePool, length: int) -> bytes:
        key = b"" if self._key is None else b"authorization: Bearer %b\r\n" % self._key.encode()
        return (
            b"POST %b%b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n%b%b"
            b"x-request-id: pd-router-probe-%08x\r\ncontent-length: %d\r\n\r\n"
        ) % (
            pool.prefix,
            probing.SPEED_PROBE_PATH.encode(),
            pool.authority,
            pool.rank_line,
            key,
            self._rng.getrandbits(32),
            length,
        )


class _Sink(Sink):
    """Counts the tokens of a probe."""

    def __init__(self, endpoint: Endpoint, leg: LegTimer) -> None:
        self.outcome: asyncio.Future[SpeedProbed] = asyncio.get_running_loop().create_future()
        self.is_over = False
        """Whether the connection has been returned to its pool or closed."""
        self._endpoint = endpoint
        self._leg = leg
        self._status = 0
        self._events = self._tokens = 0
        self._end = b""

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """Note the status: an error is not timed."""
        self._status = head.status

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Always False, so that the data are passed to `on_data`."""
        return False

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Count tokens as they come: an engine must not look silent in the meantime. Without usage
        in each event they are the events, but for usage and [DONE]."""
        if self._status != 200:
            self._end += data[: MAX_BYTES + 1 - len(self._end)]
            return
        self._end = self._end[-usage.TAIL_BYTES :] + data
        self._events += data.count(b"\n\n") - data.count(b'"choices":[]') - data.count(DONE)
        before, self._tokens = self._tokens, usage.generated_tokens(self._end) or self._events
        if before:
            self._leg.counts.on_probe_tokens(max(0, self._tokens - before))
        elif self._tokens:
            self._begin(data, time.monotonic())

    def _begin(self, data: bytes, now: float) -> None:
        """The first token has arrived. More of them in the same read have waited to be read, so the
        time that they took is a part of the whole time."""
        leg, more = self._leg, self._tokens - 1
        seconds = now - leg.started
        if leg.work:
            leg.work = usage.prompt_tokens(data) or leg.work
        leg.first_token(now)
        if more and not leg.work:
            leg.counts.on_unary_answer(more, seconds * more / self._tokens)

    def on_end(self) -> None:
        """Note that the response is complete."""
        if self._status == 200:
            self._finish(SpeedProbed(self._endpoint, "ok"))
        else:
            text = f"it answered a speed probe with {self._status}: {short_message(self._end)}"
            self._finish(SpeedProbed(self._endpoint, "failed", text))

    def on_lost(self, failure: Failure) -> None:
        """Note that the response failed."""
        self._finish(_failed(self._endpoint, failure))

    def _finish(self, outcome: SpeedProbed) -> None:
        self.is_over = True
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def _failed(endpoint: Endpoint, failure: Failure) -> SpeedProbed:
    """`failure` ended the probe. A router without resources is not the engine's fault."""
    is_own = failure.kind is FailureKind.EXHAUSTED
    return SpeedProbed(endpoint, "failed", None if is_own else cause_of(failure))
