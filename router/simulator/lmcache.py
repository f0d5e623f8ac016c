"""LMCache's hand-over from a prefill engine: push the KV cache, then tell the router.

Wire formats of LMCache 0.5.6 (vllm_v1_adapter.py, pd_backend.py).
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from router.simulator.config import EngineConfig
from router.simulator.faults import FaultPlan
from router.simulator.kv_client import KvClient
from router.simulator.model.sequence import Prompt


class BadSpec(Exception):
    """A disagg_spec that LMCache cannot parse; its engine fails the request."""


@dataclass(frozen=True, slots=True)
class DisaggSpec:
    """The decode engine that gets the KV cache. There is one port per tensor-parallel rank."""

    req_id: str
    receiver_host: str
    receiver_init_port: list[int]
    receiver_alloc_port: list[int]

    @classmethod
    def parse(cls, document: object) -> "DisaggSpec":
        """Raises BadSpec."""
        if not isinstance(document, dict):
            raise BadSpec("disagg_spec: expected an object")
        req_id, host = document.get("req_id"), document.get("receiver_host")
        ports = [document.get("receiver_init_port"), document.get("receiver_alloc_port")]
        if not isinstance(req_id, str) or not isinstance(host, str):
            raise BadSpec("req_id, receiver_host: expected strings")
        for port in ports:
            if not isinstance(port, list) or not port or not all(map(_is_port, port)):
                raise BadSpec("receiver_init_port, receiver_alloc_port: expected lists of ints")
        init, alloc = ports
        return cls(req_id, host, list(init or ()), list(alloc or ()))


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class HandOver:
    """The pushes and notifications of one prefill engine. Close it before the event loop ends."""

    def __init__(self, config: EngineConfig, faults: FaultPlan, client: KvClient) -> None:
        self._config = config
        self._faults = faults
        self._client = client
        self._socket: Any = None
        self._context: Any = None
        self._ids: set[str] = set()
        self.bad_specs = self.duplicate_ids = self.pushed = self.lost = self.notified = 0

    def check(self, document: object) -> None:
        """Validate the disagg_spec of a request. Raises BadSpec."""
        try:
            spec = DisaggSpec.parse(document)
        except BadSpec:
            self.bad_specs += 1
            raise
        self.duplicate_ids += spec.req_id in self._ids
        self._ids.add(spec.req_id)

    async def run(self, spec: DisaggSpec, prompt: Prompt) -> None:
        """Push the prompt's KV cache to its receiver and notify the router, once per rank."""
        url = self._config.receivers.get(f"{spec.receiver_host}:{spec.receiver_init_port[0]}")
        if url is None or not await self._push(url, prompt):
            self.lost += 1
            return
        self.pushed += 1
        if self._config.notify_delay_s:
            await asyncio.sleep(self._config.notify_delay_s)
        if self._config.notify is not None and not self._faults.now.drop_notifications:
            self._notify(spec, self._config.notify)

    async def _push(self, url: str, prompt: Prompt) -> bool:
        cache = {
            "contents": prompt.contents,
            "tokens": len(prompt),
            "block_size": prompt.block_size,
        }
        try:
            await self._client.post(f"{url}/sim/kv/push", cache)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return True

    def _notify(self, spec: DisaggSpec, address: str) -> None:
        # An extra: only engines that send notifications need ZeroMQ and msgpack.
        import msgpack  # noqa: PLC0415
        import zmq  # noqa: PLC0415

        if self._socket is None:
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.PUSH)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.connect(f"tcp://{address}")
        message = msgpack.packb({"type": "ProxyNotif", "req_id": spec.req_id})
        for _ in spec.receiver_init_port:
            self._socket.send(message, flags=zmq.NOBLOCK)
        self.notified += 1

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._context.term()
