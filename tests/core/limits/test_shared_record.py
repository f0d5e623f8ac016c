"""One process writes, others read: what they read is always what was written as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.limits.shared_record import HEAD, SharedRecord


def memory(capacity: int = 64) -> memoryview:
    """Room for two texts of so many bytes."""
    return memoryview(bytearray(HEAD + 2 * capacity))


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_a_reader_finds_what_was_written_last(texts: list[bytes]) -> None:
    shared = memory()
    writer, reader = SharedRecord(shared), SharedRecord(shared)
    assert reader.read() == (0, b"")
    for number, text in enumerate(texts, 1):
        writer.write(text)
        assert (reader.version, reader.read()) == (number, (number, text))


def test_what_is_too_large_is_refused_and_changes_nothing() -> None:
    shared = SharedRecord(memory(8))
    shared.write(b"a")
    with pytest.raises(ValueError, match="room for 8"):
        shared.write(b"a" * 9)
    assert shared.read() == (1, b"a")


def test_a_writer_that_is_killed_before_the_end_leaves_the_version_before() -> None:
    shared = SharedRecord(memory())
    shared.write(b"whole")
    shared._buffers[0][:4] = b"half"
    assert shared.read() == (1, b"whole")


def test_a_reader_that_sees_the_version_before_the_text_reads_nothing() -> None:
    """Processors may show writes in another order; the checksum tells."""
    shared = SharedRecord(memory())
    shared.write(b"one")
    shared._numbers[0] = 2
    shared._numbers[1] = 3
    assert shared.read() is None
