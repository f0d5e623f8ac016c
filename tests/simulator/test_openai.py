"""Chat and completions over real sockets, against what vLLM 0.32 was recorded to send."""

from typing import Any

import pytest

from router.simulator import EngineConfig, serve_engine
from tests.simulator.talk import MESSAGES, PROMPT, ask, chat, chunks, complete, stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CHAT_KEYS = (
    "id object created model choices service_tier system_fingerprint usage prompt_logprobs"
    " prompt_token_ids prompt_text kv_transfer_params ec_transfer_params metrics"
)
COMPLETION_KEYS = (
    "id object created model choices service_tier system_fingerprint usage kv_transfer_params"
    " ec_transfer_params metrics"
)


class TestShape:
    async def test_a_chat_answer_has_vllms_keys_in_vllms_order(self, client, engine):
        answer = await ask(client, engine, CHAT, messages=MESSAGES, max_tokens=3)
        assert " ".join(answer) == CHAT_KEYS
        (choice,) = answer["choices"]
        assert " ".join(choice) == (
            "index message logprobs finish_reason stop_reason token_ids routed_experts"
        )
        assert " ".join(choice["message"]) == (
            "role content refusal annotations audio function_call reasoning"
        )
        assert answer["id"].startswith("chatcmpl-")
        assert answer["kv_transfer_params"] is None

    async def test_a_completion_has_vllms_keys_in_vllms_order(self, client, engine):
        answer = await ask(client, engine, prompt=PROMPT)
        assert " ".join(answer) == COMPLETION_KEYS
        assert " ".join(answer["choices"][0]) == (
            "index text logprobs finish_reason stop_reason token_ids prompt_logprobs"
            " prompt_token_ids routed_experts"
        )
        assert " ".join(answer["usage"]) == (
            "prompt_tokens total_tokens completion_tokens prompt_tokens_details"
            " completion_tokens_details"
        )

    async def test_a_chat_stream_opens_with_the_role_and_closes_with_done(self, client, engine):
        first, *middle, last = await chunks(client, engine, CHAT, messages=MESSAGES, max_tokens=5)
        assert first["choices"] == [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ]
        assert list(first)[5:] == ["prompt_token_ids", "prompt_text"]
        assert len(middle) == 4
        for chunk in middle:
            assert list(chunk) == ["id", "object", "created", "model", "choices"]
            (choice,) = chunk["choices"]
            assert list(choice) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
        assert " ".join(last["choices"][0]) == (
            "index delta logprobs finish_reason stop_reason token_ids"
        )
        assert "system_fingerprint" in last

    async def test_a_completion_stream_has_no_opening(self, client, engine):
        first, *_, last = await chunks(client, engine, COMPLETIONS, prompt=PROMPT, max_tokens=5)
        assert " ".join(first["choices"][0]) == (
            "index text logprobs finish_reason stop_reason prompt_token_ids token_ids"
        )
        assert first["choices"][0]["text"]
        assert last["choices"][0]["finish_reason"] == "length"

    async def test_usage_comes_in_a_chunk_without_choices_on_request(self, client, engine):
        whole = await ask(client, engine, prompt=PROMPT, max_tokens=5)
        options = {"stream_options": {"include_usage": True}}
        *_, last = await chunks(client, engine, COMPLETIONS, prompt=PROMPT, max_tokens=5, **options)
        assert last["choices"] == []
        count = whole["usage"]["prompt_tokens"]
        assert last["usage"] == {
            "prompt_tokens": count,
            "total_tokens": count + 5,
            "completion_tokens": 5,
        }

    async def test_usage_comes_with_every_chunk_on_request(self, client, engine):
        options = {"include_usage": True, "continuous_usage_stats": True}
        got = await chunks(
            client, engine, COMPLETIONS, prompt=PROMPT, max_tokens=3, stream_options=options
        )
        assert [chunk["usage"]["completion_tokens"] for chunk in got] == [1, 2, 3, 3]

    async def test_the_headers_are_vllms(self, client, engine):
        body = {"prompt": PROMPT, "max_tokens": 2}
        async with client.post(engine.url + COMPLETIONS, json=body) as reply:
            whole = [name.lower() for name in reply.headers]
        async with client.post(engine.url + COMPLETIONS, json={**body, "stream": True}) as reply:
            await reply.read()
            streamed = {name.lower(): value for name, value in reply.headers.items()}
        assert whole == ["date", "server", "content-length", "content-type", "vary"]
        assert streamed["content-type"] == "text/event-stream; charset=utf-8"
        assert streamed["transfer-encoding"] == "chunked"

    async def test_the_request_id_becomes_part_of_the_answers(self, client, engine):
        answer = await ask(client, engine, prompt=PROMPT, headers={"X-Request-Id": "mine"})
        assert answer["id"] == "cmpl-mine"

    async def test_cached_tokens_are_reported_with_the_engines_flag(self, client):
        async with serve_engine(EngineConfig(prompt_tokens_details=True)) as engine:
            first = await ask(client, engine, prompt=PROMPT)
            answer = await ask(client, engine, prompt=PROMPT)
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        size = answer["usage"]["prompt_tokens"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (size - 1) // 16 * 16


class TestText:
    @pytest.mark.parametrize(("path", "rest"), [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {})])
    async def test_streamed_and_whole_answers_are_the_same(self, client, engine, path, rest):
        body = {"prompt": PROMPT, "max_tokens": 200, **rest}
        (whole,) = (await ask(client, engine, path, **body))["choices"]
        parts = [chunk["choices"][0] for chunk in await chunks(client, engine, path, **body)]
        if path == CHAT:
            text = "".join(part["delta"]["content"] for part in parts)
            assert text == whole["message"]["content"]
        else:
            assert "".join(part["text"] for part in parts) == whole["text"]

    async def test_two_engines_give_the_same_text(self, client, engine, decode):
        assert await chat(client, engine) == await chat(client, decode)

    async def test_models_and_prompts_give_different_texts(self, client):
        tools = [{"type": "function", "function": {"name": "f"}}]
        async with serve_engine(EngineConfig(loras=["other"])) as engine:
            texts = {
                await complete(client, engine),
                await complete(client, engine, model="other"),
                await complete(client, engine, prompt=PROMPT[1:]),
                await chat(client, engine),
                await chat(client, engine, messages=MESSAGES[1:]),
                await chat(client, engine, tools=tools, tool_choice="none"),
                await chat(client, engine, chat_template_kwargs={"a": 1}),
            }
        assert len(texts) == 7

    async def test_a_prompt_of_token_ids_is_the_same_as_its_text(self, client, engine):
        tokens = (await ask(client, engine, "/tokenize", prompt=PROMPT))["tokens"]
        assert await complete(client, engine, prompt=tokens) == await complete(client, engine)

    async def test_a_prompt_that_goes_on_with_the_first_token_continues_the_answer(
        self, client, engine
    ):
        ask_ids: dict[str, Any] = {"prompt": PROMPT, "return_token_ids": True}
        (whole,) = (await ask(client, engine, **ask_ids, max_tokens=9))["choices"]
        prompt = whole["prompt_token_ids"] + whole["token_ids"][:1]
        (rest,) = (await ask(client, engine, **{**ask_ids, "prompt": prompt}, max_tokens=8))[
            "choices"
        ]
        assert rest["token_ids"] == whole["token_ids"][1:]

    async def test_tokenize_renders_a_chat_as_the_chat_itself_does(self, client, engine):
        tools = [{"type": "function", "function": {"name": "f"}}]
        tokens = await ask(client, engine, "/tokenize", messages=MESSAGES, tools=tools)
        body: dict[str, Any] = {
            "messages": MESSAGES,
            "tools": tools,
            "max_tokens": 1,
            "return_token_ids": True,
        }
        answer = await ask(client, engine, CHAT, **body)
        assert answer["prompt_token_ids"] == tokens["tokens"]

    async def test_detokenize_undoes_tokenize(self, client, engine):
        tokens = (await ask(client, engine, "/tokenize", prompt="tête-à-tête"))["tokens"]
        assert (await ask(client, engine, "/detokenize", tokens=tokens)) == {
            "prompt": "tête-à-tête"
        }


class TestOptions:
    async def test_a_completion_ends_after_16_tokens_by_default(self, client, engine):
        answer = await ask(client, engine, prompt=PROMPT)
        assert answer["usage"]["completion_tokens"] == 16

    async def test_max_completion_tokens_goes_before_max_tokens_in_a_chat(self, client, engine):
        answer = await ask(
            client, engine, CHAT, messages=MESSAGES, max_tokens=9, max_completion_tokens=4
        )
        assert answer["usage"]["completion_tokens"] == 4

    async def test_a_chat_without_a_limit_goes_on_to_the_end_of_the_context(self, client):
        config = EngineConfig(max_model_len=300, total_blocks=19, eos_one_in=0)
        async with serve_engine(config) as engine:
            answer = await ask(client, engine, CHAT, messages=MESSAGES)
        assert answer["usage"]["total_tokens"] == 300

    async def test_a_marker_in_a_chat_sets_the_end_of_the_answer(self, client, engine):
        messages = [{"role": "user", "content": "<<eos:4>> please"}]
        answer = await ask(client, engine, CHAT, messages=messages)
        assert answer["usage"]["completion_tokens"] == 4
        assert answer["choices"][0]["finish_reason"] == "stop"

    async def test_a_stop_string_ends_the_text_and_frees_the_engine(self, client, engine):
        text = await complete(client, engine, max_tokens=8)
        stop = text[9:12]
        answer = await ask(client, engine, prompt=PROMPT, max_tokens=5000, stop=stop)
        assert answer["choices"][0]["text"] == text[: text.index(stop)]
        assert answer["choices"][0]["stop_reason"] == stop
        assert engine.state["running"] == 0

    async def test_a_stop_string_is_never_streamed_in_part(self, client, engine):
        text = await complete(client, engine, max_tokens=8)
        stop = text[10:16]
        parts = await chunks(client, engine, COMPLETIONS, prompt=PROMPT, max_tokens=99, stop=[stop])
        assert "".join(part["choices"][0]["text"] for part in parts) == text[: text.index(stop)]

    async def test_several_choices_and_prompts_are_numbered(self, client, engine):
        answer = await ask(client, engine, prompt=["one", "two"], n=2, max_tokens=3)
        choices = answer["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        texts = [choice["text"] for choice in choices]
        assert texts[0] == texts[1] != texts[2] == texts[3]
        assert answer["usage"]["completion_tokens"] == 12

    async def test_several_choices_are_streamed_side_by_side(self, client, engine):
        got = await chunks(client, engine, CHAT, messages=MESSAGES, n=2, max_tokens=3)
        roles = [part["choices"][0]["index"] for part in got if "prompt_text" in part]
        assert roles == [0, 1]
        ends = [part for part in got if part["choices"][0]["finish_reason"]]
        assert len(ends) == 2

    async def test_echo_puts_the_prompt_first(self, client, engine):
        answer = await complete(client, engine)
        assert await complete(client, engine, echo=True) == PROMPT + answer
        first, *_ = await chunks(client, engine, COMPLETIONS, prompt=PROMPT, echo=True)
        assert first["choices"][0]["text"].startswith(PROMPT)

    async def test_log_probabilities_come_for_every_token(self, client, engine):
        answer = await ask(
            client, engine, CHAT, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
        )
        content = answer["choices"][0]["logprobs"]["content"]
        assert len(content) == 3
        assert all(len(entry["top_logprobs"]) == 2 for entry in content)
        text = "".join(entry["token"] for entry in content)
        assert text == answer["choices"][0]["message"]["content"]
        answer = await ask(client, engine, prompt=PROMPT, max_tokens=3, logprobs=1)
        logprobs = answer["choices"][0]["logprobs"]
        assert {len(values) for values in logprobs.values()} == {3}

    async def test_a_stream_reports_token_ids_on_request(self, client, engine):
        body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 3, "return_token_ids": True}
        whole = (await ask(client, engine, **body))["choices"][0]
        parts = [chunk["choices"][0] for chunk in await chunks(client, engine, COMPLETIONS, **body)]
        assert [part["token_ids"][0] for part in parts] == whole["token_ids"]
        assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert parts[1]["prompt_token_ids"] is None

    async def test_unknown_fields_are_ignored(self, client, engine):
        assert await complete(client, engine, surprise={"a": 1}) == await complete(client, engine)

    async def test_a_silent_stream_is_kept_alive_by_comments(self, client):
        config = EngineConfig(sse_keep_alive_s=0.005)
        async with serve_engine(config) as engine:
            await engine.set_faults(stall=True)
            body = {"prompt": PROMPT, "max_tokens": 2, "stream": True}
            async with client.post(engine.url + COMPLETIONS, json=body) as reply:
                assert await reply.content.readuntil(b"\n\n") == b": keep-alive\n\n"
                await engine.clear_faults()
                assert (await reply.content.read()).endswith(b"data: [DONE]\n\n")


async def test_done_is_the_last_event_of_a_stream(client, engine):
    events = await stream(client, engine, COMPLETIONS, prompt=PROMPT)
    assert events.index(b"[DONE]") == len(events) - 1
