"""Lines between replicas arrive whole, and are validated."""

import struct
from base64 import b64encode

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.events import PrefixesHeld
from router.core.replicas.peer_messages import (
    HISTORY_KEYS,
    MAX_ENGINES,
    MAX_LINE_BYTES,
    MAX_PROMPT_KEYS,
    SENT_BYTES,
    PeerHistory,
    PeerReport,
    decode_message,
    encode_history,
    encode_report,
)
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1


@given(
    st.dictionaries(
        st.builds(Endpoint, st.text(max_size=40), st.sampled_from(Role)),
        st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    ),
    st.integers(0, (1 << 63) - 1),
)
def test_a_report_comes_across_whole(loads: dict[Endpoint, tuple[int, int]], number: int) -> None:
    told = PeerReport("r", number, loads)
    assert decode_message(encode_report(told)) == told


def test_the_busiest_of_too_many_engines_are_reported() -> None:
    loads = {Endpoint(f"http://{n:050d}:8000", Role.DECODE): (n, 0) for n in range(1, 1100)}
    data = encode_report(PeerReport("r", 1, loads))
    assert len(data) <= SENT_BYTES
    report = decode_message(data)
    assert isinstance(report, PeerReport)
    told = report.loads
    assert 400 < len(told) < len(loads)
    assert min(requests for requests, _ in told.values()) == 1100 - len(told)


@given(st.binary() | st.sampled_from([b"[]", b"1", b"null", b'"x"']))
def test_invalid_reports_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is|must"):
        decode_message(data)


WRONG: dict[str, list[object]] = {
    "replica": [None, "", "x" * 65, 3],
    "number": [None, -1, True, 1.5, "1", 1 << 63],
    "engines": [
        None,
        [],
        {"d0": [1, 2]},
        {"decode http://d0": [1]},
        {"decode http://d0": {"requests": 1}},
        {"decode http://d0": [-1, 0]},
        {"decode http://d0": [1, "0"]},
        {f"decode http://d{n}": [1, 0] for n in range(MAX_ENGINES + 1)},
    ],
}


@pytest.mark.parametrize(
    ("member", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_report_with_a_mistake_is_refused(member: str, value: object) -> None:
    good = {"replica": "r", "number": 1, "engines": {"decode http://d0": [1, 0]}}
    loads = {Endpoint("http://d0", Role.DECODE): (1, 0)}
    assert decode_message(orjson.dumps(good)) == PeerReport("r", 1, loads)
    with pytest.raises(ValueError, match="must"):
        decode_message(orjson.dumps({**good, member: value}))


# Prompts.

KEYS = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def prompts(draw: st.DrawFn) -> PrefixKeys:
    """A prompt of chunks of up to 128 tokens; some have none, as messages of a letter."""
    steps = draw(st.lists(st.integers(0, 128), min_size=1, max_size=20))
    ends = tuple(sum(steps[: place + 1]) for place in range(len(steps)))
    return PrefixKeys(tuple(draw(KEYS) for _ in steps), ends)


def prompt(first: int, chunks: int) -> PrefixKeys:
    """A prompt of so many whole chunks, whose keys begin with a number."""
    keys = tuple(range(first, first + chunks))
    return PrefixKeys(keys, tuple(range(128, 128 * chunks + 1, 128)))


def told(*news: PrefixesHeld) -> list[PrefixesHeld]:
    """What comes across."""
    held: list[PrefixesHeld] = []
    for line in encode_history("r", "s", news):
        assert len(line) <= MAX_LINE_BYTES
        history = decode_message(line)
        assert isinstance(history, PeerHistory)
        assert (history.replica, history.scheme) == ("r", "s")
        held += history.held
    return held


@given(st.dictionaries(st.sampled_from([D0, D1]), st.lists(prompts(), min_size=1, max_size=9)))
def test_prompts_come_across_whole(held: dict[Endpoint, list[PrefixKeys]]) -> None:
    news = [PrefixesHeld(endpoint, tuple(some)) for endpoint, some in held.items()]
    assert told(*news) == news


def test_many_prompts_take_several_lines() -> None:
    some = tuple(prompt(1000 * number, 500) for number in range(12))
    news = PrefixesHeld(D0, some)
    assert len(encode_history("r", "s", [news])) == 2
    assert [each for held in told(news) for each in held.prefixes] == list(some)


def test_the_latest_prompts_of_each_engine_are_reported_if_there_are_too_many() -> None:
    some = tuple(prompt(1000 * number, 500) for number in range(50))
    by_engine: dict[Endpoint, list[PrefixKeys]] = {D0: [], D1: []}
    for held in told(PrefixesHeld(D0, some), PrefixesHeld(D1, some)):
        by_engine[held.endpoint] += held.prefixes
    due = HISTORY_KEYS // 500 // 2
    assert by_engine == {D0: list(some[-due:]), D1: list(some[-due:])}


def test_a_long_prompt_is_reported_by_its_beginning() -> None:
    (held,) = told(PrefixesHeld(D0, (prompt(0, MAX_PROMPT_KEYS + 5),)))
    assert held.prefixes == (prompt(0, MAX_PROMPT_KEYS),)


def test_without_news_no_report_is_sent() -> None:
    assert encode_history("r", "s", []) == encode_history("r", "s", [PrefixesHeld(D0, ())]) == []


def packed(keys: int, *ends: int) -> str:
    """A prompt as it is written, with so many keys."""
    return b64encode(struct.pack(f"<{keys}q{len(ends)}I", *range(keys), *ends)).decode()


WRONG_HISTORIES: dict[str, list[object]] = {
    "replica": [None, "", 3],
    "keys": [None, "", 3, "x" * 65],
    "held": [
        None,
        [],
        {"d0": []},
        {"decode http://d0": packed(1, 128)},
        {"decode http://d0": [7]},
        {"decode http://d0": ["?"]},
        {"decode http://d0": ["AAA"]},
        {"decode http://d0": [packed(0)]},
        {"decode http://d0": [packed(2, 128)]},
        {"decode http://d0": [packed(1, 129)]},
        {"decode http://d0": [packed(2, 128, 127)]},
        {"decode http://d0": [packed(MAX_PROMPT_KEYS + 1, *range(MAX_PROMPT_KEYS + 1))]},
    ],
}


@pytest.mark.parametrize(
    ("member", "value"),
    [(name, value) for name, values in WRONG_HISTORIES.items() for value in values],
)
def test_a_history_with_a_mistake_is_refused(member: str, value: object) -> None:
    good = {"replica": "r", "keys": "s", "held": {"decode http://d0": [packed(2, 128, 200)]}}
    held = PrefixesHeld(Endpoint("http://d0", Role.DECODE), (PrefixKeys((0, 1), (128, 200)),))
    assert decode_message(orjson.dumps(good)) == PeerHistory("r", "s", (held,))
    with pytest.raises(ValueError, match=r"must|base64|padding|Only"):
        decode_message(orjson.dumps({**good, member: value}))
