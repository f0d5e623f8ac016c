"""A member's value by its bytes, compared with the json module."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.wire.jsonspan import (
    MAX_CONTAINERS,
    MAX_VALUES,
    engine_json,
    member,
    redact,
    value_end,
    with_member,
)
from tests.core.fixtures import sample
from tests.core.json_texts import (
    Pair,
    gaps,
    objects,
    pairs,
    scalars,
    spaces,
    strings,
    values,
    write_object,
)

DEEP = b'{"a":' * 300 + b"1" + b"}" * 300


def last(members: list[Pair], name: str) -> str | None:
    """The text of the last member of that name."""
    return next((value for key, value in reversed(members) if json.loads(key) == name), None)


@given(pairs, gaps, spaces, spaces, st.data())
def test_a_members_bytes_are_those_that_were_written(
    members: list[Pair], between: list[str], before: str, behind: str, data: st.DataObject
) -> None:
    document = (before + write_object(members, between) + behind).encode()
    names = [json.loads(key) for key, _ in members]
    name = data.draw(st.sampled_from([*names, "absent"]))
    expected = last(members, name)
    assert member(document, name) == (None if expected is None else expected.encode())


@given(objects, st.sampled_from(["a", "b", "model", "n", "", "é"]))
def test_a_member_is_the_one_that_json_reads(text: str, name: str) -> None:
    found = member(text.encode(), name)
    document = json.loads(text)
    if found is None:
        assert name not in document
    else:
        assert json.loads(found) == document[name]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b'{"k":1}', b"1"),
        (b'{"k":1.50}', b"1.50"),
        (b'{"k":123456789012345678901234567890}', b"123456789012345678901234567890"),
        (b'{"k":{ "a" : [1 ,2] }}', b'{ "a" : [1 ,2] }'),
        # Objects that orjson would write in other bytes, or not at all.
        (b'{"k":{"a":18446744073709551616}}', b'{"a":18446744073709551616}'),
        (b'{"k":{"a":1,"a":1},"b":{}}', b'{"a":1,"a":1}'),
        (b'{"k":%b}' % DEEP, DEEP),
        (b'{"k":"\\u00e9"}', b'"\\u00e9"'),
        ('{"k":"é"}'.encode(), '"é"'.encode()),
        (b'{"k":1,"k":2}', b"2"),
        (b'{"\\u006b":1}', b"1"),
        (b'{"a":{"k":1}}', None),
        (b'{"a":"\\"k\\":1"}', None),
        (b"{}", None),
        (b'{"k":null}', b"null"),
        (b'\t{ "k" :\r\n-0 }\n', b"-0"),
    ],
)
def test_a_member_is_found_at_the_top_level_only(document: bytes, expected: bytes | None) -> None:
    assert member(document, "k") == expected


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"  ",
        b"[1]",
        b"1",
        b'"k"',
        b"{",
        b'{"k"',
        b'{"k":',
        b'{"k":1',
        b'{"k":1,',
        b'{"k":1,}',
        b'{,"k":1}',
        b'{"k" 1}',
        b'{"k":1 "a":2}',
        b'{"k":}',
        b'{"k":tru}',
        b'{"k":1}}',
        b'{"k":1} x',
        b"{k:1}",
        b'["k":1}',
        b"{'k\":1}",
        b'{"k"=1}',
        b'{"k":1;"a":2}',
        b'{"k',
        b'{"k":"\n"}',
        b'{"k\n":1}',
        b'{"k":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"k":' + b"[" * 100_000,
    ],
)
def test_json_other_than_objects_is_a_value_error(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        member(document, "k")


@given(st.binary(max_size=30) | objects.map(lambda text: text.encode()[:-1]))
def test_any_bytes_have_a_member_or_not_or_are_a_value_error(document: bytes) -> None:
    try:
        found = member(document, "a")
    except ValueError:
        return
    assert json.loads(document).get("a", ...) == (... if found is None else json.loads(found))


@given(pairs, gaps, spaces, values)
def test_an_added_member_leaves_the_others_byte_for_byte(
    members: list[Pair], between: list[str], behind: str, value: str
) -> None:
    document = (write_object(members, between) + behind).encode()
    added = with_member(document, "added", value.encode())
    assert added.startswith(document.rstrip()[:-1])
    assert json.loads(added) == {**json.loads(document), "added": json.loads(value)}
    assert member(added, "added") == value.encode()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"{}", b'{"k":1}'),
        (b" { } \n", b' { "k":1}'),
        (b'{"a":2}', b'{"a":2,"k":1}'),
        (b'{"a":{}}', b'{"a":{},"k":1}'),
        (b'{"a":"{"}', b'{"a":"{","k":1}'),
        (b'{"a":2\n}', b'{"a":2\n,"k":1}'),
    ],
)
def test_a_member_is_added_at_the_end(document: bytes, expected: bytes) -> None:
    assert with_member(document, "k", b"1") == expected


@given(spaces, values, st.sampled_from([",", "}", "]", " ", "\n", ""]), st.text(max_size=5))
def test_a_value_ends_where_it_was_written_to_end(
    before: str, value: str, stop: str, rest: str
) -> None:
    start, text = before.encode(), value.encode()
    document = start + text + (stop + rest if stop else "").encode()
    assert value_end(document, len(start)) == len(start) + len(text)


@pytest.mark.parametrize(
    "value",
    [b'","', b'"}"', b'"]"', b'" "', b'"\\""', b'"["', b'"{"', b'["]"]', b'{"}":"]"}', b"[[]]"],
)
def test_brackets_in_strings_end_no_value(value: bytes) -> None:
    assert value_end(b'{"k":' + value + b',"a":1}', 5) == 5 + len(value)


@pytest.mark.parametrize(
    "cut", [b"", b"12", b"tru", b'"', b'"abc', b'"\\"', b"[", b"[1,[2]", b'{"a":', b'{"a":"}']
)
def test_a_value_that_is_cut_off_reaches_to_the_end(cut: bytes) -> None:
    assert value_end(cut, 0) == len(cut)


@pytest.mark.parametrize("piece", [b'"\\', b'\\"', b'"', b"[", b'["', b"x"])
def test_a_large_value_that_is_cut_off_is_read_once(piece: bytes) -> None:
    # Reading it once for each quote in it would take longer than any test may.
    cut = b'["' + piece * 300_000
    assert 0 < value_end(cut, 0) <= len(cut)


@pytest.mark.parametrize("name", ["prefill_chat.json", "prefill_completions.json"])
def test_a_recorded_reference_is_found(name: str) -> None:
    document = sample(name)
    found = member(document, "kv_transfer_params")
    assert found is not None
    assert b'"kv_transfer_params":%b,"ec_transfer_params":null' % found in document
    assert json.loads(found)["remote_host"] == "127.0.0.1"


# Documents of engines that would hold up the event loop.


@pytest.mark.parametrize(
    "document",
    [
        b'{"k":[' + b"{}," * MAX_CONTAINERS + b"{}]}",
        b'{"k":[' + b"[]," * MAX_CONTAINERS + b"[]]}",
        b'{"k":[1' + b",1" * (MAX_VALUES + 1) + b"]}",
    ],
    ids=["objects", "arrays", "numbers"],
)
def test_a_document_that_takes_too_long_is_not_read(document: bytes) -> None:
    with pytest.raises(ValueError, match="too many values"):
        engine_json(document)
    with pytest.raises(ValueError, match="too many values"):
        member(document, "k")


def test_the_ids_of_a_prompt_of_a_million_tokens_are_read() -> None:
    ids = b"[" + b"1," * 999_999 + b"1]"
    assert len(engine_json(ids)) == 1_000_000
    assert member(b'{"k":%b}' % ids, "k") == ids


@pytest.mark.parametrize("document", [b"", b"{", b"\xff", b"NaN"])
def test_invalid_json_is_a_value_error(document: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        engine_json(document)


@pytest.mark.parametrize("value", [b"1e999", b"[-1e999]", b'{"port": 1e999}'])
def test_a_number_that_no_reader_takes_is_no_member(value: bytes) -> None:
    document = b'{"a": "b", "b": 1, "a": %b}' % value
    with pytest.raises(ValueError, match="infinity"):
        member(document, "a")


KEYS = ("kv_transfer_params", "ec_transfer_params")

# Engines write member names plainly, so escapes inside of them are left to the other tests.
OTHERS = ("a", "id", "xkv_transfer_params", "_transfer_params", 'say "kv_transfer_params')
names = st.sampled_from([*KEYS, *OTHERS]).map(json.dumps)
spaces = st.text(" \t\r\n", max_size=2)


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = st.lists(inner, max_size=3).map(lambda items: "[" + " , ".join(items) + "]")
    members = st.lists(st.tuples(names, inner), max_size=4)
    return arrays | st.builds(write_object, members, st.lists(spaces, min_size=1, max_size=4))


documents = st.recursive(scalars | strings(), _containers, max_leaves=12)


def params(value: Any) -> list[Any]:
    """The values of the members, at any depth."""
    if isinstance(value, dict):
        own = [inner for key, inner in value.items() if key in KEYS]
        return own + [each for inner in value.values() for each in params(inner)]
    return [each for inner in value for each in params(inner)] if isinstance(value, list) else []


def without(value: Any) -> Any:
    """A parsed document without the members, at any depth."""
    if isinstance(value, dict):
        return {key: without(inner) for key, inner in value.items() if key not in KEYS}
    return [without(inner) for inner in value] if isinstance(value, list) else value


@given(documents)
@example('{"kv_transfer_params":1,"ec_transfer_params":2}')
@example('{"kv_transfer_params":1,"a":1,"kv_transfer_params":2}')
@example('{"a":{"kv_transfer_params":{"kv_transfer_params":1}}}')
@example('["\\\\",{"kv_transfer_params":1}]')
def test_the_members_leave_any_json_document_and_all_else_stays(document: str) -> None:
    redacted = json.loads(redact(document.encode()))
    assert without(redacted) == without(json.loads(document))
    assert all(value is None for value in params(redacted))


@given(documents)
def test_redacting_twice_is_redacting_once(document: str) -> None:
    once = redact(document.encode())
    assert redact(once) == once


@given(st.lists(documents, max_size=4))
def test_the_members_leave_any_events(texts: list[str]) -> None:
    # An event's data is one line: engines write JSON without line breaks.
    lines = [text.replace("\n", " ").replace("\r", " ") for text in texts]
    stream = "".join(f"event: x\ndata: {line}\n\n" for line in lines) + "data: [DONE]\n\n"
    events = redact(stream.encode()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    data = [json.loads(event.removeprefix("event: x\ndata: ")) for event in events[:-2]]
    assert [without(each) for each in data] == [without(json.loads(line)) for line in lines]
    assert all(value is None for value in params(data))


@given(objects)
def test_text_that_talks_about_the_members_is_not_touched(inner: str) -> None:
    quoted = json.dumps({"content": inner + '{"kv_transfer_params":{"remote_host":"h"}}'}).encode()
    assert redact(quoted) == quoted


@given(values)
def test_unmarked_text_is_returned_unchanged(value: str) -> None:
    data = value.replace("_transfer_params", "").encode()
    assert redact(data) is data


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_can_be_redacted(before: bytes, behind: bytes) -> None:
    data = before + b'"kv_transfer_params":' + behind
    assert len(redact(data)) <= len(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"kv_transfer_params":1}', b"{}"),
        (b'{"a":1,"kv_transfer_params":1}', b'{"a":1}'),
        (b'{"kv_transfer_params":1,"a":1}', b'{"a":1}'),
        (b'{"a":1,"kv_transfer_params":{"x":[1,"}"]},"b":2}', b'{"a":1,"b":2}'),
        (b'{"a":1 , "kv_transfer_params" : null , "b":2}', b'{"a":1  , "b":2}'),
        (b'{"a":1,"kv_transfer_params":1,"ec_transfer_params":null}', b'{"a":1}'),
        (b'{"kv_transfer_params":null,"ec_transfer_params":1,"a":1}', b'{"a":1}'),
        (b'{"kv_transfer_params":"\\"","a":1}', b'{"a":1}'),
        (b'{"a":"kv_transfer_params"}', b'{"a":"kv_transfer_params"}'),
        (b'["kv_transfer_params","x"]', b'["kv_transfer_params","x"]'),
        (b'{"say \\"kv_transfer_params":1}', b'{"say \\"kv_transfer_params":1}'),
    ],
)
def test_a_member_leaves_with_its_comma(data: bytes, expected: bytes) -> None:
    assert redact(data) == expected


@pytest.mark.parametrize("name", KEYS)
def test_null_stays(name: str) -> None:
    data = b'data: {"choices":[],"%b":null}\n\n' % name.encode()
    assert redact(data) is data


@pytest.mark.parametrize("name", ["prefill_chat.json", "prefill_completions.json"])
def test_a_recorded_answer_names_no_host_or_block(name: str) -> None:
    answer = sample(name)
    assert json.loads(redact(answer)) == without(json.loads(answer))
    assert b"remote" not in redact(answer)


def test_a_recorded_stream_without_the_members_is_returned_as_it_is() -> None:
    stream = sample("chat_stream.sse")
    assert redact(stream) is stream
