"""The file that names the engines is right as a whole, or is refused with the place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.engines_file import MAX_BYTES, InvalidFile, read
from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1, P0


def written(content: Any) -> bytes:
    """As a file."""
    return json.dumps(content).encode()


def test_it_names_engines_by_role() -> None:
    content = {
        "prefill": [P0.url],
        "decode": [
            {"url": "HTTP://D0:8000/", "identity": "uid", "draining": True},
            {"url": D1.url, "zone": "a"},
        ],
    }
    assert read(written(content)) == (Target(P0), Target(D0, "uid", True), Target(D1, zone="a"))
    e0 = Endpoint("http://e0", Role.ENCODE)
    assert read(written({"decode": [D0.url], "encode": [e0.url]})) == (Target(D0), Target(e0))


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert read(b"\xef\xbb\xbf" + written({"decode": [D0.url]})) == (Target(D0),)


def test_an_empty_fleet_must_be_explicit() -> None:
    assert read(written({"decode": []})) == ()
    with pytest.raises(InvalidFile, match="decode: is missing"):
        read(b"{}")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON: nested too deep"),
        (b"\xff", "not UTF-8"),
        (b" " * (MAX_BYTES + 1), "larger than"),
        (b"[]", "must be an object"),
        (b'{"decode": [], "decode": []}', "'decode' is given twice"),
        (b'{"decode": [], "decoder": []}', "'decoder': no such key"),
        (b'{"decode": "http://d0"}', "decode: must be a list"),
        (b'{"decode": [1]}', r"decode\[0\]: must be a URL or an object"),
        (b'{"decode": [{}]}', r"decode\[0\]: must be a URL or an object"),
        (b'{"decode": ["d0:8000"]}', r"decode\[0\]: 'd0:8000' must start with http"),
        (b'{"decode": [{"url": "http://d0", "weight": 1}]}', "'weight': no such key"),
        (b'{"decode": [{"url": "http://d0", "identity": 1}]}', "identity: must be a string"),
        (b'{"decode": [{"url": "http://d0", "zone": 1}]}', "zone: must be a string"),
        (
            b'{"decode": [{"url": "http://d0", "identity": "\\ud800"}]}',
            "identity: must be a string",
        ),
        (b'{"decode": [{"url": "http://d0", "draining": "no"}]}', "draining: must be true"),
        (b'{"decode": ["http://d0", "http://D0/"]}', r"decode\[1\]: http://d0 is given twice"),
        (b'{"prefill": ["http://d0"], "decode": ["http://d0"]}', "given twice"),
    ],
)
def test_a_mistake_is_reported_with_its_place(data: bytes, text: str) -> None:
    with pytest.raises(InvalidFile, match=text):
        read(data)


KEYS = st.sampled_from(["prefill", "decode", "encode", "url", "identity"])
CONTENTS = st.recursive(
    st.none() | st.text() | st.just("http://d0"),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(st.binary() | CONTENTS.map(written))
def test_whatever_it_holds_it_is_read_or_refused(data: bytes) -> None:
    try:
        found = read(data)
    except InvalidFile:
        return
    assert all(target.endpoint.url.startswith("http") for target in found)
