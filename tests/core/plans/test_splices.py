"""The splice: two engines' bytes become one answer, however the events come in."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import EngineFailed
from router.core.plans.splices import FirstToken, PrefillSplice, prefill_splice, whole_answer
from router.core.values import Reply
from router.core.wire import sse
from tests.core.fixtures import reply, request, sample

STREAM = sample("completions_stream.sse")
HEAD = (
    b'data: {"id":"cmpl-ab6948aff66e09d1","object":"text_completion","created":1795232911,'
    b'"model":"tiny","choices":[{"index":0,"text":"Once","logprobs":null,"finish_reason":null,'
    b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
)
USAGE = b'"usage":{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8}'
MENDED = b'"usage":{"prompt_tokens":8,"total_tokens":17,"completion_tokens":9}'
SPLICED = HEAD + STREAM.replace(USAGE, MENDED)


def chunk(text: str = "b", usage: object = None, **more: object) -> bytes:
    """A decode engine's chunk; with these counts of prompt and completion if they are given."""
    choice = {"index": 0, "text": text, "finish_reason": None, **more}
    document: dict[str, Any] = {"id": "d", "model": "m", "choices": [choice]}
    if isinstance(usage, tuple):
        prompt, completion = usage
        document["usage"] = counted(prompt, completion)
    return b"data: %b\n\n" % orjson.dumps(document)


def counted(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }


def documents(data: bytes) -> list[Any]:
    """The chunks of a stream."""
    found = [sse.data_of(event) for event in sse.events(data)]
    return [orjson.loads(text) for text in found if text not in (b"", b"[DONE]")]


def test_a_recorded_stream_begins_with_the_first_token_and_counts_it() -> None:
    assert FirstToken("Once").events(STREAM) == SPLICED


@given(st.data())
def test_the_grouping_of_events_makes_no_difference(data: st.DataObject) -> None:
    noise = [b": keep-alive\n\n", chunk(text='he said "usage":{} \\ and "usage"')]
    events = sse.events(STREAM)
    for event in data.draw(st.lists(st.sampled_from(noise), max_size=4)):
        events.insert(data.draw(st.integers(1, len(events))), event)
    cuts = data.draw(st.lists(st.integers(0, len(events)), max_size=6).map(sorted))
    splice, out = FirstToken("Once"), b""
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        out += splice.events(b"".join(events[start:end]))
    assert out == HEAD + b"".join(events).replace(USAGE, MENDED)


def test_comments_may_come_first() -> None:
    alive = b": keep-alive\n\n"
    splice = FirstToken("Once")
    assert splice.events(alive) == alive
    assert splice.events(alive + STREAM) == alive + SPLICED


def test_the_first_chunk_does_not_finish_although_the_second_does() -> None:
    out = documents(FirstToken("a").events(chunk(finish_reason="length", stop_reason=7)))
    assert out[0]["choices"] == [
        {"finish_reason": None, "index": 0, "text": "a", "stop_reason": None}
    ]
    assert out[1]["choices"][0]["finish_reason"] == "length"


def test_an_event_without_usage_is_passed_on_as_it_is() -> None:
    odd = b'data:  {"choices" : [ {"text":"\\u0041"} ],  "id":1}\n\n'
    out = FirstToken("a").events(odd)
    assert out.endswith(odd)


def test_behind_the_first_chunk_nothing_is_copied_or_read() -> None:
    splice = FirstToken("a")
    splice.events(chunk())
    data = chunk("c") * 3
    assert splice.events(data) is data


def test_continuous_usage_counts_the_first_token_from_the_first_chunk_on() -> None:
    splice = FirstToken("a")
    out = splice.events(chunk("b", usage=(4, 1))) + splice.events(chunk("c", usage=(4, 2)))
    assert [part["choices"][0]["text"] for part in documents(out)] == ["a", "b", "c"]
    usages = [part["usage"] for part in documents(out)]
    assert usages == [counted(3, 1), counted(3, 2), counted(3, 3)]


@pytest.mark.parametrize("choices", [[], None, [None]])
def test_a_stream_that_has_only_usage_still_shows_the_first_token(choices: object) -> None:
    event = b"data: %b\n\n" % orjson.dumps(
        {"id": "d", "choices": choices, "usage": counted(4, 0) | {"details": {"cached": 2}}}
    )
    first, last = documents(FirstToken("a").events(event))
    assert first["choices"] == [{"finish_reason": None, "index": 0, "text": "a"}]
    assert first["usage"] == counted(3, 1)
    assert last["usage"] == counted(3, 1) | {"details": {"cached": 2}}


@pytest.mark.parametrize(
    "event",
    [
        b"data: [DONE]\n\n",
        b'data: {"error":{"code":500}}\n\n',
        b"data: [1]\n\n",
        b"data: {half\n\n",
        b"\n\n",
        b'data: {"choices":[{"text":"cut of',
        b"",
    ],
)
def test_non_chunks_pass_unread(event: bytes) -> None:
    splice = FirstToken("a")
    assert splice.events(event) == event
    splice.events(chunk())
    assert splice.events(event + b'"usage":{') == event + b'"usage":{'


@pytest.mark.parametrize("usage", [None, [], {}, {"prompt_tokens": "4"}])
def test_odd_usage_is_unchanged(usage: object) -> None:
    event = b"data: %b\n\n" % orjson.dumps({"choices": [], "usage": usage})
    assert documents(FirstToken("a").events(event))[-1]["usage"] == usage


# Unary answers.


def test_a_whole_answer_gets_the_text_and_the_count() -> None:
    rest = {"choices": [{"index": 0, "text": " upon", "finish_reason": "stop"}], "id": "d"}
    data = orjson.dumps(rest | {"usage": counted(4, 1) | {"prompt_tokens_details": None}})
    assert orjson.loads(FirstToken("Once").body(data)) == {
        "choices": [{"index": 0, "text": "Once upon", "finish_reason": "stop"}],
        "id": "d",
        "usage": counted(3, 2) | {"prompt_tokens_details": None},
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b'{"choices":[1]}',
        b'{"choices":null}',
        b'{"choices":[{"text":null}]}',
        b'{"error":{}}',
    ],
)
def test_non_answers_are_unchanged(data: bytes) -> None:
    assert FirstToken("Once").body(data) == data


# Answers that end with their first token.

UNARY = (
    b'{"id":"cmpl-1","object":"text_completion","created":5,"model":"tiny","choices":[{"index":0,'
    b'"text":"X","logprobs":null,"finish_reason":"stop","stop_reason":7,"token_ids":null,'
    b'"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,'
    b'"system_fingerprint":"fp","usage":{"prompt_tokens":6,"total_tokens":7,'
    b'"completion_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":{"first_tok":212}}'
)
WHO = b'data: {"id":"cmpl-1","object":"text_completion","created":5,"model":"tiny",'
CHOICE = (
    b'"choices":[{"index":0,"text":"X","logprobs":null,"finish_reason":"stop","stop_reason":7,'
    b'"prompt_token_ids":null,"token_ids":null}'
)
COUNTS = b'"usage":{"prompt_tokens":6,"total_tokens":7,"completion_tokens":1}'
DONE = b"data: [DONE]\n\n"


def test_a_unary_client_gets_the_reply_without_kv_parameters() -> None:
    answer = whole_answer(request(prompt="Hello"), reply(200, UNARY))
    unspoken = UNARY.replace(b',"kv_transfer_params":{"first_tok":212}', b"")
    assert answer == Reply(200, reply(200).headers, unspoken)


@pytest.mark.parametrize(
    ("options", "stream"),
    [
        ({}, WHO + CHOICE + b'],"system_fingerprint":"fp"}\n\n'),
        (None, WHO + CHOICE + b'],"system_fingerprint":"fp"}\n\n'),
        ({"continuous_usage_stats": True}, WHO + CHOICE + b'],"system_fingerprint":"fp"}\n\n'),
        (
            {"include_usage": True},
            WHO + CHOICE + b"]}\n\n"
            b"%b%b,%b}\n\n" % (WHO, b'"choices":[]', COUNTS + b',"system_fingerprint":"fp"'),
        ),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            WHO + CHOICE + b"]," + COUNTS + b"}\n\n"
            b"%b%b,%b}\n\n" % (WHO, b'"choices":[]', COUNTS + b',"system_fingerprint":"fp"'),
        ),
    ],
)
def test_a_streaming_client_gets_a_stream(options: object, stream: bytes) -> None:
    facts = request(prompt="Hello", stream=True, stream_options=options)
    answer = whole_answer(facts, reply(200, UNARY))
    assert answer.headers == ((b"content-type", b"text/event-stream; charset=utf-8"),)
    assert answer.body == stream + DONE


def test_an_older_engines_reply_makes_a_stream_too() -> None:
    facts = request(prompt="Hello", stream=True)
    answer = whole_answer(facts, reply(200, b'{"choices":[{"text":"X","finish_reason":"stop"}]}'))
    expected = b'data: {"choices":[{"text":"X","finish_reason":"stop"}]}\n\n'
    assert answer.body == expected + DONE


DEEP = b"[" * 300 + b"]" * 300
"""More levels than orjson writes."""


def test_deeply_nested_bodies_pass_unchanged() -> None:
    data = b'{"choices":[{"text":"a","logprobs":%b}],"usage":{"prompt_tokens":1}}' % DEEP
    assert FirstToken("x").body(data) == data
    frame = b"data: %b\n\n" % data
    assert FirstToken("x").events(frame) == frame


@pytest.mark.parametrize("usage", [b"5", b"[1]", b'"a"', b"null"])
def test_a_usage_that_is_none_counts_nothing(usage: bytes) -> None:
    body = b'{"choices":[{"text":"X","finish_reason":"stop"}],"usage":%b}' % usage
    facts = request(prompt="Hello", stream=True, stream_options={"include_usage": True})
    answer = whole_answer(facts, reply(200, body))
    assert b'"usage":{}' in answer.body


def test_a_whole_answer_that_cannot_be_written_is_the_engines_fault() -> None:
    body = b'{"choices":[{"text":"X","finish_reason":"stop","logprobs":%b}]}' % DEEP
    with pytest.raises(EngineFailed):
        whole_answer(request(prompt="Hello", stream=True), reply(200, body))


# What a decode engine's answer says of the prompt comes from the prefill engine's reply.

CACHED = {"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 8}}


def rows(count: int, fill: int = 0, layers: int = 5, kind: str = "|u1") -> bytes:
    """Routed experts, as numpy writes them: `count` tokens, each with one byte per layer."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count}, {layers}, 1), }}"
    data = bytes((fill + at) % 256 for at in range(count * layers))
    return b"\x93NUMPY\x01\x00v\x00" + head.encode().ljust(117) + b"\n" + data


def answer(experts: bytes | None, **more: Any) -> bytes:
    text = None if experts is None else b64encode(experts).decode()
    return orjson.dumps({"choices": [{"index": 0, "routed_experts": text}], **more})


def of(body: bytes, **asked: Any) -> PrefillSplice | None:
    return prefill_splice(request(prompt="a", **asked), reply(200, body))


def test_an_engine_that_reports_the_prefills_figure_itself_is_not_corrected() -> None:
    """vLLM 0.32 and later."""
    assert of(sample("prefill_chat.json")) is None


def test_the_figure_is_that_of_the_prefill_or_unknown() -> None:
    assert of(answer(None, usage=CACHED)) == PrefillSplice(8)
    assert of(answer(None, usage={"prompt_tokens": 9})) == PrefillSplice(None)
    assert of(answer(None)) == PrefillSplice(None)


def test_behind_a_first_token_both_counts_are_corrected() -> None:
    splice = FirstToken("a", PrefillSplice(3))
    event = b"data: %b\n\n" % orjson.dumps({"choices": [], "usage": CACHED})
    told = b'"prompt_tokens":8,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}'
    assert told in splice.events(event)
    assert told in splice.body(orjson.dumps({"choices": [{"text": "b"}], "usage": CACHED}))


# Routed experts.


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4))
def test_the_prompts_rows_are_the_prefill_engines(prompt: int, more: int, layers: int) -> None:
    """Its rows come first; the decode engine's have noise in their place."""
    own, given_ = rows(prompt + more, 100, layers), rows(prompt, 0, layers)
    splice = of(answer(given_))
    assert splice is not None
    expected = own[:128] + given_[128:] + own[128 + prompt * layers :]
    assert splice.body(answer(own)) == answer(expected)


@pytest.mark.parametrize(
    ("own", "given_"),
    [
        (rows(4, layers=3), rows(2)),
        (rows(4, kind="<u2"), rows(2)),
        (rows(1), rows(2)),
        (b"\x93NUMPY\x02" + rows(4)[7:], b"\x93NUMPY\x02" + rows(2)[7:]),
        (b"short", rows(2)),
        (rows(4), b"short"),
    ],
    ids=["layers", "type", "fewer", "version", "own", "given"],
)
def test_rows_of_another_form_are_unchanged(own: bytes, given_: bytes) -> None:
    splice = PrefillSplice(None, b64encode(given_))
    assert splice.body(answer(own)) == answer(own)


def test_text_other_than_base64_is_unchanged() -> None:
    whole = b64encode(rows(4))
    for own, given_ in ((whole[:31], whole), (whole, whole[:31]), (b"=", whole), (whole, b"a")):
        body = b'{"choices":[{"routed_experts":"%b"}]}' % own
        assert PrefillSplice(None, given_).body(body) == body


def test_a_stream_has_none() -> None:
    assert of(answer(rows(2)), stream=True) == PrefillSplice(None)
    assert PrefillSplice(None, b64encode(rows(2))).body(answer(None)) == answer(None)


def test_they_are_spliced_behind_an_engine_that_reports_the_figure_itself() -> None:
    told = {"usage": CACHED, "kv_transfer_params": {"remote_prefill_cached_tokens": 8}}
    assert of(answer(rows(2), **told)) == PrefillSplice(8, b64encode(rows(2)))
    assert of(answer(None, **told)) is None
