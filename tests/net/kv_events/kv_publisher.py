"""A publisher of KV-cache events whose every message a test controls."""

from collections.abc import Sequence
from typing import Any

import msgpack
import zmq

from router.net.kv_events.subscription import KVAddress

__all__ = ["SIZE", "TOPIC", "Publisher", "batch", "ids_of", "stored"]

SIZE = 16
TOPIC = b"kv@engine"
ANY = "tcp://127.0.0.1:*"
END = b"\xff" * 8


def ids_of(number: int, blocks: int = 1) -> list[int]:
    """Token ids that no other number gives."""
    return [1_000_000 * (number + 1) + place for place in range(SIZE * blocks)]


def stored(number: int, parent: int | None = None, blocks: int = 1) -> dict[str, Any]:
    """Blocks with hashes from `number` on."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(number, number + blocks)),
        "parent_block_hash": parent,
        "token_ids": ids_of(number, blocks),
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def batch(*events: dict[str, Any]) -> bytes:
    """A payload."""
    return bytes(msgpack.packb([1.5, list(events), 0]))


class Publisher:
    """PUB and ROUTER sockets, as of an engine; `remembered` is what it answers replays from."""

    def __init__(self, address: KVAddress | None = None) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.live, self.replay = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        for socket in (self.live, self.replay):
            socket.linger = 0
        address = address or KVAddress(ANY, ANY)
        self.live.bind(address.endpoint)
        self.replay.bind(address.replay_endpoint or ANY)
        self.remembered: list[tuple[int, bytes]] = []
        self.seq = 0
        self.asked: list[int] = []
        """The numbers from which replays were asked for."""
        self.has_topic = True
        """In replayed messages: from vLLM 0.26 on."""

    @property
    def address(self) -> KVAddress:
        """Where it is."""
        return KVAddress(
            self.live.getsockopt_string(zmq.LAST_ENDPOINT),
            self.replay.getsockopt_string(zmq.LAST_ENDPOINT),
            TOPIC.decode(),
        )

    def publish(self, *payloads: bytes, is_lost: bool = False) -> None:
        """Send batches, or only remember them."""
        for payload in payloads:
            seq, self.seq = self.seq, self.seq + 1
            self.remembered.append((seq, payload))
            if not is_lost:
                self.send(seq.to_bytes(8, "big"), payload)

    def send(self, *frames: bytes) -> None:
        """Send a message of these frames behind the topic."""
        self.live.send_multipart([TOPIC, *frames])

    def answer(self, *, leave_out: Sequence[int] = (), ends: bool = True) -> bool:
        """Answer the replay requests that have come. Returns whether one had."""
        had = False
        while self.replay.poll(0):
            client, _, start = self.replay.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            head = [client, b"", *([TOPIC] if self.has_topic else [])]
            for seq, payload in self.remembered:
                if seq >= self.asked[-1] and seq not in leave_out:
                    self.replay.send_multipart([*head, seq.to_bytes(8, "big"), payload])
            if ends:
                self.replay.send_multipart([*head[:2], *([b""] * self.has_topic), END, b""])
            had = True
        return had

    def close(self) -> None:
        """The engine has gone."""
        self.context.destroy(linger=0)
