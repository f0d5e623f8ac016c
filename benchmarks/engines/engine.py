"""The simulated engines of a bench: one process, many ports, one timer per engine.

The loop is leaner than the simulator's engine model: a token takes 0.14 us here and 4.0 us there,
without writes, a seventh of a core at 36,500 tokens/s. The bench must not be the limit.

A step writes pre-built bytes to every stream that has a slot. With
role `prefill` it answers with `kv_transfer_params` in NIXL's shape, and role `decode` checks that
they arrive unchanged.

A stream's first event comes with the first token, as in vLLM: without slots (the timed windows) at
once, so that a router's own time shows. An engine with its own prefill gives the first token with
its first step at least `prefill_s` after the request. Until then the request
counts as waiting: the gauges of a wave's first moments look like a queue and are none.
"""

import asyncio
import functools
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks.engines import frames, handover, shares
from benchmarks.engines.batch import Answer, Batch
from benchmarks.engines.speed import Change, Pace
from benchmarks.engines.spread import Extremes, Spread
from benchmarks.system import control
from benchmarks.system.interval_timer import IntervalTimer, Lateness

NO_BODY = frames.reply(200, b"")
NOT_FOUND = frames.reply(404, b'{"detail":"Not Found"}')
VERSION = frames.reply(200, b'{"version":"0.33.0"}')
CHARACTERS_PER_TOKEN = 4
# A prefill takes this many steps of a prefill engine: fine enough that waiting for the next step
# is little against the prefill itself.
PREFILL_STEPS = 8
# Not a divisor of a step, so that samples fall on all moments between two steps.
POLL_S = 0.0053
# A burst of connections must not be refused by the engine's own backlog.
BACKLOG = 4096
# uvloop accepts one connection per turn and socket. All engines share one event loop, whose turns
# are long with two thousand streams: 1,000 connections to 8 sockets would take 125 of them.
ACCEPTS_PER_TURN = 32


@dataclass(frozen=True)
class Plan:
    """The engines to simulate. Seconds; without `prefill_s` a prefill takes no time.

    On a common clock all engines step at the same moments: answers that began together end
    together on all of them. Without, engines step in turn, as separate machines do.
    """

    decode_engines: int
    prefill_engines: int
    step_s: float
    slots: int | None = None
    prefill_s: float | None = None
    prefill_slots: int | None = None
    common_clock: bool = False
    changes: Sequence[Change] = ()
    # Content of a token's event; None: a word.
    token_bytes: int | None = None

    def encode(self) -> str:
        """As one command line argument."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def decode(cls, text: str) -> "Plan":
        """The inverse of `encode`."""
        given = orjson.loads(text)
        return cls(**given | {"changes": [Change(**change) for change in given["changes"]]})


@dataclass
class Clock:
    """The seconds since the job's first request; 0 before it."""

    begun: float | None = None

    def elapsed(self) -> float:
        """The current value."""
        return 0.0 if self.begun is None else time.monotonic() - self.begun


@dataclass
class Engine:
    """One engine: its role, its speed and what runs on it."""

    number: int
    role: str
    plan: Plan
    clock: Clock = field(default_factory=Clock)
    seen: Counter[str] = field(default_factory=Counter)
    # The job's requests by second of arrival, without a router's own probes.
    arrivals: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        prefill = self.role == "prefill"
        plan = self.plan
        self.batch: Batch[Connection] = Batch(
            plan.prefill_slots if prefill else plan.slots, frames.tokens(plan.token_bytes)
        )
        self.pace = Pace([each for each in plan.changes if each.engine == self.number])
        self.beat_s = plan.step_s
        # Seconds of its own prefill; 0 with prefill engines.
        self.own_prefill_s = 0.0 if plan.prefill_engines else plan.prefill_s or 0.0
        if prefill and plan.prefill_s:
            self.beat_s = plan.prefill_s / PREFILL_STEPS

    def beat(self) -> None:
        """Called once per step of a healthy engine."""
        if self.role == "decode":
            self.seen["running"] += len(self.batch.running)
            self.seen["beats"] += 1
        if self.pace.due(self.clock.elapsed()):
            self.step()

    def step(self) -> None:
        """Produce one token for every stream that has a slot and is prefilled."""
        for connection in self.batch.step(time.monotonic()):
            self.batch.finish(connection)

    @property
    def streams(self) -> int:
        """Requests on it, with or without a slot."""
        return len(self.batch.running) + len(self.batch.waiting)

    def get(self, path: bytes) -> bytes:
        """Answer a GET."""
        if path == b"/metrics":
            running = self.batch.begun if self.own_prefill_s else len(self.batch.running)
            return frames.metrics(running, self.streams - running)
        if path == b"/v1/models":
            return frames.models()
        return {b"/health": NO_BODY, b"/version": VERSION}.get(path, NOT_FOUND)

    def post(self, connection: "Connection", path: bytes, body: bytes) -> None:
        """Answer a POST, or start to."""
        if path not in {b"/v1/chat/completions", b"/v1/completions"}:
            connection.transport.write(NOT_FOUND)
            return
        if frames.JOB_MARK in body:
            self.arrivals[int(self.clock.elapsed())] += 1
        elif frames.WARM_UP_MARK in body:
            self.seen["warm-up requests"] += 1
        elif self.plan.slots:
            self.seen["requests of the router's own"] += 1
        prompt_tokens = len(body) // CHARACTERS_PER_TOKEN
        asked = orjson.loads(body)
        params = asked.get("kv_transfer_params")
        if self.role == "prefill":
            self._prefill(connection, params, prompt_tokens)
        elif params is not None and not handover.intact(params):
            self.seen["bad handovers"] += 1
            connection.transport.write(frames.failure(400, "unknown kv_transfer_params"))
        else:
            self.seen["decodes with handover" if params else "decodes without handover"] += 1
            self._decode(connection, asked, prompt_tokens)

    def _prefill(self, connection: "Connection", params: Any, prompt_tokens: int) -> None:
        self.seen["prefills"] += 1
        remote = bool(params and params.get("do_remote_decode"))
        given = handover.given(self.number, prompt_tokens) if remote else None
        reply = frames.completion(prompt_tokens, 1, given)
        if self.plan.prefill_s:
            answer = Answer(connection.transport, PREFILL_STEPS, reply, whole=True)
            self.batch.add(connection, answer)
        else:
            connection.transport.write(reply)

    def _decode(self, connection: "Connection", asked: dict[str, Any], prompt: int) -> None:
        tokens = asked.get("max_completion_tokens") or asked.get("max_tokens") or 16
        transport = connection.transport
        if asked.get("stream"):
            options = asked.get("stream_options") or {}
            tail = frames.stream_tail(bool(options.get("include_usage")), prompt, tokens)
            lead = frames.ROLE if self.plan.slots else frames.STREAM_HEAD + frames.ROLE
            answer = Answer(transport, tokens, tail, lead=lead, prefilled_at=self._prefilled_at())
            self.batch.add(connection, answer)
            if self.plan.slots:
                transport.write(frames.STREAM_HEAD)
            elif self.batch.advance(answer):
                self.batch.finish(connection)
            return
        reply = frames.completion(prompt, tokens)
        if self.plan.slots:
            answer = Answer(transport, tokens, reply, whole=True, prefilled_at=self._prefilled_at())
            self.batch.add(connection, answer)
            return
        # Not on the grid of steps: closed-loop clients would fall in step with it, and the rate
        # would depend on which engine a router happens to take next.
        self.batch.add(connection, Answer(transport, None, reply))
        loop = asyncio.get_running_loop()
        loop.call_later(tokens * self.plan.step_s, self.batch.finish, connection)

    def _prefilled_at(self) -> float:
        """When the prefill of a request that comes now is done (`time.monotonic`)."""
        return time.monotonic() + self.own_prefill_s * (self.pace.factor or 1.0)


class Connection(asyncio.Protocol):
    """One connection to an engine. A closed connection ends its request, as it does in vLLM."""

    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but the type.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._engine.batch.remove(self) is not None:
            self._engine.seen["aborted"] += 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._body = []
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        path = self._path.partition(b"?")[0]
        if self._parser.get_method() == b"POST":
            self._engine.post(self, path, b"".join(self._body))
        else:
            self.transport.write(self._engine.get(path))


async def _serve(engines: list[Engine], lateness: Lateness) -> dict[str, list[str]]:
    loop = asyncio.get_running_loop()
    urls: dict[str, list[str]] = {"decode": [], "prefill": []}
    for engine in engines:
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        factory = functools.partial(Connection, engine)
        for _ in range(ACCEPTS_PER_TURN):
            await loop.create_server(factory, sock=listener.dup(), backlog=BACKLOG)
        urls[engine.role].append(f"http://127.0.0.1:{listener.getsockname()[1]}")
    for engine in engines:
        phase = 0.0 if engine.plan.common_clock else engine.beat_s * engine.number / len(engines)
        IntervalTimer(engine.beat_s, engine.beat, lateness).start(phase)
    return urls


def run(plan: Plan) -> None:
    """Serve until standard input ends.

    A line with a number is the time of the job's first request (`time.monotonic`); any other one
    is answered with the figures since the last.
    """
    lateness, seen, clock = Lateness(), Counter[str](), Clock()
    spread, extremes = Spread(), Extremes()
    roles = ["decode"] * plan.decode_engines + ["prefill"] * plan.prefill_engines
    engines = [Engine(number, role, plan, clock, seen) for number, role in enumerate(roles)]
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    urls = loop.run_until_complete(_serve(engines, lateness))
    decode = engines[: plan.decode_engines]

    def look() -> None:
        spread.look([engine.streams for engine in decode])
        if clock.begun is not None:
            healthy = [engine.streams for engine in decode if engine.pace.factor == 1.0]
            extremes.look(healthy, clock.elapsed())
        loop.call_later(POLL_S, look)

    look()

    def hear(line: str) -> None:
        if line:
            clock.begun = float(line)
            return
        beats = seen["beats"] / plan.decode_engines
        mean = seen["running"] / beats if beats else 0.0
        arrivals = [shares.timeline(engine.arrivals) for engine in engines]
        control.say(
            "figures", lateness=lateness.take(), running_mean=mean, seen=seen, arrivals=arrivals,
            spread=spread.take(), periods=extremes.take(),
        )  # fmt: skip
        seen.clear()

    control.listen(loop, hear)
    control.say("ready", **urls)
    loop.run_forever()
