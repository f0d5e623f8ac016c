"""/sim/: routes that a real engine does not have, for faults, the log of requests, the state and KV
transfers."""

from typing import Any

import orjson

from router.simulator.engine import Engine
from router.simulator.faults import NO_FAULTS, FaultError, Faults
from router.simulator.frontend.exchange import HttpExchange, Route
from router.simulator.model.kv_cache import StaleEngine
from router.simulator.records import Request


def routes(engine: Engine) -> dict[tuple[str, str], Route]:
    """Routes by method and path."""
    control, transfers = _Control(engine), _Transfers(engine)
    return {
        ("GET", "/sim/state"): control.state,
        ("GET", "/sim/requests"): control.requests,
        ("DELETE", "/sim/requests"): control.forget_requests,
        ("GET", "/sim/faults"): control.faults,
        ("POST", "/sim/faults"): control.set_faults,
        ("DELETE", "/sim/faults"): control.clear_faults,
        ("POST", "/sim/die"): control.die,
        ("POST", "/sim/drop"): control.drop,
        ("POST", "/sim/kv/pull"): transfers.pull,
        ("POST", "/sim/kv/send"): transfers.send,
        ("POST", "/sim/kv/write"): transfers.write,
        ("POST", "/sim/kv/release"): transfers.release,
        ("POST", "/sim/kv/heartbeat"): transfers.heartbeat,
        ("POST", "/sim/kv/push"): transfers.push,
    }


def state_of(engine: Engine) -> dict[str, Any]:
    """The engine's current state; counts are since its start."""
    machine, references = engine.machine, engine.machine.kv.references
    references.expire(engine.driver.now())
    counters, transfers = machine.counters, engine.transfers
    return {
        "model": engine.config.model,
        "role": engine.config.role,
        "engine_id": engine.engine_id,
        "dead": machine.dead,
        "asleep": engine.driver.asleep,
        "running": machine.running,
        "waiting": machine.waiting,
        "loading": machine.loading,
        "connections": engine.connections(),
        "kv_usage": machine.kv.pool.usage,
        "pinned_blocks": references.pinned_blocks,
        "duplicate_request_ids": engine.records.duplicate_ids,
        "paths": dict(engine.records.paths),
        "tokens": {
            "prompt": counters.prompt,
            "generated": counters.generated,
            "local_compute": counters.computed_here,
            "local_cache_hit": counters.cached_here,
            "external_kv_transfer": counters.external,
        },
        "steps": counters.steps,
        "preemptions": counters.preemptions,
        "rejected": counters.rejected,
        "finished": dict(counters.finished),
        "references": _counts(
            references,
            *("pending", "issued", "read", "released", "expired"),
            *("late", "reused", "unknown", "altered"),
        ),
        "loads": {
            "good": counters.transfers - counters.wrong_transfers,
            "wrong": counters.wrong_transfers,
            "failed": counters.failed_transfers,
        },
        "encoder": _counts(engine.encoder, "encoded", "found"),
        "lmcache": _counts(transfers, "bad_specs", "duplicate_ids", "pushed", "lost", "notified"),
    }


def _counts(source: object, *names: str) -> dict[str, int]:
    return {name: getattr(source, name) for name in names}


class _Control:
    """Routes for tests and demonstrations."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def state(self, exchange: HttpExchange, _request: Request) -> None:
        await exchange.json(state_of(self._engine))

    async def requests(self, exchange: HttpExchange, _request: Request) -> None:
        found = [request.as_json() for request in self._engine.records.requests]
        await exchange.json({"requests": found})

    async def forget_requests(self, exchange: HttpExchange, _request: Request) -> None:
        self._engine.records.clear()
        await exchange.json({"requests": []})

    async def faults(self, exchange: HttpExchange, _request: Request) -> None:
        await exchange.json(self._engine.faults.as_json())

    async def set_faults(self, exchange: HttpExchange, request: Request) -> None:
        """Set the faults; those not given are off. After `for_s` seconds all are off."""
        document = request.body
        for_s = document.pop("for_s", None) if isinstance(document, dict) else None
        try:
            faults = Faults.parse(document)
        except FaultError as error:
            await exchange.json({"error": str(error)}, 400)
            return
        await self._engine.set_faults(faults, for_s)
        await self.faults(exchange, request)

    async def clear_faults(self, exchange: HttpExchange, request: Request) -> None:
        await self._engine.set_faults(NO_FAULTS)
        await self.faults(exchange, request)

    async def die(self, exchange: HttpExchange, _request: Request) -> None:
        self._engine.die()
        await exchange.json({})

    async def drop(self, exchange: HttpExchange, _request: Request) -> None:
        """Reset all connections including this one, so there is no response."""
        self._engine.drop_connections()
        await exchange.hang()


class _Transfers:
    """The side channel between engines: reads of NIXL, Mooncake and MoRIIO, pushes of LMCache."""

    def __init__(self, engine: Engine) -> None:
        self._machine = engine.machine
        self._engine = engine

    async def pull(self, exchange: HttpExchange, request: Request) -> None:
        asked = orjson.loads(request.raw)
        if asked["block_size"] != self._engine.config.block_size or self._machine.dead:
            await exchange.json({"error": "handshake failed"}, 409)
            return
        if self._engine.faults.take_expiry():
            self._machine.kv.references.end_lease(asked["request_id"])
            self._engine.driver.wake()
            await exchange.json({"error": "the blocks are gone"}, 409)
            return
        try:
            contents = self._machine.kv.references.pull(
                asked["engine_id"],
                asked["request_id"],
                asked["blocks"],
                asked["params"],
                self._engine.driver.now(),
            )
        except StaleEngine:
            await exchange.json({"error": "unknown engine or block"}, 409)
            return
        self._engine.driver.wake()
        await exchange.json({"contents": contents})

    async def send(self, exchange: HttpExchange, request: Request) -> None:
        asked = orjson.loads(request.raw)
        try:
            contents = self._machine.kv.references.send(
                asked["engine_id"],
                asked["transfer_id"],
                asked["blocks"],
                self._engine.driver.now(),
            )
        except StaleEngine:
            await exchange.json({"error": "not the engine, or too few blocks"}, 409)
            return
        self._engine.driver.wake()
        await exchange.json({"contents": contents})

    async def write(self, exchange: HttpExchange, request: Request) -> None:
        asked = orjson.loads(request.raw)
        contents = self._machine.kv.references.write(
            asked["transfer_id"],
            asked["blocks"],
            tuple(asked["asker"]),
            asked["engine_id"],
            self._engine.driver.now(),
        )
        self._engine.driver.wake()
        await exchange.json({"contents": contents})

    async def release(self, exchange: HttpExchange, request: Request) -> None:
        self._machine.kv.references.release(orjson.loads(request.raw)["request_id"])
        self._engine.driver.wake()
        await exchange.json({})

    async def heartbeat(self, exchange: HttpExchange, request: Request) -> None:
        asked = orjson.loads(request.raw)
        self._machine.kv.references.extend(asked["request_id"], self._engine.driver.now())
        await exchange.json({})

    async def push(self, exchange: HttpExchange, request: Request) -> None:
        cache = orjson.loads(request.raw)
        self._machine.kv.external.add(cache["contents"], cache["tokens"], cache["block_size"])
        await exchange.json({})
