"""Parses a message of KV-cache events incrementally: the work between two events, and between two
pieces of a long one, is bounded, so that a message of megabytes does not block the event loop.

Nearly all messages and events are short and unpacked whole. In longer ones, lists are read as far
as bytes have been fed to msgpack, token ids are read into an array, and unknown members are
skipped.
"""

from array import array
from collections.abc import Generator, Iterator
from itertools import chain, islice, repeat
from typing import Any, Final, TypeVar

from router.core.kv_events.parsing import FIELDS, MAX_BLOCKS, BadBatch, extra_keys_of

__all__ = ["read_batch"]

FEED_BYTES: Final = 4_096
"""Bytes that are fed to msgpack at a time. The worst case, 4,096 empty lists, takes 0.25 ms."""

SHORT_BYTES: Final = 8_192
"""A message or event of fewer bytes (about 1,500 tokens) is unpacked whole. A single value may not
be longer than this."""

KNOWN: Final = frozenset({"type", *chain.from_iterable(FIELDS.values())})
"""Names of the members of events that are used."""

LISTS: Final = frozenset({"block_hashes", "token_ids", "extra_keys"})

ARRAYS: Final = (b"\xdc", b"\xdd")
"""First bytes of msgpack arrays with more than 15 values."""

NO_EVENTS: Final = "it holds no list of events"

Values = TypeVar("Values", list[Any], "array[int]")


def read_batch(msgpack: Any, payload: bytes) -> Iterator[object]:
    """Yields the events of a message, for `read_event`, and None after each piece of work on a long
    one.

    A batch is an array [time, events, rank] or a map. Raises BadBatch, possibly after some events;
    data after the events are ignored.
    """
    try:
        if len(payload) <= SHORT_BYTES:  # saves the 7 us for a reader, for nearly all messages
            yield from _events_of(msgpack.unpackb(payload))
        else:
            yield from _Reader(msgpack, payload).batch()
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        if isinstance(error, BadBatch):
            raise
        raise BadBatch(f"no msgpack: {type(error).__name__}") from None


def _events_of(batch: object) -> Iterator[object]:
    events: object = None
    if isinstance(batch, dict):
        events = batch.get("events")
    elif isinstance(batch, list) and len(batch) > 1:
        events = batch[1]
    if not isinstance(events, list):
        raise BadBatch(NO_EVENTS)
    return ([] if event is None else event for event in events)


class _TooLong(BadBatch):
    """A value is longer than SHORT_BYTES."""


class _Reader:
    """Reads one message. The generators yield None after each piece of work."""

    def __init__(self, msgpack: Any, payload: bytes) -> None:
        self._msgpack = msgpack
        self._payload = payload
        self._begin(0)

    def _begin(self, at: int) -> None:
        """Continue at this offset of the payload."""
        # A list of n values is allocated when its head is read; these limits bound the allocation.
        self._unpacker = self._msgpack.Unpacker(
            max_buffer_size=8 * FEED_BYTES,
            max_array_len=2 * SHORT_BYTES,
            max_map_len=SHORT_BYTES,
        )
        self._start = self._fed = at

    @property
    def _at(self) -> int:
        """The current offset in the payload. Valid only between two values."""
        return self._start + int(self._unpacker.tell())

    def _feed(self) -> None:
        piece = self._payload[self._fed : self._fed + FEED_BYTES]
        if not piece:
            raise BadBatch("no msgpack: it ends in the middle")
        self._unpacker.feed(piece)
        self._fed += len(piece)

    def batch(self) -> Generator[object, None, None]:
        """Yields all events."""
        if self._is_array():
            has_events = self._head() > 1
            if has_events:
                yield from self._skip()
        else:
            has_events = yield from self._find_events()
        if not has_events or not self._is_array():
            raise BadBatch(NO_EVENTS)
        for _ in range(self._head()):
            start = self._at
            try:
                event = self._value()
            except ValueError:  # too long or invalid: read it again, in pieces
                self._begin(start)
                yield None
                event = yield from self._long_event()
            yield [] if event is None else event

    def _find_events(self) -> Generator[None, None, bool]:
        """Skip to the member `events` of a map. Returns whether there is one."""
        for _ in range(self._head()):
            if self._value() == "events":
                return True
            yield from self._skip()
        return False

    def _long_event(self) -> Generator[None, None, object]:
        """Unpack an event in pieces, without its unknown members."""
        fields: dict[str, object] = {}
        is_array, count = self._is_array(), self._head()
        names: Iterator[str] = (self._text() for _ in range(count))
        if is_array:
            fields["type"] = kind = next(names)
            names = islice(chain(FIELDS.get(kind, ()), repeat("")), count - 1)
        for name in names:
            if name in KNOWN:
                fields[name] = yield from self._member(name)
            else:
                yield from self._skip()
        return list(fields.values()) if is_array else fields

    def _member(self, name: str) -> Generator[None, None, object]:
        """Read the value of a member. Lists are read in pieces."""
        if name not in LISTS or not self._is_array():
            return self._value()
        if name == "token_ids":
            return (yield from self._fill(array("I"), self._unpacker, self._head()))
        count = self._head()
        if count > MAX_BLOCKS:
            raise BadBatch(f"an event has more than {MAX_BLOCKS} blocks")
        if name == "extra_keys":
            return (yield from self._fill([], map(extra_keys_of, self._unpacker), count))
        return (yield from self._fill([], self._unpacker, count))

    def _fill(
        self, values: Values, source: Iterator[Any], count: int
    ) -> Generator[None, None, Values]:
        """Append `count` values. The source ends where the fed bytes do, and continues once more
        are fed."""
        idle = 0
        while True:
            before = len(values)
            values.extend(islice(source, count - before))
            if len(values) == count:
                return values
            idle = idle + 1 if len(values) == before else 0
            if idle * FEED_BYTES > SHORT_BYTES:
                raise _TooLong("a value is too long")
            self._feed()
            yield

    def _skip(self) -> Generator[None, None, None]:
        """Skip a value of any length."""
        while True:
            try:
                self._unpacker.skip()
            except self._msgpack.OutOfData:
                self._feed()
                yield
            else:
                return

    def _value(self) -> object:
        """Read the next value. Raises _TooLong."""
        start = self._at
        while True:
            try:
                return self._unpacker.unpack()
            except self._msgpack.OutOfData:
                if self._fed - start > SHORT_BYTES:
                    raise _TooLong("a value is too long") from None
                self._feed()

    def _text(self) -> str:
        value = self._value()
        if isinstance(value, str):
            return value
        raise BadBatch("a name is no text")

    def _head(self) -> int:
        """Read the head of an array or map. Returns its number of values or members."""
        unpacker = self._unpacker
        read = unpacker.read_array_header if self._is_array() else unpacker.read_map_header
        while True:
            try:
                return int(read())
            except self._msgpack.OutOfData:
                self._feed()

    def _is_array(self) -> bool:
        """Whether the next value is an array, by its first byte."""
        first = self._payload[self._at : self._at + 1]
        return b"\x90" <= first <= b"\x9f" or first in ARRAYS
