"""Streams that go on with another engine, a few at a time."""

from router.core.continuation.move_queue import TOKENS_PER_ENGINE, MoveQueue
from router.core.values import DECODE
from tests.core.fixtures import D0, D1, P0
from tests.core.fleets import down, fleet_up

MOVES_PER_ENGINE = 4


class Stream:
    """A request that notes its turns. Its prompt is a quarter of what may move at a time."""

    def __init__(
        self,
        queue: MoveQueue,
        *,
        fails: bool = False,
        tokens: int = TOKENS_PER_ENGINE // MOVES_PER_ENGINE,
    ) -> None:
        self.prompt_tokens = tokens
        self._queue = queue
        self._fails = fails
        self.moves = 0

    def on_move(self) -> None:
        self.moves += 1
        if self._fails:
            self._queue.leave(self)


def queue_and_streams(number: int, *, fails: bool = False) -> tuple[MoveQueue, list[Stream]]:
    """One usable engine, and streams that are not in its queue yet."""
    queue = MoveQueue(fleet_up(P0, D0).pools[DECODE])
    return queue, [Stream(queue, fails=fails) for _ in range(number)]


def moves(streams: list[Stream]) -> list[int]:
    return [each.moves for each in streams]


def test_as_many_move_at_a_time_as_the_usable_engines_allow() -> None:
    fleet = fleet_up(D0, D1)
    queue = MoveQueue(fleet.pools[DECODE])
    streams = [Stream(queue) for _ in range(3 * MOVES_PER_ENGINE)]
    for each in streams:
        queue.enter(each, is_cut=True)
    assert sum(moves(streams)) == 2 * MOVES_PER_ENGINE
    down(fleet, D1)
    queue.leave(streams[0])
    assert sum(moves(streams)) == 2 * MOVES_PER_ENGINE
    for each in streams[1:]:
        queue.leave(each)
    assert moves(streams[:8]) == [1] * 8


def test_short_prompts_move_together_and_long_ones_one_for_each_engine() -> None:
    queue = MoveQueue(fleet_up(D0, D1).pools[DECODE])
    short = [Stream(queue, tokens=TOKENS_PER_ENGINE // 50) for _ in range(101)]
    for each in short:
        queue.enter(each, is_cut=True)
    assert sum(moves(short)) == 100
    for each in short:
        queue.leave(each)
    long = [Stream(queue, tokens=5 * TOKENS_PER_ENGINE) for _ in range(4)]
    for each in long:
        queue.enter(each, is_cut=True)
    assert moves(long) == [1, 1, 0, 0]


def test_the_next_one_moves_when_one_has_its_first_token() -> None:
    queue, streams = queue_and_streams(MOVES_PER_ENGINE + 2)
    for each in streams:
        queue.enter(each, is_cut=True)
    assert moves(streams) == [1] * MOVES_PER_ENGINE + [0, 0]
    queue.leave(streams[1])
    queue.leave(streams[1])
    assert moves(streams) == [1] * MOVES_PER_ENGINE + [1, 0]


def test_a_stream_without_an_engine_precedes_one_that_is_still_served() -> None:
    queue, streams = queue_and_streams(MOVES_PER_ENGINE + 3)
    *moving, whole, cut, broken_later = streams
    for each in (*moving, whole, broken_later):
        queue.enter(each, is_cut=False)
    queue.enter(cut, is_cut=True)
    queue.enter(broken_later, is_cut=True)
    order = []
    for each in moving[:3]:
        before = moves(streams)
        queue.leave(each)
        order += [s for s, n in zip(streams, before, strict=True) if s.moves > n]
    assert order == [cut, broken_later, whole]


def test_a_stream_that_ends_leaves_the_queue() -> None:
    queue, streams = queue_and_streams(MOVES_PER_ENGINE + 1)
    for each in streams:
        queue.enter(each, is_cut=False)
    queue.leave(streams[-1])
    queue.leave(streams[0])
    assert streams[-1].moves == 0


def test_a_stream_that_enters_again_while_it_moves_goes_on() -> None:
    queue, [stream] = queue_and_streams(1)
    queue.enter(stream, is_cut=False)
    queue.enter(stream, is_cut=True)
    assert stream.moves == 2


def test_without_a_usable_engine_each_gets_its_error_in_turn() -> None:
    fleet = fleet_up(D0)
    down(fleet, D0)
    queue = MoveQueue(fleet.pools[DECODE])
    streams = [Stream(queue, fails=True) for _ in range(2000)]
    blocking = Stream(queue, tokens=TOKENS_PER_ENGINE)
    queue.enter(blocking, is_cut=True)
    for each in streams:
        queue.enter(each, is_cut=True)
    assert moves(streams) == [0] * 2000
    queue.leave(blocking)
    assert moves(streams) == [1] * 2000
