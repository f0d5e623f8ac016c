"""The lines of a watch."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.discovery.api_server import (
    MAX_LINE_BYTES,
    Bookmark,
    Change,
    Lines,
    Refused,
    read_event,
)
from router.discovery.pods import MalformedObject
from tests.discovery.pods import pod, read


def line(kind: str, item: Any) -> bytes:
    """An event."""
    return json.dumps({"type": kind, "object": item}).encode()


@pytest.mark.parametrize(
    ("kind", "is_there"), [("ADDED", True), ("MODIFIED", True), ("DELETED", False)]
)
def test_a_change_has_its_pod(kind: str, is_there: bool) -> None:
    assert read_event(line(kind, pod())) == Change(read(), is_there)


def test_a_bookmark_has_its_version() -> None:
    bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "12746"}}
    assert read_event(line("BOOKMARK", bookmark)) == Bookmark(12746)


def test_an_error_has_its_status() -> None:
    """The answer of an API server without the requested version."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "too old resource version: 1 (7)",
        "reason": "Expired",
        "code": 410,
    }
    assert read_event(line("ERROR", status)) == Refused(410, "too old resource version: 1 (7)")
    assert read_event(line("ERROR", {})) == Refused(500, "")


@pytest.mark.parametrize(
    "wrong",
    [
        b"<html>",
        b"[]",
        b"{}",
        line("ADDED", None),
        line("ADDED", {"metadata": {"name": "x"}}),
        line("BOOKMARK", {"metadata": {}}),
        line("BOOKMARK", {"metadata": {"resourceVersion": "new"}}),
        line("ERROR", []),
        line("SYNC", pod()),
        b'{"type": [], "object": {}}',
    ],
)
def test_invalid_events_are_refused(wrong: bytes) -> None:
    with pytest.raises(MalformedObject):
        read_event(wrong)


@given(
    st.lists(st.binary().map(lambda each: each.replace(b"\n", b" ")), max_size=6),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_lines_are_the_same_however_they_are_cut(wanted: list[bytes], cuts: list[int]) -> None:
    data = b"".join(each + b"\n" for each in wanted) + b"an unfinished one"
    places = sorted({0, *cuts, len(data)} - set(range(len(data) + 1, 100)))
    lines = Lines()
    found = [
        each for start, end in itertools.pairwise(places) for each in lines.feed(data[start:end])
    ]
    assert found == [each for each in wanted if each.strip()]


def test_a_line_without_an_end_is_refused() -> None:
    lines = Lines()
    half = b"x" * (MAX_LINE_BYTES // 2)
    assert lines.feed(half) == lines.feed(half) == []
    with pytest.raises(MalformedObject, match="longer than"):
        lines.feed(half)
