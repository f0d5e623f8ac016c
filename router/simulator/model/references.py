"""KV references: blocks that a prefill engine keeps for a decode engine until they are read or
expire.

Modelled on vLLM's NixlConnector: a reference is read once, its lease can run out, and a reader that
is late or reads twice gets whatever is in the blocks by then. Time is an argument.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from router.simulator.model.blocks import BlockPool

_REMEMBERED = 10_000
"""Most ended references that are remembered as used or expired."""


class StaleEngine(Exception):
    """The reference names another engine, or blocks that this one never had."""


@dataclass(slots=True)
class _Lease:
    blocks: Sequence[int]
    expires: float
    params: Mapping[str, Any]


class References:
    """The references that one engine has issued."""

    def __init__(self, pool: BlockPool, engine_id: str, lease_s: float) -> None:
        self._pool = pool
        self.engine_id = engine_id
        self.address = ("127.0.0.1", 0)
        """The address for reads; known once the server listens."""
        self._lease_s = lease_s
        self._leases: dict[str, _Lease] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._expires_next = float("inf")
        self.issued = self.read = self.expired = self.released = 0
        self.late = self.reused = self.unknown = self.altered = 0

    @property
    def pinned_blocks(self) -> int:
        return sum(len(lease.blocks) for lease in self._leases.values())

    @property
    def pending(self) -> int:
        """Number of unread references."""
        return len(self._leases)

    @property
    def expires_next(self) -> float:
        """The end of the next lease; infinity if there are none."""
        return self._expires_next

    def issue(
        self, request_id: str, blocks: Sequence[int], params: Mapping[str, Any], now: float
    ) -> dict[str, Any]:
        """Keep `blocks`, which the caller holds, until they are read or the lease runs out.

        Returns the KV parameters in vLLM 0.32's format, plus `params`.
        """
        self.issued += 1
        expires = now + self._lease_s
        whole = self._shape(request_id, blocks) | dict(params)
        self._leases[request_id] = _Lease(blocks, expires, whole)
        self._expires_next = min(self._expires_next, expires)
        return whole

    def _shape(self, request_id: str, blocks: Sequence[int]) -> dict[str, Any]:
        host, port = self.address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(blocks)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": None,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    def pull(
        self,
        engine_id: object,
        request_id: str,
        blocks: Sequence[int],
        params: Mapping[str, Any],
        now: float,
    ) -> list[int]:
        """Read the contents of blocks and free them.

        Raises StaleEngine where a real engine's handshake would fail. Otherwise returns whatever
        the blocks contain, which is how wrong tokens arise.
        """
        self.expire(now)
        if engine_id != self.engine_id or not all(
            0 < block <= self._pool.total for block in blocks
        ):
            raise StaleEngine
        contents = self._pool.read(blocks)
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            self.read += 1
            self.altered += not _same(lease.params, params)
            self._end(request_id, lease, "read")
            return contents
        return self._overdue(request_id, contents)

    def _overdue(self, request_id: str, contents: list[int]) -> list[int]:
        ended = self._ended.get(request_id)
        if ended is None:
            self.unknown += 1  # as in vLLM 0.32 (measured), the id only matters for the release
            return contents
        self.late += 1
        if ended != "read":
            return contents
        # A real second read is wrong only once the blocks have been reused. Here it always is, so
        # that tests do not depend on the engine's load.
        self.reused += 1
        return [content ^ 0xFFFFFFFF for content in contents]

    def release(self, request_id: str) -> None:
        """Release a reference that the decode engine will not read, because it refused or lost the
        request."""
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            self.released += 1
            self._end(request_id, lease, "read")

    def end_lease(self, request_id: str) -> None:
        """End a lease early, as under memory pressure or with a wrong clock."""
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            self.expired += 1
            self._end(request_id, lease, "expired")

    def extend(self, request_id: str, now: float) -> None:
        """Renew a lease while the request is queued on the decode engine; adds 2/3 of a lease
        (vLLM)."""
        lease = self._leases.get(request_id)
        if lease is not None:
            lease.expires = max(lease.expires, now + self._lease_s * 2 / 3)

    def expire(self, now: float) -> None:
        """Free the blocks of expired references."""
        if now < self._expires_next:
            return
        for request_id, lease in list(self._leases.items()):
            if lease.expires <= now:
                del self._leases[request_id]
                self.expired += 1
                self._end(request_id, lease, "expired")
        leases = self._leases.values()
        self._expires_next = min((lease.expires for lease in leases), default=float("inf"))

    def _end(self, request_id: str, lease: _Lease, how: str) -> None:
        self._pool.release(lease.blocks)
        self._ended[request_id] = how
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


def _same(issued: Mapping[str, Any], returned: Mapping[str, Any]) -> bool:
    """Whether the parameters were returned unchanged; 1 and 1.0 are different."""
    return _canonical(issued) == _canonical(returned)


def _canonical(params: Mapping[str, Any]) -> bytes:
    return orjson.dumps(params, option=orjson.OPT_SORT_KEYS)
