"""KV caches between engines, as NIXL, Mooncake, MoRIIO, LMCache and a shared store move them.

NIXL: the decode engine reads blocks from a prefill engine, at the address in the reference. A real
engine uses a side channel; here it is HTTP to /sim/kv/. LMCache: the prefill engine pushes, then
notifies the router, in the wire formats of LMCache 0.5.6 (vllm_v1_adapter.py, pd_backend.py).
Mooncake: the decode engine finds the prefill engine by /query of its bootstrap server, which is the
engine's own server here, and asks it for the blocks of a transfer id (mooncake_connector.py).
MoRIIO: the decode engine sends the prefill engine the blocks to write to (moriio_engine.py, WRITE
mode).
Store: a folder has an empty file for each block of a prompt, where ExampleConnector has its tensors
(example_connector.py).
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from router.simulator.config import EngineConfig
from router.simulator.faults import FaultPlan
from router.simulator.model.kv_cache import References
from router.simulator.model.sequence import Prompt, RemoteRead


class KvClient:
    """Talks to other engines' simulators. Close it before the loop ends."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._peers: dict[str, str] = {}
        """Mooncake: the URLs of prefill engines by id, which are never forgotten."""

    async def pull(self, remote: RemoteRead, blocks: list[int], tokens: int) -> list[int] | None:
        """Read blocks, which the prefill engine then frees. None if that fails."""
        url = _url(remote, "pull")
        question = {
            "engine_id": remote.engine_id,
            "request_id": remote.request_id,
            "blocks": blocks,
            "block_size": self._config.block_size,
            "params": remote.params,
        }
        try:
            answer = await self.post(url, question)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        if self._config.kv_tokens_per_second is not None:
            await asyncio.sleep(tokens / self._config.kv_tokens_per_second)
        contents: list[int] = answer["contents"]
        return contents

    async def fetch(self, remote: RemoteRead, blocks: int, tokens: int) -> list[int] | None:
        """Mooncake: the last `blocks` blocks of a transfer id, which the prefill engine then frees.
        None if its bootstrap server does not list the engine. What no engine sends is waited for:
        None after the time for which blocks are kept."""
        name = str(remote.engine_id)
        try:
            if name not in self._peers:
                listed = await self._get(_url(remote, "").removesuffix("/sim/kv/") + "/query")
                self._peers |= {
                    each["engine_id"]: each["worker_addr"]["0"]["0"] for each in listed.values()
                }
            if name not in self._peers:
                return None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        question = {"engine_id": name, "transfer_id": remote.request_id, "blocks": blocks}
        try:
            answer = await self.post(f"{self._peers[name]}/sim/kv/send", question)
            contents: list[int] | None = answer["contents"]
        except (aiohttp.ClientResponseError, KeyError):
            return None
        except (aiohttp.ClientError, OSError, TimeoutError):
            contents = None
        if contents is None:
            await asyncio.sleep(self._config.kv_lease_s)
        elif self._config.kv_tokens_per_second is not None:
            await asyncio.sleep(tokens / self._config.kv_tokens_per_second)
        return contents

    async def written(
        self, remote: RemoteRead, blocks: int, tokens: int, own: References
    ) -> list[int] | None:
        """MoRIIO: the last `blocks` blocks of a transfer id, which the prefill engine then frees.
        None if it writes nothing."""
        question = {
            "transfer_id": remote.request_id,
            "blocks": blocks,
            "asker": own.address,
            "engine_id": own.engine_id,
        }
        try:
            answer = await self.post(_url(remote, "write"), question)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        if self._config.kv_tokens_per_second is not None:
            await asyncio.sleep(tokens / self._config.kv_tokens_per_second)
        contents: list[int] | None = answer["contents"]
        return contents

    async def notify(self, remote: RemoteRead, what: str) -> None:
        """Send "release" or "heartbeat". Failures are ignored, because leases end by themselves."""
        try:
            await self.post(_url(remote, what), {"request_id": remote.request_id})
        except (aiohttp.ClientError, OSError, TimeoutError):
            return

    async def post(self, url: str, question: Mapping[str, Any]) -> Any:
        """POST JSON and return the JSON of the response. Raises aiohttp's errors, also for an error
        status."""
        headers, data = {"content-type": "application/json"}, orjson.dumps(question)
        async with self._opened().post(url, data=data, headers=headers) as reply:
            return orjson.loads(await reply.read())

    async def _get(self, url: str) -> Any:
        async with self._opened().get(url) as reply:
            return orjson.loads(await reply.read())

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._config.kv_handshake_timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, raise_for_status=True)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _url(remote: RemoteRead, what: str) -> str:
    host = f"[{remote.host}]" if ":" in remote.host else remote.host
    return f"http://{host}:{remote.port}/sim/kv/{what}"


class SharedStore:
    """The store of several engines: a folder with the names of blocks."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def put(self, prompt: Prompt) -> None:
        """Add all full blocks of a prompt."""
        for name in self._names(prompt):
            (self._folder / name).touch()

    def find(self, prompt: Prompt) -> list[int]:
        """The contents of a prompt's first blocks that are there."""
        found = takewhile(lambda name: (self._folder / name).exists(), self._names(prompt))
        return prompt.contents[: len(list(found))]

    def _names(self, prompt: Prompt) -> Iterator[str]:
        full = prompt.contents[: prompt.full_blocks]
        return (f"{place}-{content:08x}" for place, content in enumerate(full))


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
