"""Texts that grow and branch, traces in Mooncake's format, and synthetic ones like them."""

from itertools import count
from random import Random

import pytest

from router.simulator.virtual.scenarios.traces import (
    CONVERSATION,
    SYNTHETIC,
    TRACE_BLOCK_SIZE,
    Statistics,
    Text,
    TraceError,
    conversations,
    sessions,
)
from router.simulator.virtual.values import Session, Turn


def test_a_text_names_its_full_blocks():
    text = Text(count(), 16, 40)
    assert (text.tokens, [*text.contents]) == (40, [0, 1])
    text.grow(7)
    assert [*text.contents] == [0, 1]
    text.grow(1)
    assert text.contents == (0, 1, 2)


def test_branches_have_whole_blocks_in_common_and_nothing_else():
    text = Text(count(), 16, 40)
    one, other = text.branch(8), text.branch(24)
    assert (one.contents, other.contents) == ((0, 1, 2), (0, 1, 3, 4))
    assert text.contents == (0, 1)


def test_a_turn_appends_the_answer_to_the_conversation():
    text = Text(count(), 16, 40)
    assert text.turn(10, pause=2.0) == Turn(40, 10, (0, 1, 2), 2.0)
    assert text.tokens == 50


LINE = b'{"timestamp": 3000, "input_length": 1300, "output_length": 0, "hash_ids": [7, 8, 9]}'


def test_a_line_is_a_request_at_its_time_with_its_full_blocks():
    (session,) = sessions([LINE])
    (turn,) = session.turns
    assert (session.at, turn.prompt, turn.output) == (3.0, 1300, 1)
    assert turn.contents == (7, 8)  # the third has 276 of 512 tokens


def test_times_may_be_scaled_and_lines_limited():
    (session,) = sessions([LINE, b"not read"], time_scale=0.5, limit=1)
    assert session.at == 1.5


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", LINE.replace(b"1300", b"0"), LINE.replace(b"7", b'"x"')]
)
def test_a_line_that_is_no_request_is_named(line):
    with pytest.raises(TraceError, match="line 2: "):
        list(sessions([LINE, line]))


def reusable(sessions: list[Session]) -> float:
    """The share of prompt blocks that an endless cache would have."""
    seen: set[int] = set()
    found = blocks = 0
    for session in sessions:
        (turn,) = session.turns
        contents = turn.contents[: turn.prompt // TRACE_BLOCK_SIZE]
        blocks += len(contents)
        found += sum(content in seen for content in contents)
        seen.update(contents)
    return found / blocks


@pytest.mark.parametrize(
    ("statistics", "requests", "share", "prompts"),
    [
        (CONVERSATION, 12_031, 0.366, (6909, 27_367, 85_401)),
        (SYNTHETIC, 3993, 0.64, (11_587, 38_615, 66_458)),
    ],
    ids=["conversation", "synthetic"],
)
def test_blocks_are_reused_and_prompts_are_long_as_in_the_trace(
    statistics: Statistics, requests: int, share: float, prompts: tuple[int, ...]
) -> None:
    sessions = conversations(Random(1), statistics, requests)
    lengths = sorted(session.turns[0].prompt for session in sessions)
    assert len(sessions) == requests
    assert reusable(sessions) == pytest.approx(share, abs=0.02)
    for part, tokens in zip((0.5, 0.9, 0.99), prompts, strict=True):
        assert lengths[int(part * requests)] == pytest.approx(tokens, rel=0.2)


def test_all_prompts_of_conversation_begin_with_one_block_and_come_every_three_seconds():
    sessions = conversations(Random(2), CONVERSATION, 300)
    firsts = {s.turns[0].contents[0] for s in sessions if s.turns[0].prompt >= TRACE_BLOCK_SIZE}
    assert firsts == {0}
    assert {session.at % 3 for session in sessions} == {0.0}
    assert [s.at for s in sessions] == sorted(s.at for s in sessions)


def test_those_of_synthetic_do_neither():
    sessions = conversations(Random(2), SYNTHETIC, 300)
    assert len({s.turns[0].contents[0] for s in sessions if s.turns[0].contents}) > 50
    assert len({session.at for session in sessions}) == 300
