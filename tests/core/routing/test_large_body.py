"""A body that another process reads routes like one that the router reads itself."""

import json
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import BadRequest
from router.core.kv_events.lookups import given_ids
from router.core.plans.prefill import body_for_prefill
from router.core.prefix.keys import prefix_keys
from router.core.request_facts import Facts, ImageRule
from router.core.retry import may_replay
from router.core.routes import ROUTES
from router.core.routing.large_body import (
    FEW_VALUES,
    LIGHT_BYTES,
    MAX_SALT,
    MAX_SHAPING,
    MAX_VALUES,
    SMALL_BYTES,
    digest,
    facts_of,
    is_large,
)
from router.core.wire.contents import has_media
from router.core.wire.facts import read
from router.core.wire.media import media_parts
from router.core.wire.tokens import MIN_BYTES
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    JSON,
    RESPONSES,
    TRANSCRIPTIONS,
)


def apart(path: str, raw: bytes, prefill_from: int | None = None, kind: bytes = JSON) -> Facts:
    """The facts by way of the other process, without the process."""
    route = ROUTES[path]
    found = digest(route, kind, raw, prefill_from, wants_ids=True)
    summary = orjson.loads(orjson.dumps(found.summary))
    pieces = [raw[:7], raw[7:]] if found.raw is None else [found.raw]
    prefill = [found.prefill] if found.prefill else []
    return facts_of(route, b"q=1", summary, pieces, prefill, found.ids)


IDS = ("previous_response_id", "request_id")


def text(name: object) -> str | None:
    """The id of a response; anything else is none."""
    return name if isinstance(name, str) else None


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"model": "m", "stream": True, "messages": [{"content": "x" * 4000}]}),
    "text": (CHAT, {"messages": [{"content": "x" * MIN_BYTES}]}),
    "tools": (CHAT, {"messages": [{"content": "x" * MIN_BYTES}], "tools": [{}]}),
    "forced": (CHAT, {"messages": [], "tools": [{}], "tool_choice": "required"}),
    "ids": (COMPLETIONS, {"prompt": list(range(5000)), "n": 3}),
    "prompts": (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "priority": -3}),
    "salted": (COMPLETIONS, {"prompt": [1, 2, 3], "cache_salt": "tenant-a"}),
    "image": (CHAT, {"messages": [{"content": [{"type": "image_url", "image_url": {}}]}]}),
    "stored": (CHAT, {"messages": [], "store": True, "background": {"a": 1}}),
    "named": (RESPONSES, {"input": "x", "previous_response_id": "resp_1", "request_id": "resp_2"}),
    "misnamed": (RESPONSES, {"input": "x", "previous_response_id": 1, "request_id": None}),
    "embeddings": (EMBEDDINGS, {"model": "e", "input": ["x"] * 100}),
}


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_the_facts_are_the_same(path: str, body: dict[str, Any]) -> None:
    raw = orjson.dumps(body)
    own, other = read(ROUTES[path], JSON, raw, b"q=1"), apart(path, raw, 0)
    names = ["route", "model", "stream", "tokens", "rule", "direct_reason", "path"]
    names += ["forces_tool", "text_bytes", "learnable_bytes", "media_tokens"]
    for name in names:
        assert getattr(other, name) == getattr(own, name), name
    assert b"".join((*other.lead, other.raw)) == raw
    assert other.sequences == own.sequences
    assert may_replay(other) == may_replay(own)
    assert other.prefix == prefix_keys(own)
    assert other.body.get("priority") == own.body.get("priority")
    assert [other.body.get(name) for name in IDS] == [text(own.body.get(name)) for name in IDS]
    assert other.body.get("cache_salt") == own.body.get("cache_salt")
    assert given_ids(other) == given_ids(own)
    if own.route.generates:
        assert has_media(other) == has_media(own)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}}
MESSAGES = [{"role": "user", "content": [IMAGE]}]


@pytest.mark.parametrize(("model", "tokens"), [("m", 2 * 256), ("other", 2 * 1024)])
def test_images_have_as_many_tokens_as_is_stated_for_the_model(model: str, tokens: int) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    body = {"model": model, "messages": [{"role": "user", "content": [part, part]}]}
    raw, rules = orjson.dumps(body), {"m": ImageRule(256, 28 * 28)}
    summary = digest(ROUTES[CHAT], JSON, raw, image_rules=rules).summary
    facts = facts_of(ROUTES[CHAT], b"", summary, [raw], [])
    here = read(ROUTES[CHAT], JSON, raw, image_rules=rules)
    assert (facts.tokens, facts.media_tokens) == (here.tokens, here.media_tokens)
    assert (here.tokens, here.media_tokens) == (tokens, tokens)
    assert facts.prefix == prefix_keys(here)
    assert prefix_keys(here).ends[-1] == tokens


@pytest.mark.parametrize(("size", "is_returned"), [(9, True), (MAX_SHAPING, False)])
def test_images_are_returned_with_what_shapes_them(size: int, is_returned: bool) -> None:
    shaping = {"mm_processor_kwargs": {"a": "x" * size}}
    raw = orjson.dumps({"messages": MESSAGES} | shaping)
    found = digest(ROUTES[CHAT], JSON, raw, wants_media=True)
    own = media_parts(read(ROUTES[CHAT], JSON, raw))
    summary = orjson.loads(orjson.dumps(found.summary))
    facts = facts_of(ROUTES[CHAT], b"", summary, [raw], [], None, [*found.media.values()])
    assert facts.media == found.media == (own if is_returned else {})
    assert facts.body == (shaping if is_returned else {})


@pytest.mark.parametrize("depth", [*range(248, 256), 400])
def test_what_shapes_images_is_returned_however_deep_or_the_body_encodes_nothing(
    depth: int,
) -> None:
    """orjson reads 1024 levels of nesting and writes 254."""
    shaping = b'"mm_processor_kwargs":' + b"[" * depth + b"]" * depth
    raw = orjson.dumps({"messages": MESSAGES})[:-1] + b",%b}" % shaping
    found = digest(ROUTES[CHAT], JSON, raw, wants_media=True)
    assert found.media == media_parts(read(ROUTES[CHAT], JSON, raw))
    assert (shaping in orjson.dumps(found.summary)) is bool(found.media) is (depth < 254)


def test_images_are_not_returned_unless_they_are_needed() -> None:
    assert apart(CHAT, orjson.dumps({"messages": MESSAGES})).media == {}


def test_its_body_is_skipped() -> None:
    facts = apart(CHAT, orjson.dumps({"messages": [{"content": "x" * 10**6}], "priority": "x"}))
    assert facts.body == {}


def test_forbidden_keys_are_removed() -> None:
    facts = apart(CHAT, b'{"messages":[],"kv_transfer_params":{"remote_host":"evil"}}')
    assert facts.raw == b'{"messages":[]}'
    assert facts.lead == ()


@pytest.mark.parametrize(("prefill_from", "is_made"), [(None, False), (0, True), (3, False)])
def test_prefill_request_is_made_if_needed(prefill_from: int | None, is_made: bool) -> None:
    raw = b'{"prompt":"eight by","min_tokens":4}'
    facts = apart(COMPLETIONS, raw, prefill_from)
    made = [body_for_prefill(read(ROUTES[COMPLETIONS], JSON, raw))]
    assert list(facts.prefill) == (made if is_made else [])
    # Without one there is no prefill, for any later threshold.
    assert facts.direct_reason == (None if is_made else "below_threshold")


@pytest.mark.parametrize("body", [{"prompt": ["a", "b"]}, {"prompt": "a", "n": 2}])
def test_direct_only_requests_have_no_prefill(body: dict[str, Any]) -> None:
    assert apart(COMPLETIONS, orjson.dumps(body), 0).prefill == ()


@pytest.mark.parametrize("prefill_from", [None, 0])
def test_deeply_nested_bodies_are_direct(prefill_from: int | None) -> None:
    deep = b'{"prompt":"x","a":' + b"[" * 300 + b"]" * 300 + b"}"
    facts = apart(COMPLETIONS, deep, prefill_from)
    assert facts.prefill == ()
    assert facts.direct_reason == ("below_threshold" if prefill_from is None else "nested_too_deep")


def test_integers_beyond_64_bits_reach_the_prefill_engine_as_the_client_wrote_them() -> None:
    raw = b'{"prompt":"x","tools":[{"maximum":%d}]}' % (2**256 - 1)
    [body] = apart(COMPLETIONS, raw, 0).prefill
    assert json.loads(body)["tools"] == [{"maximum": 2**256 - 1}]


def test_ids_are_forwarded_only_on_request() -> None:
    raw = b'{"prompt":[1,2,3]}'
    assert digest(ROUTES[COMPLETIONS], JSON, raw).ids is None
    wanted = digest(ROUTES[COMPLETIONS], JSON, raw, wants_ids=True)
    assert wanted.ids == array("I", [1, 2, 3]).tobytes()


def test_of_a_prompt_with_a_salt_of_any_length_nothing_is_looked_up_or_learned() -> None:
    facts = apart(COMPLETIONS, orjson.dumps({"prompt": [1, 2], "cache_salt": "x" * (MAX_SALT + 1)}))
    assert facts.body == {}
    assert given_ids(facts) is None
    assert has_media(facts)


def test_the_last_piece_holds_the_end_of_the_object() -> None:
    route = ROUTES[COMPLETIONS]
    summary = digest(route, JSON, b'{"prompt":"x"}').summary
    facts = facts_of(route, b"", summary, [b'{"prompt"', b':"x"}', b" \n", b"\n"], [])
    assert (facts.lead, facts.raw) == ((b'{"prompt"',), b':"x"}')


def test_a_recording_is_passed_on_whole() -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
    facts = apart(TRANSCRIPTIONS, form, None, b"multipart/form-data; boundary=x")
    assert facts.model == "whisper"
    assert b"".join((*facts.lead, facts.raw)) == form


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"model":1}'])
def test_a_bad_one_is_refused_in_the_same_words(raw: bytes) -> None:
    with pytest.raises(BadRequest) as own:
        read(ROUTES[CHAT], JSON, raw)
    with pytest.raises(BadRequest) as other:
        digest(ROUTES[CHAT], JSON, raw)
    assert (own.value.message, own.value.param) == (other.value.message, other.value.param)


def test_more_values_than_any_prompt_has_are_refused_before_they_are_read() -> None:
    raw = b'{"messages":[' + b"{}," * MAX_VALUES + b"{}]}"
    with pytest.raises(BadRequest, match="values"):
        digest(ROUTES[CHAT], JSON, raw)
    digest(ROUTES[TRANSCRIPTIONS], b"audio/wav", b"," * (MAX_VALUES + 1))


@given(
    st.sampled_from([b"1,", b"[],", b"{},", b'"x",', b"[[]],", b'{"a":1},']),
    st.integers(FEW_VALUES, 2 * FEW_VALUES),
)
def test_many_small_values_are_large(unit: bytes, number: int) -> None:
    assert is_large(b"[" + unit * number + b"1]" + b" " * LIGHT_BYTES)


@pytest.mark.parametrize("size", [SMALL_BYTES, LIGHT_BYTES, 2 * LIGHT_BYTES])
@pytest.mark.parametrize("unit", [b"{},", b"[12345678],", b"1,2345,", b'"words, and more",'])
def test_a_view_of_a_read_is_as_large_as_a_copy(unit: bytes, size: int) -> None:
    body = b"[" + unit * (size // len(unit)) + b"1]"
    assert is_large(memoryview(b"x" * (8 << 10) + body)[8 << 10 :]) == is_large(body)


def test_a_long_text_is_not_large() -> None:
    prose = "It was the best of times, it was the worst of times, and it was long. " * 1000
    assert not is_large(orjson.dumps({"prompt": prose}))


@pytest.mark.parametrize("unit", [b"{},", b"[],", b'{"a":1},', b'"x",', b'["x"],'])
def test_dense_bodies_count_as_large(unit: bytes) -> None:
    assert is_large(b"[" + unit * (SMALL_BYTES // len(unit) + 1) + b"1]")


TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "hi"}] * 500},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}] * 300},
        {"messages": [], "tools": [TOOL] * 50},
        {"prompt": list(range(8000))},
        {"prompt": "if (a[0]) {\n  return call(b);\n}\n" * 1000},
        {"prompt": 'he said "yes", she said "no"; ' * 1000},
        {"prompt": ["a", "b"] * 20 + ["a longer prompt"] * 300},
    ],
)
def test_usual_bodies_that_are_light_are_read_at_once(body: dict[str, Any]) -> None:
    raw = orjson.dumps(body)
    assert SMALL_BYTES < len(raw) <= 64 << 10
    assert not is_large(raw)
