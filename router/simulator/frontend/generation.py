"""One generation request, from the parsed body to the end of the response."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import orjson

from router.simulator.api.choices import Answer, Piece
from router.simulator.api.dialect import Dialect
from router.simulator.api.errors import ApiError, busy, engine_dead, internal
from router.simulator.api.generation_request import GenerationRequest
from router.simulator.api.messages import Messages
from router.simulator.api.openai import Chat, Completions
from router.simulator.api.responses import Responses
from router.simulator.api.transcription import Transcription
from router.simulator.driver import Gone, Inbox
from router.simulator.engine import Engine
from router.simulator.faults import Faults
from router.simulator.frontend.exchange import EVENT_STREAM, JSON, Exchange
from router.simulator.model.machine import EngineDead, QueueFull
from router.simulator.model.sequence import Output

_DIALECTS: dict[str, Callable[[Answer, str, int, bool], Dialect]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
    "transcribe": Transcription,
    "translate": Transcription,
}
_ID_PREFIX = {
    "completions": "cmpl-",
    "responses": "resp_",
    "transcribe": "transcribe-",
    "translate": "translate-",
}


class Generation:
    """Processes one parsed request."""

    def __init__(
        self, engine: Engine, request: GenerationRequest, exchange: Exchange, request_id: str | None
    ) -> None:
        self._engine = engine
        self._request = request
        self._exchange = exchange
        self._faults = exchange.faults
        answer_id = _ID_PREFIX.get(request.api, "chatcmpl-") + (request_id or uuid4().hex[:16])
        self._sequences = engine.sequences(request, answer_id)
        self._answer = Answer(request, self._sequences)
        self._dialect = _DIALECTS[request.api](
            self._answer, answer_id, engine.wall_clock(), engine.config.prompt_tokens_details
        )
        self._inbox = Inbox()
        self._tokens = 0

    async def run(self) -> None:
        """Generate and respond. Raises ApiError if nothing has been sent yet."""
        self._exchange.connection.when_lost(self._inbox.leave)
        try:
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
        if output.token is None:
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
