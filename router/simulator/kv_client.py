"""The decode engine's side of a KV transfer: reads blocks from a prefill engine's simulator.

A real engine uses NIXL on a side channel; here it is HTTP to /sim/kv/ at the address in the
reference.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from router.simulator.config import EngineConfig
from router.simulator.model.sequence import RemoteRead


class KvClient:
    """Talks to other engines' simulators. Close it before the loop ends."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

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

    async def tell(self, remote: RemoteRead, what: str) -> None:
        """Send "release" or "heartbeat". Failures are ignored, because leases end by themselves."""
        try:
            await self.post(_url(remote, what), {"request_id": remote.request_id})
        except (aiohttp.ClientError, OSError, TimeoutError):
            return

    async def post(self, url: str, question: Mapping[str, Any]) -> Any:
        """POST JSON and return the JSON of the response. Raises aiohttp's errors, also for an error
        status."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._config.kv_handshake_timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, raise_for_status=True)
        headers = {"content-type": "application/json"}
        async with self._session.post(url, data=orjson.dumps(question), headers=headers) as reply:
            return orjson.loads(await reply.read())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _url(remote: RemoteRead, what: str) -> str:
    host = f"[{remote.host}]" if ":" in remote.host else remote.host
    return f"http://{host}:{remote.port}/sim/kv/{what}"
