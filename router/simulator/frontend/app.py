"""The ASGI application of a simulated engine: routes, faults before a request is processed, and
generations from the parsed body to the end of the response.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import uuid4

import orjson

from router.simulator.api.answer import Dialect, EngineAnswer, Piece
from router.simulator.api.errors import (
    ApiError,
    bad_request,
    busy,
    engine_dead,
    injected,
    internal,
    leg_of,
    parse_body,
)
from router.simulator.api.generation_request import GenerationRequest, read_generation_request
from router.simulator.api.named_events import Messages, Responses
from router.simulator.api.openai import Chat, Completions, Transcription
from router.simulator.api.prompts import parse_form
from router.simulator.engine import Engine, Gone, Inbox
from router.simulator.faults import Faults
from router.simulator.frontend import control, info, pooling
from router.simulator.frontend.exchange import EVENT_STREAM, JSON, HttpExchange, Route
from router.simulator.model.machine import EngineDead, QueueFull
from router.simulator.model.sequence import Output
from router.simulator.records import Request

_DIALECTS: dict[str, Callable[[EngineAnswer, str, int, bool], Dialect]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
    "transcribe": Transcription,
    "translate": Transcription,
}
_ID_PREFIX = {
    "completions": "cmpl-",
    "transcribe": "transcribe-",
    "translate": "translate-",
}


class Generation:
    """Processes one parsed request."""

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        exchange: HttpExchange,
        request_id: str | None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._exchange = exchange
        self._faults = exchange.faults
        if request.api == "responses":  # vLLM ignores X-Request-Id there
            answer_id = request.body.get("request_id") or f"resp_{uuid4().hex}"
        else:
            given = request_id or uuid4().hex[:16]
            answer_id = _ID_PREFIX.get(request.api, "chatcmpl-") + given
        self._sequences = engine.sequences(request, answer_id)
        self._answer = EngineAnswer(request, self._sequences)
        self._dialect = _DIALECTS[request.api](
            self._answer, answer_id, engine.wall_clock(), engine.config.prompt_tokens_details
        )
        self._inbox = Inbox()
        self._tokens = 0

    async def run(self) -> None:
        """Generate and respond. Raises ApiError if nothing has been sent yet."""
        self._exchange.connection.when_lost(self._inbox.leave)
        try:
            if self._engine.machine.dead:
                raise engine_dead()
            params = await self._engine.encoder.encode(self._request.body, self._exchange.hang)
            if self._engine.config.role == "encode":
                await self._exchange.json(self._encoded() | {"ec_transfer_params": params or None})
                return
            self._submit()
            if self._request.stream:
                await self._stream()
            else:
                await self._unary()
        except Gone:
            return
        finally:
            self._exchange.connection.forget(self._inbox.leave)
            self._engine.forget(self._sequences)

    def _encoded(self) -> dict[str, Any]:
        """The answer of an encode engine, without a token."""
        for choice in self._answer.choices:
            choice.finish = "stop"
        return self._dialect.whole()

    def _submit(self) -> None:
        try:
            self._engine.driver.submit(self._sequences, self._inbox)
        except QueueFull:
            raise busy() from None
        except EngineDead:
            raise engine_dead() from None

    def _absorb(self, output: Output) -> Piece | None:
        """Add an output to the answer. Raises ApiError if the engine has failed."""
        choice = self._answer.choice_of(output.sequence)
        if choice.finish is not None:
            return None
        if output.finish in ("dead", "error"):
            raise engine_dead() if output.finish == "dead" else internal()
        piece = choice.take(output)
        if piece.choice.finish is not None and output.finish is None:
            self._engine.machine.stop(output.sequence, self._engine.driver.now())
        return piece

    # Unary responses.

    async def _unary(self) -> None:
        while not self._answer.complete:
            for output in await self._inbox.take():
                self._absorb(output)
        self._engine.hand_over(self._request, self._sequences[0])
        body = orjson.dumps(self._dialect.whole())
        if sum(len(choice.tokens) for choice in self._answer.choices) > _limit(self._faults):
            await self._spoil_whole(body)
        else:
            await self._exchange.answer(200, body)

    async def _spoil_whole(self, body: bytes) -> None:
        if self._faults.error_after_tokens is not None:
            raise internal()
        if self._faults.freeze_after_tokens is not None:
            await self._exchange.hang()
        await self._exchange.start(200, JSON, len(body))
        await self._exchange.send(body[: len(body) // 2])
        self._exchange.connection.close()
        await self._exchange.hang()

    # Streams.

    async def _stream(self) -> None:
        """Send a stream. vLLM sends the headers before the first token, and the role with the first
        token."""
        await self._exchange.start(200, EVENT_STREAM)
        opening = self._dialect.opening()
        if self._dialect.at_once:
            await self._exchange.send(opening)
            opening = b""
        while not self._answer.complete:
            frames, opening = [opening], b""
            for output in await self._next():
                try:
                    piece = self._absorb(output)
                except ApiError as error:
                    await self._exchange.send(
                        b"".join(frames) + self._dialect.failure(error), more=False
                    )
                    return
                if piece is not None and self._tokens >= _limit(self._faults):
                    await self._spoil_stream(b"".join(frames), piece)
                    return
                if piece is not None:
                    frames.append(self._dialect.piece(piece))
                    self._tokens += 1
            await self._send_frames(frames)

    async def _next(self) -> list[Output]:
        """Wait for the next outputs. Comments keep a silent stream alive, also before the first
        event."""
        while True:
            try:
                async with asyncio.timeout(self._engine.config.sse_keep_alive_s):
                    return await self._inbox.take()
            except TimeoutError:
                await self._exchange.send(b": keep-alive\n\n")

    async def _send_frames(self, frames: list[bytes]) -> None:
        complete = self._answer.complete
        if complete:
            frames.append(self._dialect.closing())
        if body := b"".join(frames):
            await self._exchange.send(body, more=not complete)

    async def _spoil_stream(self, before: bytes, piece: Piece) -> None:
        if self._faults.error_after_tokens is not None:
            await self._exchange.send(before + self._dialect.failure(internal()), more=False)
        elif self._faults.freeze_after_tokens is not None:
            await self._exchange.send(before)
            await self._exchange.hang()
        else:
            frame = self._dialect.piece(piece)
            await self._exchange.send(before + frame[: len(frame) // 2])
            self._exchange.connection.close()
            await self._exchange.hang()


def _limit(faults: Faults) -> float:
    """The number of tokens after which a fault occurs."""
    limits = (faults.cut_after_tokens, faults.freeze_after_tokens, faults.error_after_tokens)
    return min((limit for limit in limits if limit is not None), default=float("inf"))


_APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/audio/transcriptions": "transcribe",
    "/v1/audio/translations": "translate",
}


_PINNED = ("chat", "completions", "messages")
"""APIs with the header X-data-parallel-rank; in the others the engine chooses the rank."""


class App:
    """The application. With several `ranks` it is the API server of a data-parallel engine, with
    the first rank's faults and log of requests."""

    def __init__(self, *ranks: Engine) -> None:
        self._ranks = ranks
        self._engine = ranks[0]
        self._routes: dict[tuple[str, str], Route] = {
            **info.routes(ranks),
            **pooling.routes(self._engine),
            **control.routes(self._engine),
            **{("POST", path): self._generate for path in _APIS},
        }

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        exchange = HttpExchange(scope, receive, send)
        try:
            request = await exchange.read()
            self._engine.records.add(request)
            exchange.faults = self._engine.faults.take(
                request.path, lambda: leg_of(request.body), request.raw
            )
            await _go_wrong(exchange)
            await self._answer(exchange, request)
        except ApiError as error:
            await exchange.error(error)
        except Gone:
            return

    async def _answer(self, exchange: HttpExchange, request: Request) -> None:
        route = self._routes.get((request.method, request.path))
        if route is not None and self._is_allowed(request):
            await route(exchange, request)
        elif route is not None:
            await exchange.json({"error": "Unauthorized"}, 401)
        elif any(path == request.path for _, path in self._routes):
            await exchange.json({"detail": "Method Not Allowed"}, 405)
        else:
            await exchange.json({"detail": "Not Found"}, 404)

    def _is_allowed(self, request: Request) -> bool:
        """Whether a request has the API key, which in vLLM is needed only under /v1."""
        key = self._engine.config.api_key
        if key is None or not request.path.startswith("/v1"):
            return True
        return request.headers.get("authorization") == f"Bearer {key}"

    async def _generate(self, exchange: HttpExchange, request: Request) -> None:
        api = _APIS[request.path]
        parse = parse_form if api in ("transcribe", "translate") else parse_body
        body = parse(request.headers, request.raw)
        try:
            generation_request = read_generation_request(api, body, self._engine.config)
        except ApiError:
            self._give_back(body)
            raise
        request_id = request.headers.get("x-request-id")
        rank = self._rank(request.headers.get("x-data-parallel-rank") if api in _PINNED else None)
        await Generation(rank, generation_request, exchange, request_id).run()

    def _rank(self, given: str | None) -> Engine:
        """The requested data-parallel rank, counted from the first one here, or the least loaded
        one by vLLM's measure. Raises ApiError for an unknown rank."""
        try:
            place = int(given or "")
        except ValueError:
            return min(self._ranks, key=lambda r: 4 * r.machine.waiting + r.machine.running)
        size = len(self._ranks)
        if not 0 <= place < size:
            raise bad_request(f"data_parallel_rank {place} is out of range [0, {size}).")
        return self._ranks[place]

    def _give_back(self, body: dict[str, Any]) -> None:
        """Release the blocks on the prefill engine that a refused decode request refers to
        (0.22.1)."""
        if leg_of(body) == "decode":
            remote = self._engine.reference(body["kv_transfer_params"])
            if remote is not None:
                self._engine.release(remote)


async def _go_wrong(exchange: HttpExchange) -> None:
    """Apply faults that occur before a response. Raises Gone, or ApiError for an error response."""
    faults = exchange.faults
    if faults.delay_s:
        await exchange.hang(faults.delay_s)
    if faults.hang:
        await exchange.hang()
    if faults.reset == "request":
        exchange.connection.reset()
        await exchange.hang()
    if faults.wire is not None:
        wire = faults.wire.encode("latin-1")
        if faults.reset == "wire":
            exchange.connection.reset(behind=wire)
        else:
            exchange.connection.transport.write(wire)
            exchange.connection.close()
        await exchange.hang()
    if faults.status is not None:
        raise injected(faults.status)
