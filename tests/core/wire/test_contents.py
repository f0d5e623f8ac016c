"""Contents of messages: the parts that are text of the prompt."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.contents import (
    TEXT_MEMBERS,
    TEXT_PARTS,
    beside_content,
    json_text,
    text_member,
    text_of,
    unbilled,
)


@pytest.mark.parametrize("kind", TEXT_PARTS)
def test_a_text_part_gives_its_text(kind: str) -> None:
    assert text_of({"type": kind, "text": "abc", "cache_control": {}}) == "abc"


def test_a_string_among_parts_is_a_part_of_text() -> None:
    assert text_of("abc") == "abc"


@pytest.mark.parametrize(
    "part",
    [None, 7, ["abc"], {}, {"type": "text"}, {"type": "text", "text": 7}, {"type": [], "text": ""}],
)
def test_events_without_text_are_no_text(part: object) -> None:
    assert text_of(part) is None


@pytest.mark.parametrize(("kind", "member"), TEXT_MEMBERS.items())
def test_calls_answers_and_thoughts_have_own_text_members(kind: str, member: str) -> None:
    assert text_member({"type": kind}) == member
    assert text_of({"type": kind, member: "abc"}) is None


@pytest.mark.parametrize("item", ["abc", None, {}, {"type": "image"}, {"type": ["tool_use"]}])
def test_nothing_else_has(item: object) -> None:
    assert text_member(item) is None


def test_json_is_text_unless_it_is_nested_too_deeply() -> None:
    assert json_text({"a": [1]}) == '{"a":[1]}'
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    assert json_text(deep) == ""


BILLED = "x-anthropic-billing-header: cch=0;"


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (BILLED, ""),
        (f"{BILLED}\nBe brief.\nRhyme.", "Be brief.\nRhyme."),
        ({"type": "text", "text": BILLED}, {"type": "text", "text": ""}),
        ({"type": "text", "text": f"{BILLED}\na", "x": 1}, {"type": "text", "text": "a", "x": 1}),
    ],
)
def test_a_system_prompt_is_shown_without_its_billing_header(part: object, shown: object) -> None:
    assert unbilled(part) == shown


@pytest.mark.parametrize(
    "part", ["", f" {BILLED}", None, [], 7, {}, {"type": "image", "text": BILLED}]
)
def test_text_without_that_beginning_is_unchanged(part: object) -> None:
    assert unbilled(part) is part


anything = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["function", "arguments"]), inner)
    ),
    max_leaves=9,
)
names = st.sampled_from(["type", "tool_calls", "reasoning", "input", "output"])


@given(st.dictionaries(names, anything))
def test_fields_beside_the_content_are_parsed(message: dict[str, Any]) -> None:
    assert isinstance(beside_content(message), list)
