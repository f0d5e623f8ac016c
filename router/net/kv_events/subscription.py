"""A subscription to one source of KV-cache events over ZeroMQ (vLLM's ZmqEventPublisher).

It has a SUB socket, and during a replay a DEALER socket. Its work is done in small steps, on the
subscriber's call.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from router.core.kv_events import (
    Apply,
    BadBatch,
    BlockIndex,
    Clear,
    KVSource,
    Step,
)

__all__ = ["KVAddress", "KVSubscription"]

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 4 << 20
"""Senders of larger messages are disconnected. A step of 64,000 prompt tokens takes 0.3 MB."""

LIVE_MESSAGES: Final = 4_096
REPLAYED_MESSAGES: Final = 20_000
"""Most unread messages of a replay. vLLM keeps 10,000, and up to 0.32 drops those that do not
fit."""

REPLAY_IDLE_SECONDS: Final = 3.0
"""Seconds without a message after which a replay is over. vLLM's publisher looks for requests ten
times a second, but only between the engine's steps."""

REPLAY_SECONDS: Final = 60.0
"""Time-out in seconds for a whole replay."""

SEQ_BYTES: Final = 8
END_OF_REPLAY: Final = b"\xff" * SEQ_BYTES


class KVAddress(NamedTuple):
    """The addresses at which a source publishes and, if it does, answers replay requests."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class Subscriber(Protocol):
    """What a subscription needs of `KVEventSubscriber`."""

    index: BlockIndex

    @property
    def zmq(self) -> Any:
        """The package zmq."""

    @property
    def monitor(self) -> Any:
        """The module zmq.utils.monitor."""

    @property
    def msgpack(self) -> Any:
        """The package msgpack."""

    @property
    def context(self) -> Any:
        """The ZeroMQ context."""

    def ready(self, subscription: "KVSubscription") -> None:
        """Schedule the subscription: it has work to do."""

    def may_replay(self, subscription: "KVSubscription", start: int) -> bool:
        """Whether a replay may be requested now. If not, `ask` is called later."""

    def replay_over(self, subscription: "KVSubscription") -> None:
        """The subscription's replay has ended."""


class KVSubscription:
    """The sockets of one source. Each call of `step` does a small piece of work."""

    def __init__(self, subscriber: Subscriber, address: KVAddress) -> None:
        """Raises ZMQError if no socket can be opened; nothing is left open then."""
        self.address = address
        self.is_ready = False
        self._subscriber = subscriber
        self._zmq = subscriber.zmq
        self._steps: deque[Step] = deque()
        self._batch: Iterator[None] | None = None
        """The batch that is being parsed and applied, a piece with each `next`."""
        self._replay: Any = None
        self._replay_ends = self._replay_idle = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._live = subscriber.context.socket(subscriber.zmq.SUB)
        try:
            self._monitor = self._prepare()
        except subscriber.zmq.ZMQError:
            self._live.close(linger=0)
            raise
        # After the sockets, which may fail: it takes a bit of the index.
        self.source = KVSource(
            subscriber.index, address.endpoint, can_replay=address.replay_endpoint is not None
        )
        self._listen(self._live)
        self._listen(self._monitor)
        try:
            self._live.connect(address.endpoint)
        except subscriber.zmq.ZMQError as error:
            self.source.error = f"{address.endpoint}: {error}"
            log.warning("KV-cache events: cannot connect to %s: %s", address.endpoint, error)

    def _prepare(self) -> Any:
        """Set the options of the live socket. Returns the socket of its monitor."""
        live, zmq = self._live, self._zmq
        live.linger = 0
        live.rcvhwm = LIVE_MESSAGES
        live.maxmsgsize = MAX_MESSAGE_BYTES
        live.ipv6 = True
        live.subscribe(self.address.topic)
        # Detects connections that ended without a FIN: the host is gone, or a firewall dropped its
        # state.
        live.tcp_keepalive = 1
        live.tcp_keepalive_idle = 30
        return live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)

    def close(self) -> None:
        """Close all sockets."""
        self._end_replay()
        self._unlisten(self._monitor)
        self._unlisten(self._live)
        self._live.disable_monitor()
        self._monitor.close(linger=0)
        self._live.close(linger=0)
        self._steps.clear()
        self._batch = None

    def discard(self) -> None:
        """Close the sockets and the source, which no engine has been given."""
        self.close()
        self.source.close()

    def _listen(self, socket: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(socket.fileno(), self._subscriber.ready, self)
        # The descriptor does not signal what came before.
        self._subscriber.ready(self)

    def _unlisten(self, socket: Any) -> None:
        asyncio.get_running_loop().remove_reader(socket.fileno())

    # Steps.

    def step(self) -> bool:
        """Process a piece of a batch, a step or a message. Returns False if there is nothing to do.

        ZeroMQ's descriptors signal again only after all messages have been read.
        """
        if self._live.closed:
            return False
        if self._batch is not None:
            self._go_on(self._batch)
        elif self._steps:
            self._take(self._steps.popleft())
        else:
            return self._read_monitor() or self._read_live() or self._read_replay()
        return True

    def _go_on(self, batch: Iterator[None]) -> None:
        try:
            next(batch)
        except StopIteration:
            self._batch = self.source.error = None
        except (BadBatch, RecursionError) as error:
            self._misunderstood(str(error))

    def _take(self, step: Step) -> None:
        if isinstance(step, Apply):
            self.source.batches += 1
            self._batch = self.source.pieces(self._subscriber.msgpack, step.payload)
        elif isinstance(step, Clear):
            self.source.blocks.clear()
        else:
            self._drop_replay()
            if self._subscriber.may_replay(self, step.start):
                self.ask(step.start)

    def _misunderstood(self, error: str) -> None:
        """Handle a message that could not be parsed. It may have announced a removal, so all known
        blocks are dropped."""
        source = self.source
        source.unreadable += 1
        source.blocks.clear()
        source.stream.unreadable()
        self._batch = None
        if source.error is None:
            log.warning("KV-cache events of %s cannot be read: %s", source.endpoint, error)
        source.error = error

    # Messages.

    def _read_monitor(self) -> bool:
        frames = self._received(self._monitor)
        if frames is None:
            return False
        event = self._subscriber.monitor.parse_monitor_message(frames)["event"]
        source = self.source
        source.is_connected = event == self._zmq.EVENT_HANDSHAKE_SUCCEEDED
        if source.is_connected:
            self._end_replay()
            self._steps.extend(source.stream.connected())
        return True

    def _read_live(self) -> bool:
        frames = self._received(self._live)
        if frames is None:
            return False
        if len(frames) == 3 and len(frames[1]) == SEQ_BYTES:
            self._enqueue(self.source.stream.live(_number(frames[1]), frames[2]))
        else:
            self._misunderstood("a message is not topic, number and batch")
        return True

    def _read_replay(self) -> bool:
        frames = None if self._replay is None else self._received(self._replay)
        if frames is None:
            return False
        # vLLM up to 0.25 sends ["", number, batch], from 0.26 on ["", topic, number, batch].
        if len(frames) not in (3, 4) or len(frames[-2]) != SEQ_BYTES:
            self._misunderstood("a replayed message is not number and batch")
        elif frames[-2] == END_OF_REPLAY:
            self._replay_over(is_complete=True)
        else:
            self._replay_idle = time.monotonic() + REPLAY_IDLE_SECONDS
            self._enqueue(self.source.stream.replayed(_number(frames[-2]), frames[-1]))
        return True

    def _enqueue(self, steps: list[Step]) -> None:
        self._steps.extend(steps)
        if not self.source.stream.is_replaying:  # as when too many live batches waited for it
            self._end_replay()

    def _received(self, socket: Any) -> list[bytes] | None:
        try:
            frames: list[bytes] = socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return None
        return frames

    # Replays.

    def ask(self, start: int) -> None:
        """Request a replay of the batches from number `start` on."""
        zmq, loop = self._zmq, asyncio.get_running_loop()
        try:  # there may be no descriptor left for the socket
            self._replay = self._subscriber.context.socket(zmq.DEALER)
            self._replay.linger = 0
            self._replay.rcvhwm = REPLAYED_MESSAGES
            self._replay.maxmsgsize = MAX_MESSAGE_BYTES
            self._replay.ipv6 = True
            self._replay.connect(self.address.replay_endpoint)
            self._replay.send_multipart([b"", start.to_bytes(SEQ_BYTES, "big")], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.warning("KV-cache events: no replay at %s: %s", self.address, error)
            self._replay_over(is_complete=False)
            return
        now = time.monotonic()
        self._replay_ends = now + REPLAY_SECONDS
        self._replay_idle = now + REPLAY_IDLE_SECONDS
        self._timer = loop.call_later(REPLAY_IDLE_SECONDS, self._check_replay)
        self._listen(self._replay)

    def _check_replay(self) -> None:
        due = min(self._replay_idle, self._replay_ends)
        left = due - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._check_replay)
        else:
            self._timer = None
            self._replay_over(is_complete=False)

    def _replay_over(self, *, is_complete: bool) -> None:
        self._end_replay()
        self._steps.extend(self.source.stream.replay_ended(is_complete=is_complete))
        self._subscriber.ready(self)

    def _end_replay(self) -> None:
        self._drop_replay()
        self._subscriber.replay_over(self)

    def _drop_replay(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._replay is not None:
            self._unlisten(self._replay)
            self._replay.close(linger=0)
            self._replay = None


def _number(frame: bytes) -> int:
    return int.from_bytes(frame, "big")
