"""Traces in Mooncake's format."""

import pytest

from router.simulator.virtual.loads.mooncake import TraceError, sessions

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
