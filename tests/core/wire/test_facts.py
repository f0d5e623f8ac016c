"""The one parse of a request: values read, refusals, and unchanged parts."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import (
    BadRequest,
    BodyTooLarge,
    LengthRequired,
    MethodNotAllowed,
    RouterError,
)
from router.core.routes import ROUTES
from router.core.routing import large_body
from router.core.wire import facts
from router.core.wire.facts import check_head, check_size, declared_size
from router.core.wire.jsonspan import with_member
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    JSON,
    MESSAGES,
    RESPONSES,
    TRANSCRIPTIONS,
    read,
    request,
)
from tests.core.json_texts import objects, write_object

GENERATION = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
GENERATE = "/inference/v1/generate"
TRANSFER_KEYS = ("kv_transfer_params", "ec_transfer_params")


# What is read.


def test_the_facts_of_a_completion_are_read_from_its_body() -> None:
    raw = b'{"model":"tiny","prompt":"abcdefgh","stream":true}'
    facts = read(COMPLETIONS, raw)
    assert (facts.route, facts.model, facts.stream) == (ROUTES[COMPLETIONS], "tiny", True)
    assert (facts.tokens, facts.rule, facts.text_bytes) == (2, "characters / 4", 8)
    assert facts.direct_reason is None
    assert (facts.raw, facts.body) == (raw, orjson.loads(raw))


@pytest.mark.parametrize("path", [*GENERATION, EMBEDDINGS])
def test_the_bytes_stay_as_the_client_sent_them(path: str) -> None:
    raw = b' {"unknown" : 123456789012345678901234567890, "temperature":0.10,\n"e":"\\u00e9"} '
    assert read(path, raw).raw is raw


@pytest.mark.parametrize("stream", [True, 1, 1.0, "true", "True", "t", "YES", "y", "on", "1"])
def test_vllms_truthy_values_request_a_stream(stream: object) -> None:
    assert request(stream=stream).stream


@pytest.mark.parametrize(
    "stream", [False, None, 0, 2, "", "false", "no", " true", [], [1], {"a": 1}]
)
def test_no_other_value_requests_a_stream(stream: object) -> None:
    assert not request(stream=stream).stream


LONG = b'{"model":"m","prompt":"' + b"x" * facts.END_BYTES + b'"'


@pytest.mark.parametrize(
    "raw",
    [
        LONG + b"}",
        LONG + b"}" + b" " * facts.END_BYTES,
        LONG + b" " * facts.END_BYTES + b"}",
        b"{" + b" " * facts.END_BYTES + b"}",
    ],
    ids=["long", "space behind", "space within", "empty"],
)
def test_a_view_is_read_as_its_bytes_and_can_be_added_to(raw: bytes) -> None:
    route = ROUTES[COMPLETIONS]
    whole, view = facts.read(route, JSON, raw), facts.read(route, JSON, memoryview(raw))
    assert (view.model, view.tokens, view.body) == (whole.model, whole.tokens, whole.body)
    assert b"".join((*view.lead, view.raw)) == raw
    added = with_member(view.raw, "kv_transfer_params", b"{}")
    assert b"".join((*view.lead, added)) == with_member(raw, "kv_transfer_params", b"{}")


def test_of_a_long_view_only_the_end_is_copied() -> None:
    raw = LONG + b"}"
    view = facts.read(ROUTES[COMPLETIONS], JSON, memoryview(raw))
    assert [each.obj for each in view.lead if isinstance(each, memoryview)] == [raw]
    assert len(view.raw) == facts.END_BYTES


def test_transfer_parameters_are_taken_out_of_a_view() -> None:
    view = facts.read(ROUTES[COMPLETIONS], JSON, memoryview(LONG + b',"kv_transfer_params":{}}'))
    assert (view.lead, view.raw) == ((), LONG + b"}")


def test_a_view_of_another_kind_passes_as_its_bytes() -> None:
    view = facts.read(ROUTES[TRANSCRIPTIONS], b"audio/wav", memoryview(b"RIFF"))
    assert (view.lead, view.raw) == ((), b"RIFF")


def test_a_missing_model_is_none() -> None:
    assert request().model is None
    assert request(model=None).model is None


def test_the_query_is_forwarded_with_the_path() -> None:
    with_query = facts.read(ROUTES[COMPLETIONS], JSON, b"{}", b"a=%2F&b=\xe9")
    assert with_query.path == "/v1/completions?a=%2F&b=\u00e9"
    assert request().path == "/v1/completions"


def test_bodies_do_not_flood_the_logs() -> None:
    assert "secret" not in repr(request(prompt="secret"))


# What is refused.


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1',
        b'{"a":1}}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"[" * 2000,
    ],
)
@pytest.mark.parametrize("path", [*GENERATION, EMBEDDINGS])
def test_invalid_json_is_a_bad_request(path: str, raw: bytes) -> None:
    with pytest.raises(BadRequest, match="not valid JSON") as refusal:
        read(path, raw)
    assert refusal.value.param == "body"


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"a"', b"null", b"true"])
@pytest.mark.parametrize("path", [*GENERATION, EMBEDDINGS])
def test_json_other_than_objects_is_a_bad_request(path: str, raw: bytes) -> None:
    with pytest.raises(BadRequest, match="must be a JSON object"):
        read(path, raw)


@pytest.mark.parametrize("model", [1, ["tiny"], {}, True])
@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
def test_a_model_that_is_no_string_is_a_bad_request(path: str, model: object) -> None:
    with pytest.raises(BadRequest, match="must be a string") as refusal:
        request(path, model=model)
    assert refusal.value.param == "model"


# Whose KV cache is read is not for clients to say.


@pytest.mark.parametrize("path", [*GENERATION, EMBEDDINGS])
@pytest.mark.parametrize("key", TRANSFER_KEYS)
def test_transfer_parameters_are_taken_out(path: str, key: str) -> None:
    body = {"model": "tiny", key: {"remote_host": "evil"}, "seed": 7}
    result = request(path, **body)
    assert orjson.loads(result.raw) == {"model": "tiny", "seed": 7}
    assert key not in result.body


@pytest.mark.parametrize("path", [*GENERATION, EMBEDDINGS])
@pytest.mark.parametrize("key", TRANSFER_KEYS)
def test_transfer_parameters_are_taken_out_of_vllm_xargs(path: str, key: str) -> None:
    result = request(path, vllm_xargs={key: {"remote_host": "evil"}, "kept": 1})
    assert orjson.loads(result.raw) == {"vllm_xargs": {"kept": 1}}


@pytest.mark.parametrize("path", [*GENERATION, GENERATE])
@pytest.mark.parametrize("key", TRANSFER_KEYS)
def test_transfer_parameters_are_taken_out_of_sampling_parameters(path: str, key: str) -> None:
    extra_args = {key: {"remote_host": "evil"}, "kept": 1}
    result = request(path, sampling_params={"n": 1, "extra_args": extra_args})
    assert orjson.loads(result.raw) == {"sampling_params": {"n": 1, "extra_args": {"kept": 1}}}


@pytest.mark.parametrize("given", [None, [1], {"extra_args": [1]}, {"extra_args": None}])
def test_sampling_parameters_of_another_type_are_the_engines_business(given: object) -> None:
    result = request(GENERATE, sampling_params=given, kv_transfer_params=1)
    assert orjson.loads(result.raw) == {"sampling_params": given}


def test_vllm_xargs_without_them_stay_as_they_are() -> None:
    raw = b'{"vllm_xargs": {"a": 1}}'
    assert read(COMPLETIONS, raw).raw is raw


def test_vllm_xargs_of_another_type_are_the_engines_business() -> None:
    assert orjson.loads(request(vllm_xargs=[1], kv_transfer_params=1).raw) == {"vllm_xargs": [1]}


@pytest.mark.parametrize("spelling", [b"kv\\u005ftransfer_params", b"\\u006bv_transfer_params"])
def test_escapes_do_not_hide_them(spelling: bytes) -> None:
    assert read(COMPLETIONS, b'{"%b":1}' % spelling).raw == b"{}"


def test_a_second_one_does_not_hide_the_first() -> None:
    raw = b'{"kv_transfer_params":{"remote_host":"evil"},"kv_transfer_params":null}'
    assert read(COMPLETIONS, raw).raw == b"{}"


def nested(levels: int) -> bytes:
    """A body with transfer parameters and an array nested so deep."""
    return b'{"kv_transfer_params":1,"a":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
def test_a_body_too_deep_to_be_written_anew_is_a_bad_request(path: str) -> None:
    assert read(path, nested(200)).raw == nested(200).replace(b'"kv_transfer_params":1,', b"")
    with pytest.raises(BadRequest, match="nested too deeply"):
        read(path, nested(500))


def test_vllm_xargs_in_vllm_xargs_do_not_exhaust_the_stack() -> None:
    raw = b'{"kv_transfer_params":1,' + b'"vllm_xargs":{' * 900 + b"}" * 901
    with pytest.raises(BadRequest, match="nested too deeply"):
        read(COMPLETIONS, raw)


# Why a request must not be disaggregated.


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"n": 2}, "several_answers"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"n": 1}, None),
        ([], None),
    ],
)
def test_the_rules_for_token_ids_read_the_sampling_parameters(
    sampling: object, reason: str | None
) -> None:
    body = {"token_ids": [1, 2], "sampling_params": sampling}
    assert request(GENERATE, **body).direct_reason == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"n": 2}, "several_answers"),
        ({"n": "2"}, "several_answers"),
        ({"n": 1.5}, "several_answers"),
        ({"n": 1}, None),
        ({"n": "1"}, None),
        ({"n": None}, None),
        ({"n": [2]}, None),
        ({"n": "two"}, None),
        ({"n": True}, None),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1}, None),
        ({"use_beam_search": True}, "beam_search"),
        ({"use_beam_search": False}, None),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"prompt_embeds": None}, None),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_logprobs": 5}, "prompt_logprobs"),
        ({"prompt_logprobs": None}, None),
        ({"echo": True, "logprobs": 1}, "echo_logprobs"),
        ({"echo": True, "logprobs": 0}, "echo_logprobs"),
        ({"echo": True, "logprobs": None}, None),
        ({"echo": True, "logprobs": False}, None),
        ({"echo": True}, None),
        ({"logprobs": 5}, None),
        ({"echo": False, "logprobs": 5}, None),
        ({"previous_response_id": "r"}, "stored_response"),
        ({"previous_response_id": None}, None),
        ({"background": True}, "background"),
        ({"background": False}, None),
        ({"truncate_prompt_tokens": -1}, "truncation"),
        ({"truncate_prompt_tokens": "-1"}, "truncation"),
        ({"truncate_prompt_tokens": -1.0}, "truncation"),
        ({"truncate_prompt_tokens": 0}, None),
        ({"truncate_prompt_tokens": 100}, None),
        ({"truncate_prompt_tokens": None}, None),
        ({"truncate_prompt_tokens": "x"}, None),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": None}, "truncation"),
        ({"truncation": "disabled"}, None),
        ({}, None),
    ],
)
def test_direct_only_requests_have_a_reason(body: dict[str, Any], reason: str | None) -> None:
    assert request(**body).direct_reason == reason


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([{"type": "function", "name": "f"}, {"type": "code_interpreter"}], "builtin_tools"),
        ([{"type": "web_search_preview"}], "builtin_tools"),
        ([{"type": "mcp", "server_label": "s"}], "builtin_tools"),
        ([{"type": "container"}], "builtin_tools"),
        ([{"type": "function", "name": "mcp"}], None),
        ([{"type": ["mcp"]}, "mcp", None], None),
        ({"type": "mcp"}, None),
        (None, None),
    ],
)
def test_vllm_calls_its_own_tools_of_responses(tools: object, reason: str | None) -> None:
    """It would load the KV cache again with each call's result."""
    assert request(RESPONSES, input="hi", tools=tools).direct_reason == reason
    assert request(CHAT, messages=[], tools=tools).direct_reason is None


@pytest.mark.parametrize("name", ["___prefill_addr_host:10.0.0.1,handshake:80,notify:81", "a___b"])
def test_the_id_of_a_response_cannot_name_hosts(name: str) -> None:
    """vLLM takes it for the request's id, in which some connectors look for addresses."""
    with pytest.raises(BadRequest, match="`request_id` must not contain ___") as raised:
        request(RESPONSES, input="hi", request_id=name)
    assert raised.value.param == "request_id"
    assert request(CHAT, messages=[], request_id=name).direct_reason is None
    for good in ("resp_" + "a" * 32, "a b", None, 7):
        assert request(RESPONSES, input="hi", request_id=good).body["request_id"] == good


def test_content_beside_a_tools_output_hides_no_media() -> None:
    output = {"type": "function_call_output", "content": "a", "output": [{"image_url": PICTURE}]}
    assert request(RESPONSES, input=[output]).direct_reason == "media_url"


PICTURE = "https://example.org/a.png"


@pytest.mark.parametrize(
    ("path", "part", "is_fetched"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": PICTURE}}, True),
        (CHAT, {"image_url": PICTURE}, True),
        (CHAT, {"type": "video_url", "video_url": {"url": "file:///a.mp4"}}, True),
        (CHAT, {"type": "audio_url", "audio_url": {"url": " data:audio/wav;base64,"}}, True),
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, False),
        (CHAT, {"type": "text", "text": f'"image_url": "{PICTURE}"'}, False),
        (CHAT, {"type": "image_url", "image_url": {"url": [PICTURE]}}, False),
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": PICTURE}}, True),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "data": "AA"}}, False),
        (MESSAGES, {"type": "tool_use", "input": {"image_url": PICTURE}}, False),
        (MESSAGES, {"type": "tool_result", "content": [{"source": {"url": PICTURE}}]}, True),
        (MESSAGES, {"type": "search_result", "source": PICTURE}, False),
        (CHAT, {"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AA"}}, False),
        (RESPONSES, {"type": "function_call_output", "output": [{"image_url": PICTURE}]}, True),
        (GENERATE, {"type": "image_url", "url": PICTURE}, True),
        (GENERATE, {"type": "image_url", "url": "data:image/png;base64,AA"}, False),
        (GENERATE, {"type": "text", "url": PICTURE}, False),
        (GENERATE, {"type": "image_url", "url": PICTURE, "content": "hidden"}, True),
        (CHAT, {"type": "text", "text": "a", "uuid": "b", "image_url": PICTURE}, True),
        (CHAT, {"type": "video_url", "image_url": "data:,", "video_url": {"url": PICTURE}}, True),
        (RESPONSES, {"type": "input_image", "image_url": PICTURE}, True),
        (RESPONSES, {"type": "input_image", "image_url": ""}, False),
    ],
)
def test_media_that_each_engine_would_fetch_are_not_prefilled_remotely(
    path: str, part: object, is_fetched: bool
) -> None:
    messages = [{"role": "user", "content": [part]}]
    prompt: dict[str, Any] = {"input" if path == RESPONSES else "messages": messages}
    if path == GENERATE:
        prompt = {"token_ids": [1], "content_parts": [part]}
    schema = {"properties": {"image_url": {"example": PICTURE}, "url": {}}}
    others = {"metadata": {"source": "web", "image_url": PICTURE}, "tools": [schema]}
    reason = request(path, **prompt, **others).direct_reason
    assert reason == ("media_url" if is_fetched else None)


@pytest.mark.parametrize(
    ("choice", "is_forced"),
    [
        ("required", True),
        ("any", True),
        ({"type": "function", "function": {"name": "f"}}, True),
        ({"type": "function", "name": "f"}, True),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "f"}, True),
        ({}, True),
        ("auto", False),
        ("none", False),
        ({"type": "auto"}, False),
        ({"type": "none"}, False),
        (None, False),
        (7, False),
    ],
)
@pytest.mark.parametrize("path", GENERATION)
def test_forced_tool_is_known_in_each_api(path: str, choice: object, is_forced: bool) -> None:
    facts = request(path, tool_choice=choice)
    assert (facts.forces_tool, facts.direct_reason) == (is_forced, None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"echo": True}, "echo_logprobs"),
        ({"echo": True, "top_logprobs": 3, "logprobs": True}, "echo_logprobs"),
        ({"echo": True, "top_logprobs": None}, None),
        ({"echo": False, "top_logprobs": 3}, None),
    ],
)
def test_an_echoing_chat_has_prompt_logprobs_by_default(
    body: dict[str, Any], reason: str | None
) -> None:
    assert request(CHAT, messages=[], **body).direct_reason == reason


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (["a", "b"], "several_prompts"),
        ([[1], [2]], "several_prompts"),
        (["a", [1]], "several_prompts"),
        (["a"], None),
        ([[1, 2]], None),
        ([1, 2], None),
        ([], None),
        ("a", None),
        (None, None),
    ],
)
def test_several_prompts_must_not_be_disaggregated(prompt: object, reason: str | None) -> None:
    assert request(prompt=prompt).direct_reason == reason


def test_a_prompt_means_nothing_on_other_routes() -> None:
    assert request(CHAT, prompt=["a", "b"]).direct_reason is None


# Routes that generate nothing.


def test_of_a_pass_through_only_the_model_is_read() -> None:
    raw = b'{"model":"tiny","input":"abcdefgh","stream":true}'
    facts = read(EMBEDDINGS, raw)
    assert (facts.route, facts.model, facts.stream) == (ROUTES[EMBEDDINGS], "tiny", False)
    assert (facts.tokens, facts.rule, facts.direct_reason) == (0, "no text", "route")
    assert (facts.raw, facts.body) == (raw, {})


@pytest.mark.parametrize("kind", [b"application/json; charset=utf-8", b"Application/JSON"])
def test_json_is_known_by_its_content_type(kind: bytes) -> None:
    assert read(EMBEDDINGS, b'{"kv_transfer_params":1}', kind).raw == b"{}"


@pytest.mark.parametrize("raw", [b"\x00\xff", b'{"model":"tiny","kv_transfer_params":1}'])
def test_non_json_passes_unread(raw: bytes) -> None:
    result = read(EMBEDDINGS, raw, b"application/octet-stream")
    assert (result.raw, result.model) == (raw, None)


def multipart(*parts: bytes) -> bytes:
    """A form with these parts, as browsers write it."""
    return b"".join(b"--x\r\n%b\r\n" % part for part in parts) + b"--x--\r\n"


FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00RIFF\xff'


@pytest.mark.parametrize(
    ("part", "model"),
    [
        (b'Content-Disposition: form-data; name="model"\r\n\r\ntiny', "tiny"),
        (b"content-disposition: form-data; name=model\r\n\r\ntiny", "tiny"),
        (
            b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain\r\n\r\ntiny',
            "tiny",
        ),
        (b'Content-Disposition: form-data; name="model"\r\n\r\nt\xc3\xadny', "tíny"),
        (b'Content-Disposition: form-data; name="model"\r\n\r\nt\xff', "t\ufffd"),
        (b'Content-Disposition: form-data; name="model"\r\n\r\n', None),
        (b'Content-Disposition: form-data; name="language"\r\n\r\nen', None),
        (b'Content-Disposition: form-data; filename="model"\r\n\r\nen', None),
        (b'Content-Disposition: form-data; name="prompt"\r\n\r\nname=model\r\n\r\nen', None),
    ],
)
def test_the_model_of_a_form_is_read(part: bytes, model: str | None) -> None:
    raw = multipart(FILE, part)
    result = read(TRANSCRIPTIONS, raw, b"multipart/form-data; boundary=x")
    assert (result.model, result.raw) == (model, raw)
    assert read(TRANSCRIPTIONS, raw, b"text/plain").model is None


def test_a_model_of_a_form_may_be_as_long_as_one_in_json() -> None:
    part = b'Content-Disposition: form-data; name="model"\r\n\r\n' + b"x" * 513
    with pytest.raises(BadRequest, match="too long"):
        read(TRANSCRIPTIONS, multipart(part), b"multipart/form-data; boundary=x")


# What holds for any bytes.

any_route = st.sampled_from(sorted(ROUTES))


@pytest.mark.parametrize(
    "raw",
    [
        b"content-disposition:form-data;name=model\r\n" * 40_000,
        b"content-disposition:form-data;name=model\r\na: b\r\n" * 30_000,
        b"content-disposition:form-data;name=model" + b" " * 1_000_000,
        b"content-disposition:form-data;name=model\r\n" * 9 + b"x" * 1_000_000,
        b"name=model\r\n" * 90_000,
        b"--x\r\n" * 200_000,
        b"--x\r\n" + b"\r\n--xy" * 150_000,
        b"--x\r\nContent-Disposition: form-data" + b"; a" * 300_000,
    ],
    ids=[
        *("names", "names and headers", "spaces", "long lines", "no headers"),
        *("empty parts", "no delimiters", "parameters"),
    ],
)
def test_parts_made_to_take_long_take_no_longer_than_their_bytes(raw: bytes) -> None:
    """A backtracking pattern took minutes, and blocked all other requests."""
    assert read(TRANSCRIPTIONS, raw, b"multipart/form-data; boundary=x").model is None


content_types = st.sampled_from([JSON, b"multipart/form-data; boundary=x", b"text/plain", b""])
member_names = st.sampled_from(
    [
        *("model", "n", "prompt", "messages", "stream", "echo", "logprobs", "best_of"),
        *("vllm_xargs", "kv_transfer_params", "input", "system", "background"),
    ]
).map(lambda name: f'"{name}"')
bodies = st.builds(
    write_object,
    st.lists(st.tuples(member_names, objects | st.just('"2"')), max_size=4),
    st.just([""]),
)


@given(any_route, content_types, st.binary(max_size=40) | bodies.map(str.encode))
def test_any_bytes_are_read_or_refused_as_a_bad_request(path: str, kind: bytes, raw: bytes) -> None:
    try:
        result = read(path, raw, kind)
    except BadRequest:
        return
    assert not (set(TRANSFER_KEYS) & set(result.body))


@given(bodies.map(str.encode))
def test_taking_transfer_parameters_out_changes_nothing_else(raw: bytes) -> None:
    try:
        result = read(CHAT, raw)
    except BadRequest:
        return
    given_body = orjson.loads(raw)
    expected = {key: value for key, value in given_body.items() if key not in TRANSFER_KEYS}
    if isinstance(xargs := expected.get("vllm_xargs"), dict):
        expected["vllm_xargs"] = {
            key: value for key, value in xargs.items() if key not in TRANSFER_KEYS
        }
    assert orjson.loads(result.raw) == result.body == expected


def test_a_model_name_is_bounded_for_labels() -> None:
    read(CHAT, orjson.dumps({"model": "m" * 512}))
    with pytest.raises(BadRequest) as caught:
        read(CHAT, orjson.dumps({"model": "m" * 513}))
    assert caught.value.param == "model"
    assert "mm" not in caught.value.message


REFUSED: dict[str, tuple[bytes, dict[bytes, bytes], type[RouterError]]] = {
    "another method": (b"PUT", {b"content-length": b"2"}, MethodNotAllowed),
    "no body": (b"POST", {}, LengthRequired),
    "no number": (b"POST", {b"content-length": b"+2"}, BadRequest),
    "too long": (b"POST", {b"content-length": b"11"}, BodyTooLarge),
}


@pytest.mark.parametrize(("method", "fields", "error"), REFUSED.values(), ids=REFUSED)
def test_a_head_is_refused(
    method: bytes, fields: dict[bytes, bytes], error: type[RouterError]
) -> None:
    with pytest.raises(error):
        check_head(method, "/v1/completions", fields, 10)


@pytest.mark.parametrize("fields", [{b"content-length": b"10"}, {b"transfer-encoding": b"chunked"}])
def test_a_good_head_passes(fields: dict[bytes, bytes]) -> None:
    check_head(b"POST", "/v1/completions", fields, 10)


def test_a_body_may_be_as_large_as_the_limit() -> None:
    check_size(10, 10)
    with pytest.raises(BodyTooLarge):
        check_size(11, 10)


def test_a_declared_length_is_known_before_the_body() -> None:
    assert declared_size({b"content-length": b"12"}) == 12
    assert declared_size({b"transfer-encoding": b"chunked"}) == 0


# Another model than the client named.


def model_of(raw: bytes) -> object:
    """The model that an engine reads in a body."""
    return orjson.loads(raw)["model"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"model":"gpt","n":1}', b'{"model":"org/m","n":1}'),
        (b' {"n" : 1, "model" :\n "g\\"t" } ', b' {"n" : 1, "model" :\n "org/m" } '),
        (
            rb'{"model":"gpt","prompt":"\"model\": 1"}',
            rb'{"model":"org/m","prompt":"\"model\": 1"}',
        ),
    ],
)
def test_a_model_is_replaced_in_place(raw: bytes, expected: bytes) -> None:
    found = read(COMPLETIONS, raw)
    alias = found.model
    facts.set_model(found, "org/m")
    assert found.raw == expected
    assert (found.alias, found.model, found.body["model"]) == (alias, "org/m", "org/m")


@given(bodies, st.sampled_from(["m", "org/m", '"', "\u00e9"]))
def test_only_the_model_changes_in_any_spelling(text: str, model: str) -> None:
    raw = text.encode()
    try:
        found = read(COMPLETIONS, raw)
    except BadRequest:
        return
    if found.model is None:
        return
    body = {**found.body, "model": model}
    facts.set_model(found, model)
    assert orjson.loads(found.raw) == found.body == body


@pytest.mark.parametrize(
    "raw",
    [
        b'{"metadata":{"model":"x"},"model":"gpt"}',
        b'{"model":"a","model":"gpt"}',
        rb'{"mod\u0065l":"gpt","metadata":{"model":"x"}}',
        rb'{"model":"gpt","prompt":"\u4f60"}',
    ],
)
def test_where_its_place_is_not_certain_the_body_is_written_again(raw: bytes) -> None:
    found = read(COMPLETIONS, raw)
    facts.set_model(found, "m")
    assert orjson.loads(found.raw) == {**orjson.loads(raw), "model": "m"}


def test_the_model_of_a_long_view_is_replaced() -> None:
    found = facts.read(ROUTES[COMPLETIONS], JSON, memoryview(LONG + b"}"))
    facts.set_model(found, "other")
    assert (found.lead, found.raw) == ((), (LONG + b"}").replace(b'"m"', b'"other"'))


def test_a_body_read_elsewhere_gets_a_last_member() -> None:
    raw = b'{"model":"gpt","prompt":"x"}'
    route = ROUTES[COMPLETIONS]
    digest = large_body.digest(route, JSON, raw, 0)
    assert digest.prefill is not None
    prefill = (digest.prefill[:5], digest.prefill[5:])
    found = large_body.facts_of(route, b"", digest.summary, (raw[:5], raw[5:]), prefill)
    facts.set_model(found, "m")
    assert model_of(b"".join((*found.lead, found.raw))) == "m"
    assert model_of(b"".join(found.prefill)) == "m"
    without = large_body.facts_of(route, b"", digest.summary, (raw,), ())
    facts.set_model(without, "m")
    assert (model_of(without.raw), without.prefill) == ("m", ())


def test_the_model_of_a_route_without_a_prompt_is_replaced() -> None:
    for raw in (b'{"model":"gpt","input":"x"}', b'{"model":"gpt","input":{"model":"x"}}'):
        found = read(EMBEDDINGS, raw)
        facts.set_model(found, "m")
        assert orjson.loads(found.raw) == {**orjson.loads(raw), "model": "m"}


def test_a_form_cannot_name_an_alias() -> None:
    found = read(TRANSCRIPTIONS, b"--b\r\n", b"multipart/form-data; boundary=b")
    with pytest.raises(BadRequest):
        facts.set_model(found, "m")
