"""The simulated engines of a bench: one process, many ports, one timer per engine.

A decode step writes pre-built bytes to every running stream. It refuses to know batching limits,
KV memory and faults (`router/simulator` has those): it must cost little enough not to be what is
measured. With role `prefill` it answers with `kv_transfer_params` in NIXL's shape, and role
`decode` checks that they arrive unchanged.
"""

import asyncio
import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks import control, frames
from benchmarks.pulse import Lateness, Pulse

NO_BODY = frames.reply(200, b"")
NOT_FOUND = frames.reply(404, b'{"detail":"Not Found"}')
VERSION = frames.reply(200, b'{"version":"0.33.0"}')
BLOCK_TOKENS = 16
CHARACTERS_PER_TOKEN = 4


def handover(engine: int, prompt_tokens: int) -> dict[str, Any]:
    """What a prefill engine gives to the decode leg (vLLM 0.33, NIXL pull)."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(7, 7 + 1 + prompt_tokens // BLOCK_TOKENS))],
        "remote_engine_id": f"bench-prefill-{engine}",
        "remote_request_id": "chatcmpl-1b4e28ba-2fa1-11d2-883f-0016d3cca427-a1b2c3d4",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": prompt_tokens,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_registration_generation": 0,
        "remote_prefill_cached_tokens": 0,
    }


@dataclass(slots=True)
class Running:
    """One stream that is being decoded, or (`left` is None) an answer that is due at a time."""

    transport: asyncio.Transport
    left: int | None
    tail: bytes


@dataclass
class Engine:
    """One engine: its role and what runs on it."""

    number: int
    role: str
    step_s: float
    seen: Counter[str]
    running: dict["Connection", Running] = field(default_factory=dict)

    def step(self) -> None:
        """Produce one token for every running stream."""
        self.seen["running"] += len(self.running)
        self.seen["steps"] += 1
        finished = []
        for connection, one in self.running.items():
            if one.left is None:
                continue
            one.left -= 1
            if one.left > 0:
                one.transport.write(frames.TOKENS[one.left % len(frames.TOKENS)])
            else:
                finished.append(connection)
        for connection in finished:
            self.finish(connection)

    def finish(self, connection: "Connection") -> None:
        """Write the end of an answer, unless its client has left."""
        if one := self.running.pop(connection, None):
            one.transport.write(one.tail)

    def get(self, path: bytes) -> bytes:
        """Answer a GET."""
        if path == b"/metrics":
            return frames.metrics(len(self.running))
        if path == b"/v1/models":
            return frames.models()
        return {b"/health": NO_BODY, b"/version": VERSION}.get(path, NOT_FOUND)

    def post(self, connection: "Connection", path: bytes, body: bytes) -> None:
        """Answer a POST, or start to."""
        if path not in {b"/v1/chat/completions", b"/v1/completions"}:
            connection.transport.write(NOT_FOUND)
            return
        prompt_tokens = len(body) // CHARACTERS_PER_TOKEN
        asked = orjson.loads(body)
        params = asked.get("kv_transfer_params")
        if self.role == "prefill":
            self._prefill(connection.transport, params, prompt_tokens)
        elif params is not None and not self._loaded(params):
            self.seen["bad handovers"] += 1
            connection.transport.write(frames.failure(400, "unknown kv_transfer_params"))
        else:
            self.seen["decodes with handover" if params else "decodes without handover"] += 1
            self._decode(connection, asked, prompt_tokens)

    def _prefill(self, transport: asyncio.Transport, params: Any, prompt_tokens: int) -> None:
        self.seen["prefills"] += 1
        remote = bool(params and params.get("do_remote_decode"))
        given = handover(self.number, prompt_tokens) if remote else None
        transport.write(frames.completion(prompt_tokens, 1, given))

    def _loaded(self, params: dict[str, Any]) -> bool:
        blocks = params.get("remote_block_ids") or [[]]
        known = str(params.get("remote_engine_id")).startswith("bench-prefill-")
        whole = blocks == [list(range(7, 7 + len(blocks[0])))] and blocks[0] != []
        return known and whole and params.get("do_remote_prefill") is True

    def _decode(self, connection: "Connection", asked: dict[str, Any], prompt: int) -> None:
        tokens = asked.get("max_completion_tokens") or asked.get("max_tokens") or 16
        transport = connection.transport
        if asked.get("stream"):
            options = asked.get("stream_options") or {}
            tail = frames.stream_tail(bool(options.get("include_usage")), prompt, tokens)
            transport.write(frames.STREAM_HEAD + frames.ROLE)
            self.running[connection] = Running(transport, tokens, tail)
        else:
            # Not on the grid of steps: closed-loop clients would fall in step with it, and the rate
            # would depend on which engine a router happens to take next.
            self.running[connection] = Running(transport, None, frames.completion(prompt, tokens))
            loop = asyncio.get_running_loop()
            loop.call_later(tokens * self.step_s, self.finish, connection)


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
        if self._engine.running.pop(self, None) is not None:
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


async def _serve(engines: list[Engine], step_s: float, lateness: Lateness) -> dict[str, list[str]]:
    loop = asyncio.get_running_loop()
    urls: dict[str, list[str]] = {"decode": [], "prefill": []}
    for engine in engines:
        # 4096: a burst of connections must not be refused by the engine's own backlog.
        factory = functools.partial(Connection, engine)
        server = await loop.create_server(factory, "127.0.0.1", 0, backlog=4096)
        urls[engine.role].append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        # Engines step in turn, not all at once, as separate machines do.
        phase = step_s * engine.number / len(engines)
        Pulse(step_s, engine.step, lateness).start(loop, phase)
    return urls


def run(decode: int, prefill: int, step_s: float) -> None:
    """Serve until standard input ends; every line of it is answered with the figures since."""
    lateness, seen = Lateness(), Counter[str]()
    roles = ["decode"] * decode + ["prefill"] * prefill
    engines = [Engine(number, role, step_s, seen) for number, role in enumerate(roles)]
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    urls = loop.run_until_complete(_serve(engines, step_s, lateness))

    def report(_: str) -> None:
        steps = seen["steps"] / len(engines)
        mean = seen["running"] / steps if steps else 0.0
        control.say("figures", lateness=lateness.take(), running_mean=mean, seen=dict(seen))
        seen.clear()

    control.listen(loop, report)
    control.say("ready", **urls)
    loop.run_forever()
