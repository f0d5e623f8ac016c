"""An engine's KV cache: blocks of sequences, blocks kept for other engines, and blocks loaded from
elsewhere.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from router.core.fleet.models import release
from router.simulator.config import EngineConfig
from router.simulator.model.blocks import BlockPool, EventLog, blocks_for, link
from router.simulator.model.sequence import Prompt, RemoteRead, Sequence

_REMEMBERED = 10_000
"""Most ended references that are remembered as used or expired."""


class StaleEngine(Exception):
    """The reference names another engine, or blocks that this one never had."""


@dataclass(slots=True)
class _Kept:
    blocks: list[int]
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
        self._leases: dict[str, _Kept] = {}
        self._known: dict[tuple[str, int], str] = {}
        """MoRIIO: decode engines by address, which are never forgotten."""
        self._ended: OrderedDict[str, str] = OrderedDict()
        self.expires_next = float("inf")
        """The end of the next lease; infinity if there are none."""
        self.issued = self.read = self.expired = self.released = 0
        self.late = self.reused = self.unknown = self.altered = 0

    @property
    def pinned_blocks(self) -> int:
        return sum(len(lease.blocks) for lease in self._leases.values())

    @property
    def pending(self) -> int:
        """Number of unread references."""
        return len(self._leases)

    def issue(
        self, request_id: str, blocks: list[int], params: Mapping[str, Any], now: float
    ) -> dict[str, Any]:
        """Keep `blocks`, which the caller holds, until they are read or the lease runs out.

        Returns the KV parameters in vLLM 0.32's format, plus `params`.
        """
        self.issued += 1
        expires = now + self._lease_s
        whole = self._shape(request_id, blocks) | dict(params)
        self._leases[request_id] = _Kept(blocks, expires, whole)
        self.expires_next = min(self.expires_next, expires)
        return whole

    def aim(
        self, transfer_id: str, blocks: list[int], target: RemoteRead, now: float
    ) -> dict[str, Any]:
        """The same for MoRIIO, in its format: to be written into one decode engine."""
        self.issue(transfer_id, blocks, {"target": (target.host, target.port)}, now)
        host, port = self.address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(blocks)],
            "remote_engine_id": f"{host}:{port}",
            "remote_host": host,
            "remote_handshake_port": port,
            "remote_notify_port": port,
            "remote_dp_rank": 0,
            "remote_dp_rank_override": True,
            "remote_dp_size": 1,
            "remote_dp_size_local": 1,
            "tp_size": 1,
            "transfer_id": transfer_id,
        }

    def write(
        self, transfer_id: str, count: int, asker: tuple[str, int], engine_id: str, now: float
    ) -> list[int] | None:
        """MoRIIO: what is written into the decode engine that asks for `count` blocks of an id.
        None if that is nothing: the prefill named another engine, or this one has restarted, whose
        new memory the prefill engine does not know."""
        self.expire(now)
        lease = self._leases.get(transfer_id)
        known = self._known.setdefault(asker, engine_id)
        if lease is None or lease.params["target"] != asker or known != engine_id:
            self.unknown += 1
            return None
        return self.send(self.engine_id, transfer_id, count, now)

    def _shape(self, request_id: str, blocks: list[int]) -> dict[str, Any]:
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
        blocks: list[int],
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
        lease = self._leases.get(request_id)
        if lease is not None:
            self.read += 1
            self.altered += _canonical(lease.params) != _canonical(params)
            self._end(request_id, "read")
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

    def send(self, engine_id: object, transfer_id: str, count: int, now: float) -> list[int] | None:
        """Mooncake: the contents of the last `count` blocks that are kept under an id, which are
        freed. None if none are. Raises StaleEngine if the id of the engine or the number of blocks
        is wrong."""
        self.expire(now)
        lease = self._leases.get(transfer_id)
        if engine_id != self.engine_id or (lease is not None and count > len(lease.blocks)):
            raise StaleEngine
        if lease is None:
            self.unknown += 1
            self.reused += transfer_id in self._ended
            return None
        contents = self._pool.read(lease.blocks[len(lease.blocks) - count :])
        self.read += 1
        self._end(transfer_id, "read")
        return contents

    def release(self, request_id: str) -> None:
        """Release a reference that the decode engine will not read, because it refused or lost the
        request."""
        self.released += self._end(request_id, "read")

    def end_lease(self, request_id: str) -> None:
        """End a lease early, as under memory pressure or with a wrong clock."""
        self.expired += self._end(request_id, "expired")

    def extend(self, request_id: str, now: float) -> None:
        """Renew a lease while the request is queued on the decode engine; adds 2/3 of a lease
        (vLLM)."""
        lease = self._leases.get(request_id)
        if lease is not None:
            lease.expires = max(lease.expires, now + self._lease_s * 2 / 3)

    def expire(self, now: float) -> None:
        """Free the blocks of expired references."""
        if now < self.expires_next:
            return
        for request_id, lease in list(self._leases.items()):
            if lease.expires <= now:
                self.end_lease(request_id)
        leases = self._leases.values()
        self.expires_next = min((lease.expires for lease in leases), default=float("inf"))

    def _end(self, request_id: str, how: str) -> bool:
        """Free the blocks of a reference. Returns False if it is not kept."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return False
        self._pool.release(lease.blocks)
        self._ended[request_id] = how
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return True


def _canonical(params: Mapping[str, Any]) -> bytes:
    """Equal only for parameters that were returned unchanged; 1 and 1.0 are different."""
    return orjson.dumps(params, option=orjson.OPT_SORT_KEYS)


_MAX_BLOCKS = 100_000
"""Most blocks; the oldest are dropped first."""


class ExternalCache:
    """Prefixes that can be loaded instead of computed."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, contents: list[int], tokens: int, block_size: int) -> None:
        """Add the blocks of a prompt of `tokens` tokens; the last one may be partly filled."""
        for place, content in enumerate(contents, 1):
            self._known[min(place * block_size, tokens), content] = None
        while len(self._known) > _MAX_BLOCKS:
            self._known.popitem(last=False)

    def longest(self, prompt: Prompt) -> int:
        """Tokens of the longest known prefix, at most one less than the prompt has."""
        whole, size = len(prompt), prompt.block_size
        if (whole, prompt.contents[-1]) in self._known:
            return whole - 1
        start = (whole - 1) // size * size
        before = prompt.contents[start // size - 1] if start else prompt.salt
        if (whole - 1, link(prompt.tokens[start : whole - 1], before)) in self._known:
            return whole - 1
        for place in range(start // size, 0, -1):
            if (place * size, prompt.contents[place - 1]) in self._known:
                return place * size
        return 0


REPORTS_CACHED_FROM: Final = (0, 32)
"""The first vLLM whose prefill engines report to decode engines how much of a prompt was cached."""


class KvCache:
    """Allocates blocks for sequences and frees them. Pure; time is an argument."""

    def __init__(self, config: EngineConfig, engine_id: str) -> None:
        self._size = config.block_size
        self._extra = config.kv_params_extra
        self._pushes = config.connector == "nixl-push"
        self._reports_cached = release(config.version) >= REPORTS_CACHED_FROM
        self.events = EventLog(is_on=config.kv_events)
        self.pool = BlockPool(
            config.total_blocks, keep_prefixes=config.prefix_caching, events=self.events
        )
        self.references = References(self.pool, engine_id, config.kv_lease_s)
        self.external = ExternalCache()

    def place(self, sequence: Sequence) -> bool:
        """Allocate blocks for all tokens of a sequence, including its cached prefix.

        Returns False, without changes, if there are too few blocks.
        """
        most = (len(sequence.tokens) - 1) // self._size  # the last token is always computed
        shared = self.pool.cached(sequence.contents[:most])
        fresh = blocks_for(len(sequence.tokens), self._size) - len(shared)
        if fresh > self.pool.available(shared):
            return False
        self.pool.hold(shared)
        sequence.blocks = shared + self.pool.take(fresh)
        sequence.filled, sequence.computed = len(shared), len(shared) * self._size
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Allocate blocks for new tokens. Returns False if no block is free."""
        needed = blocks_for(len(sequence.tokens), self._size) - len(sequence.blocks)
        if needed > self.pool.free:
            return False
        if needed > 0:
            sequence.blocks += self.pool.take(needed)
        return True

    def fill(self, sequence: Sequence, computed: int) -> None:
        """Note that `computed` tokens are computed. Full blocks can be shared with other prompts
        from now on."""
        full = computed // self._size
        if not sequence.sound or full <= sequence.filled:
            return
        first, is_known = sequence.filled, False
        for place in range(sequence.filled, full):
            if place == len(sequence.contents):
                before = sequence.contents[-1] if place else sequence.prompt.salt
                block = sequence.tokens[place * self._size : (place + 1) * self._size]
                sequence.contents.append(link(block, before))
            is_known = self.pool.fill(sequence.blocks[place], place, sequence.contents[place])
        sequence.filled = full
        if is_known and self.events.is_on:
            tokens = sequence.tokens[first * self._size : full * self._size]
            places = range(first, full)
            self.events.stored(places, sequence.contents, tokens, sequence.prompt.owner)

    def drop(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence."""
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.filled = [], 0, 0

    def keep(self, sequence: Sequence, now: float) -> None:
        """Keep the prompt's blocks for the decode engine that will get the reference."""
        prompt = sequence.prompt
        blocks = sequence.blocks[: len(prompt.contents)]
        self.pool.release(sequence.blocks[len(blocks) :])
        sequence.blocks = []
        for block, content in zip(blocks, prompt.contents, strict=True):
            self.pool.write(block, content)
        params: dict[str, Any] = {"remote_num_tokens": len(prompt)}
        if self._reports_cached:
            params["remote_prefill_cached_tokens"] = sequence.cached
        if self._pushes:
            params["transfer_mode"] = "push"
        params |= self._extra
        if sequence.target is not None:
            name = sequence.target.request_id
            sequence.kv_params = self.references.aim(name, blocks, sequence.target, now)
        elif sequence.transfer_id is not None:
            self.references.issue(sequence.transfer_id, blocks, {}, now)
        else:
            sequence.kv_params = self.references.issue(sequence.request_id, blocks, params, now)

    def lacking(self, sequence: Sequence) -> list[int]:
        """Contents of the prompt's blocks that are not computed here."""
        return sequence.prompt.contents[sequence.cached // self._size :]

    def take_external(self, sequence: Sequence) -> None:
        """Use the part of the prompt that other engines have pushed."""
        found = self.external.longest(sequence.prompt) - sequence.computed
        if found > 0:
            sequence.external = found
            sequence.computed += found
