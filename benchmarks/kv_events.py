"""`python -m benchmarks.kv_events [SECONDS]`: lag of the router's event loop while an engine
announces 10,000 KV-cache events a second, in messages of several shapes.

Each shape has its own router, with one simulated engine whose events this process publishes.
The lag of the loop is the router's own figure (pd_router_event_loop_lag_seconds), so others on the
machine are in it: run it on an idle one. The CPU time is that of the router's process.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any, Final

import msgpack
import orjson
import zmq

from benchmarks.overload.processes import cpu_seconds, metric, process, ready
from benchmarks.system import inside
from benchmarks.system.ports import free_port

EVENTS_PER_SECOND: Final = 10_000
BLOCK_SIZE: Final = 16
MESSAGES: Final = 500
"""That differ; then they are sent again."""

SECONDS: Final = 6.0
LIMIT: Final = 0.005
"""Seconds; an edge of the router's histogram."""

APPLIED: Final = "pd_router_kv_events_total"


@dataclass(frozen=True, slots=True)
class Shape:
    """What an engine sends."""

    events: int
    """In a message."""
    blocks: int
    """Of an event."""


SHAPES: Final = (Shape(1, 1), Shape(10, 8), Shape(100, 8), Shape(1_000, 1), Shape(1_000, 8))


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one shape."""

    longest: float
    """Seconds that the loop was late at most: the upper edge of the histogram's bucket."""
    late: float
    """How often it was late by more than LIMIT."""
    cpu: float
    """Share of a core."""
    missing: float
    """Events that had not been applied a second after the last one was sent."""


def messages(shape: Shape) -> Iterator[bytes]:
    """Payloads without end. Each block differs from the others of MESSAGES messages."""
    hashes, made = count(1 << 40), []
    for number in range(MESSAGES):
        events = []
        for place in range(shape.events):
            first = 7 * number + place
            ids = [(first + 31 * each) % 150_000 for each in range(BLOCK_SIZE * shape.blocks)]
            event = {
                "type": "BlockStored", "block_hashes": list(islice(hashes, shape.blocks)),
                "parent_block_hash": None, "token_ids": ids, "block_size": BLOCK_SIZE,
                "lora_id": None, "medium": "GPU", "lora_name": None,
            }  # fmt: skip
            events.append(event)
        made.append(msgpack.packb([time.time(), events, 0]))
    return cycle(made)


class Publisher:
    """A source of events."""

    def __init__(self, context: "zmq.Context[Any]", shape: Shape) -> None:
        self.shape = shape
        self._socket = context.socket(zmq.PUB)
        self._socket.sndhwm = 0
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._messages = messages(shape)
        self._numbers = count()

    def publish(self) -> None:
        """One message."""
        number = next(self._numbers).to_bytes(8, "big")
        self._socket.send_multipart([b"", number, next(self._messages)])

    def run(self, seconds: float) -> int:
        """So long at EVENTS_PER_SECOND; how many events that were."""
        began, sent = time.monotonic(), 0
        while sent < seconds * EVENTS_PER_SECOND:
            time.sleep(max(0.0, began + sent / EVENTS_PER_SECOND - time.monotonic()))
            self.publish()
            sent += self.shape.events
        return sent


def measure(shape: Shape, seconds: float) -> Result:
    """One router."""
    with ExitStack() as stack:
        publisher = Publisher(stack.enter_context(zmq.Context()), shape)
        engine, port = free_port(), free_port()
        url, router_url = f"http://127.0.0.1:{engine}", f"http://127.0.0.1:{port}"
        stack.enter_context(process("router.simulator", "--port", str(engine)))
        named = orjson.dumps({url: {"endpoint": publisher.address}}).decode()
        options = ("--decode", url, "--prefix-cache", "events", "--kv-events", named)
        serve = ("serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error")
        router = stack.enter_context(process("router", *serve, *options))
        ready(f"{router_url}/ready")
        while not metric(port, APPLIED):  # a subscription takes a moment to arrive
            publisher.publish()
            time.sleep(0.05)
        time.sleep(1.0)
        applied, used, began = metric(port, APPLIED), cpu_seconds(router.pid), time.monotonic()
        before = inside.look(router_url)
        sent = publisher.run(seconds)
        used, took = cpu_seconds(router.pid) - used, time.monotonic() - began
        time.sleep(1.0)
        missing = applied + sent - metric(port, APPLIED)
        longest, late = _lags(before, inside.look(router_url))
        return Result(longest, late, used / took, missing)


def _lags(before: inside.Lag | None, after: inside.Lag | None) -> tuple[float, float]:
    """The upper edge of the highest bucket that grew, and how many were beyond LIMIT."""
    if before is None or after is None:
        raise RuntimeError("the router does not tell its event loop's lag")
    counts = {edge: after.counts[edge] - before.counts[edge] for edge in after.counts}
    total = max(counts.values())
    return min(edge for edge in counts if counts[edge] >= total), total - counts[LIMIT]


def main() -> int:
    """The command line."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print(f"{EVENTS_PER_SECOND} events/s for {seconds:g} s, blocks of {BLOCK_SIZE} tokens")
    for shape in SHAPES:
        result = measure(shape, seconds)
        print(
            f"{shape.events:5d} events per message, {shape.blocks} blocks each: loop late by at "
            f"most {1e3 * result.longest:g} ms, {result.late:g} times over {1e3 * LIMIT:g} ms; "
            f"{result.cpu:.0%} of a core; {result.missing:g} events not applied",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
