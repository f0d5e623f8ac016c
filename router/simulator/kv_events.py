"""Publishes a simulated engine's KV-cache events the way vLLM's ZmqEventPublisher does.

The formats are those of the simulated vLLM version: events are tagged arrays up to 0.23 and maps
from 0.24 on, replayed messages have a topic from 0.26 on, and /kv_event_sources exists from 0.32
on.
"""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from router.simulator.config import EngineConfig
from router.simulator.faults import FaultPlan
from router.simulator.model.blocks import Change, EventLog, Removed, Stored

BUFFER = 10_000
"""Most batches that are kept for replay (vLLM: buffer_steps)."""

END = b"\xff" * 8
TOPIC = b"kv-events"


class KVEventPublisher:
    """The sockets of one engine. `flush` sends all changes as one batch."""

    def __init__(self, config: EngineConfig, log: EventLog, faults: FaultPlan) -> None:
        self._config = config
        self._log = log
        self._faults = faults
        self._version = _version(config.version)
        self._rank = config.data_parallel_start_rank
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFER)
        self._held: list[tuple[int, bytes]] = []
        """Delayed batches."""
        self._seq = 0
        self._context: Any = None
        self._live: Any = None
        self._replay: Any = None
        self.endpoint = self.replay_endpoint = ""
        self.replays = 0
        """Number of answered replay requests."""

    def start(self) -> None:
        """Bind to free ports, or to the given one and the next. Raises zmq.ZMQError."""
        if not self._log.is_on:
            return
        import zmq  # noqa: PLC0415 - an extra: only engines that publish need it

        self._context = zmq.Context()
        port, host = self._config.kv_events_port, self._config.host
        self._live, self._replay = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        for place, socket in enumerate((self._live, self._replay)):
            socket.linger = 0
            socket.sndhwm = 0
            socket.ipv6 = ":" in host
            name = f"[{host}]" if ":" in host else host
            socket.bind(f"tcp://{name}:{port + place if port else '*'}")
        self.endpoint = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        asyncio.get_running_loop().add_reader(self._replay.fileno(), self._answer)
        self._answer()

    def close(self) -> None:
        if self._context is not None:
            asyncio.get_running_loop().remove_reader(self._replay.fileno())
            self._context.destroy(linger=0)
            self._context = None

    @property
    def sources(self) -> Any:
        """The response to GET /kv_event_sources."""
        if self._context is None:
            return {}
        # vLLM returns its bind address, which names no host.
        sockets = {
            "endpoint": "tcp://*:" + self.endpoint.rpartition(":")[2],
            "replay_endpoint": "tcp://*:" + self.replay_endpoint.rpartition(":")[2],
            "topic": TOPIC.decode(),
        }
        if self._version >= (0, 33):
            return [{"data_parallel_rank": self._rank, **sockets}]
        return {str(self._rank): {"enable_kv_cache_events": True, "publisher": "zmq", **sockets}}

    def flush(self) -> None:
        """Send all changes since the last call as one batch."""
        changes = self._log.take()
        if not changes or self._context is None:
            return
        import msgpack  # noqa: PLC0415

        seq, self._seq = self._seq, self._seq + 1
        payload = msgpack.packb([1.5, [self._event(change) for change in changes], self._rank])
        self._buffer.append((seq, payload))
        faults = self._faults.now
        if not faults.lose_kv_events:
            self._held.append((seq, payload))
        if len(self._held) >= faults.hold_kv_events:
            self._send_held(in_reverse=faults.reverse_kv_events)
        if faults.forge_kv_events:
            for frames in _forged(seq, payload):
                self._live.send_multipart(frames)
        self._answer()  # a send may have used up the descriptor's signal

    def _send_held(self, *, in_reverse: bool) -> None:
        for seq, payload in sorted(self._held, reverse=in_reverse):
            self._live.send_multipart([TOPIC, seq.to_bytes(8, "big"), payload])
        self._held.clear()

    def _answer(self) -> None:
        """Answer replay requests."""
        import zmq  # noqa: PLC0415

        while self._context is not None and self._replay.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            frames = self._replay.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            topic = [TOPIC] if self._version >= (0, 26) else []
            for seq, payload in self._buffer:
                if seq >= int.from_bytes(start, "big"):
                    number = seq.to_bytes(8, "big")
                    self._replay.send_multipart([client, b"", *topic, number, payload])
            self._replay.send_multipart([client, b"", *(b"" for _ in topic), END, b""])
            self.replays += 1

    def _event(self, change: Change) -> object:
        if isinstance(change, Stored):
            fields = self._stored(change)
            tag = "BlockStored"
        elif isinstance(change, Removed):
            tag, fields = "BlockRemoved", {"block_hashes": [change.block], "medium": "GPU"}
        else:
            tag, fields = "AllBlocksCleared", {}
        if self._version < (0, 24):
            return [tag, *fields.values()]
        return {"type": tag, **fields}

    def _stored(self, change: Stored) -> dict[str, Any]:
        model, _, salt = change.owner.partition("\0")
        adapter = None if model == self._config.model else model
        fields: dict[str, Any] = {
            "block_hashes": change.hashes,
            "parent_block_hash": change.parent,
            "token_ids": change.tokens,
            "block_size": self._config.block_size,
            "lora_id": None if adapter is None else 1 + self._config.loras.index(adapter),
            "medium": "GPU",
            "lora_name": adapter,
        }
        extra = _extra_keys(change, adapter, salt)
        if extra is not None or self._version < (0, 24):
            fields["extra_keys"] = extra
        return fields


def _extra_keys(
    change: Stored, adapter: str | None, salt: str
) -> list[Sequence[str] | None] | None:
    """Extra keys: the adapter's name for each block, and the salt for the first block of a
    prompt."""
    names = [] if adapter is None else [adapter]
    keys: list[Sequence[str] | None] = [names or None for _ in change.hashes]
    if salt and change.parent is None:
        keys[0] = [*names, salt]
    return keys if any(keys) else None


def _forged(seq: int, payload: bytes) -> list[list[bytes]]:
    """Messages that follow batch `seq` and are invalid in form, order or content."""
    import msgpack  # noqa: PLC0415

    after, ahead = (seq + 1).to_bytes(8, "big"), (seq + 1000).to_bytes(8, "big")
    claim = {
        "type": "BlockStored",
        "block_hashes": [b"x" * 32, -1, None],
        "parent_block_hash": {},
        "token_ids": [-1, 2**63, "a"],
        "block_size": 0,
    }
    return [
        [TOPIC],
        [TOPIC, b"short", payload],
        [TOPIC, after, b"\xc1"],  # not MessagePack
        [TOPIC, after, b"\x91" * 2000],  # nested too deeply
        [TOPIC, after, msgpack.packb([1.5, [claim, ["BlockRemoved"], 7], "rank"])],
        [TOPIC, ahead, payload],
        [TOPIC, END, b""],
        [TOPIC, bytes(8), payload],  # as if the engine had restarted
    ]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
