"""KV transfer parameters leave every answer, and nothing else does."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.wire.redact import redact
from tests.core.fixtures import sample
from tests.core.json_texts import objects, scalars, strings, values, write_object

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
    redacted = redact(document.encode())
    assert json.loads(redacted) == without(json.loads(document))


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
    assert data == [without(json.loads(line)) for line in lines]


@given(objects)
def test_text_that_talks_about_the_members_is_not_touched(inner: str) -> None:
    quoted = json.dumps({"content": inner + '{"kv_transfer_params":{"remote_host":"h"}}'}).encode()
    assert redact(quoted) == quoted


@given(values)
def test_what_has_no_mark_is_returned_as_it_is(value: str) -> None:
    data = value.replace("_transfer_params", "").encode()
    assert redact(data) is data


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_can_be_redacted(before: bytes, behind: bytes) -> None:
    data = before + b'"kv_transfer_params":' + behind
    assert len(redact(data)) <= len(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"kv_transfer_params":null}', b"{}"),
        (b'{"a":1,"kv_transfer_params":null}', b'{"a":1}'),
        (b'{"kv_transfer_params":null,"a":1}', b'{"a":1}'),
        (b'{"a":1,"kv_transfer_params":{"x":[1,"}"]},"b":2}', b'{"a":1,"b":2}'),
        (b'{"a":1 , "kv_transfer_params" : null , "b":2}', b'{"a":1  , "b":2}'),
        (b'{"a":1,"kv_transfer_params":null,"ec_transfer_params":null}', b'{"a":1}'),
        (b'{"kv_transfer_params":null,"ec_transfer_params":null,"a":1}', b'{"a":1}'),
        (b'{"kv_transfer_params":"\\"","a":1}', b'{"a":1}'),
        (b'{"a":"kv_transfer_params"}', b'{"a":"kv_transfer_params"}'),
        (b'["kv_transfer_params","x"]', b'["kv_transfer_params","x"]'),
        (b'{"say \\"kv_transfer_params":1}', b'{"say \\"kv_transfer_params":1}'),
    ],
)
def test_a_member_leaves_with_its_comma(data: bytes, expected: bytes) -> None:
    assert redact(data) == expected


@pytest.mark.parametrize("name", ["prefill_chat.json", "prefill_completions.json"])
def test_a_recorded_answer_names_no_host_or_block(name: str) -> None:
    answer = sample(name)
    assert json.loads(redact(answer)) == without(json.loads(answer))
    assert b"remote" not in redact(answer)


def test_a_recorded_stream_without_the_members_is_returned_as_it_is() -> None:
    stream = sample("chat_stream.sse")
    assert redact(stream) is stream
