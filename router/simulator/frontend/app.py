"""The ASGI application of a simulated engine: routing of requests, and faults before they are
processed."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router.simulator.api.audio import parse_form
from router.simulator.api.errors import ApiError, injected, invalid
from router.simulator.api.fields import leg_of, parse_body
from router.simulator.api.generation_request import read_generation_request
from router.simulator.driver import Gone
from router.simulator.engine import Engine
from router.simulator.frontend import control, info, pooling
from router.simulator.frontend.exchange import Exchange, Route
from router.simulator.frontend.generation import Generation
from router.simulator.model.sequence import RemoteRead
from router.simulator.records import Request

_APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/audio/transcriptions": "transcribe",
    "/v1/audio/translations": "translate",
}


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
        exchange = Exchange(scope, receive, send)
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

    async def _answer(self, exchange: Exchange, request: Request) -> None:
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

    async def _generate(self, exchange: Exchange, request: Request) -> None:
        api = _APIS[request.path]
        parse = parse_form if api in ("transcribe", "translate") else parse_body
        body = parse(request.headers, request.raw)
        try:
            generation_request = read_generation_request(api, body, self._engine.config)
        except ApiError:
            self._give_back(body)
            raise
        request_id = request.headers.get("x-request-id")
        rank = self._rank(request)
        await Generation(rank, generation_request, exchange, request_id).run()

    def _rank(self, request: Request) -> Engine:
        """The requested data-parallel rank, or the least loaded one by vLLM's measure. Raises
        ApiError for an unknown rank."""
        given = request.headers.get("x-data-parallel-rank")
        if given is None:
            return min(self._ranks, key=lambda r: 4 * r.machine.waiting + r.machine.running)
        place = int(given) - self._engine.config.data_parallel_start_rank if _is_rank(given) else -1
        if not 0 <= place < len(self._ranks):
            raise invalid("data_parallel_rank", f"data_parallel_rank {given} is out of range")
        return self._ranks[place]

    def _give_back(self, body: dict[str, Any]) -> None:
        """Release the blocks on the prefill engine that a refused decode request refers to
        (0.22.1)."""
        if self._engine.config.connector == "nixl" and leg_of(body) == "decode":
            remote = RemoteRead.parse(body["kv_transfer_params"])
            if remote is not None:
                self._engine.release(remote)


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal()


async def _go_wrong(exchange: Exchange) -> None:
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
