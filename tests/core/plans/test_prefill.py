"""The prefill leg: its body, and the choice of the next engine."""

import json
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import BadRequest
from router.core.events import FellBack
from router.core.plans.prefill import body_for_prefill, prefill
from router.core.plans.steps import Call, Lease, Release, Step
from router.core.request_facts import Facts
from router.core.values import Failure, FailureKind, Reply, Role
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NO_ENGINE,
    P0,
    P1,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    changed,
    read,
    reply,
    request,
)
from tests.core.json_texts import objects

FACTS = request(prompt="Hello")


# The leg: choice of the engine, and requests without a prefill.


class Leg:
    """A prefill leg, step by step, and the reply that it ends with."""

    def __init__(self) -> None:
        self._leg: Generator[Step, Any, Reply | None] = prefill(FACTS, b"{}")
        self.result: Reply | None = None
        self.is_over = False

    def says(self, answer: object = None) -> Step | None:
        """The next step after an answer; None at the end."""
        try:
            if isinstance(answer, Exception):
                return self._leg.throw(answer)
            return self._leg.send(answer)
        except StopIteration as end:
            self.result, self.is_over = end.value, True
            return None


CALL_0 = Call(P0, COMPLETIONS, b"{}")
CALL_1 = Call(P1, COMPLETIONS, b"{}")


def test_a_good_reply_ends_the_leg_and_its_lease() -> None:
    leg, good = Leg(), reply(200, b"{}")
    assert leg.says() == Lease(Role.PREFILL)
    assert leg.says(P0) == CALL_0
    assert leg.says(good) == Release(P0)
    assert leg.says() is None
    assert leg.result is good


@pytest.mark.parametrize("status", [200, 400, 499])
def test_a_reply_below_500_is_final(status: int) -> None:
    leg, final = Leg(), reply(status)
    leg.says()
    leg.says(P0)
    assert leg.says(final) == Release(P0)
    assert leg.says() is None
    assert leg.result is final


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (reply(500), "status_5xx"),
        (reply(599), "status_5xx"),
        (reply(404), "status_4xx"),
        (reply(429), "busy"),
        (reply(503), "busy"),
        (REFUSED, "refused"),
        (RESET, "reset"),
        (SILENT, "timeout"),
    ],
)
def test_a_failure_is_recorded_and_another_engine_is_tried(
    outcome: Reply | Failure, reason: str
) -> None:
    leg = Leg()
    leg.says()
    leg.says(P0)
    assert leg.says(outcome) == Release(P0)
    assert leg.says() == FellBack(Role.PREFILL, reason)
    assert leg.says() == Lease(Role.PREFILL, frozenset({P0}))
    assert leg.says(P1) == CALL_1


def test_a_reply_without_room_is_not_requested_from_another_engine() -> None:
    leg = Leg()
    leg.says()
    leg.says(P0)
    assert leg.says(Failure(FailureKind.NO_ROOM, "x")) == Release(P0)
    assert leg.says() == FellBack(Role.PREFILL, "no_room")
    assert leg.says() is None
    assert leg.is_over
    assert leg.result is None


def test_at_most_two_engines_are_tried() -> None:
    leg = Leg()
    assert leg.says() == Lease(Role.PREFILL)
    for engine, following in ((P0, Lease(Role.PREFILL, frozenset({P0}))), (P1, None)):
        leg.says(engine)
        leg.says(REFUSED)
        assert leg.says() == FellBack(Role.PREFILL, "refused")
        assert leg.says() == following
    assert leg.is_over
    assert leg.result is None


def test_without_an_engine_the_decode_engine_must_do_without_and_that_is_recorded() -> None:
    leg = Leg()
    leg.says()
    assert leg.says(NO_ENGINE) == FellBack(Role.PREFILL, "no_prefill_engine")
    assert leg.says() is None
    assert leg.result is None


def test_a_failure_with_no_engine_left_is_recorded_once() -> None:
    leg = Leg()
    leg.says()
    leg.says(P0)
    leg.says(REFUSED)
    assert leg.says() == FellBack(Role.PREFILL, "refused")
    leg.says()
    assert leg.says(NO_ENGINE) is None
    assert leg.is_over


# The body.


def asked(facts: Facts) -> dict[str, Any]:
    """The prefill request's body, as an engine reads it: vLLM with the json module."""
    body = body_for_prefill(facts)
    assert body is not None
    read_body: dict[str, Any] = json.loads(body)
    return read_body


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, MESSAGES])
def test_one_token_is_requested(path: str) -> None:
    assert asked(request(path, max_tokens=100))["max_tokens"] == 1
    assert asked(request(path))["max_tokens"] == 1


def test_token_ids_have_their_limit_among_the_sampling_parameters() -> None:
    sampling = {"max_tokens": 9, "min_tokens": 3, "stop": ["x"], "n": 1, "seed": 7}
    facts = request(
        "/inference/v1/generate",
        token_ids=[1, 2],
        sampling_params=sampling,
        stream=True,
        stream_options={"include_usage": True},
        output_mode="text",
    )
    assert asked(facts) == {
        "token_ids": [1, 2],
        "sampling_params": {"max_tokens": 1, "n": 1, "seed": 7, "ignore_eos": True},
        "stream": False,
    }


@pytest.mark.parametrize("sampling", [None, [1], "x"])
def test_sampling_parameters_of_another_type_stay(sampling: object) -> None:
    facts = request("/inference/v1/generate", token_ids=[1], sampling_params=sampling)
    assert asked(facts) == {"token_ids": [1], "sampling_params": sampling, "stream": False}


def test_responses_spells_the_limit_differently() -> None:
    body = asked(request(RESPONSES, max_output_tokens=100))
    assert body["max_output_tokens"] == 1
    assert "max_tokens" not in body


def test_chats_other_limit_is_set_only_where_the_client_set_it() -> None:
    assert asked(request(CHAT, max_completion_tokens=9))["max_completion_tokens"] == 1
    assert "max_completion_tokens" not in asked(request(CHAT))


@pytest.mark.parametrize(
    "member",
    [
        {"stream_options": {"include_usage": True}},
        {"min_tokens": 5},
        {"min_completion_tokens": 5},
        {"stop": ["\n"]},
        {"stop_token_ids": [2]},
        {"stop_sequences": ["\n"]},
        {"best_of": 1},
    ],
)
def test_options_that_could_prevent_one_token_are_dropped(member: dict[str, Any]) -> None:
    assert asked(request(**member)) == asked(request())


def test_only_the_length_may_end_it() -> None:
    body = asked(request(ignore_eos=False))
    assert body["ignore_eos"] is True


@pytest.mark.parametrize("stream", [True, False, None])
def test_the_reply_comes_in_one_piece(stream: bool | None) -> None:
    assert asked(request(stream=stream))["stream"] is False


def test_one_answer_is_requested_if_the_client_set_n() -> None:
    assert asked(request(n=1))["n"] == 1
    assert asked(request(n=None))["n"] == 1
    assert "n" not in asked(request())


def test_all_that_makes_the_prompt_stays() -> None:
    prompt = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
        "cache_salt": "salt",
        "unknown": {"to": ["the", "router"]},
    }
    body = asked(request(CHAT, **prompt))
    assert {key: body[key] for key in prompt} == prompt


def test_the_clients_body_is_not_changed() -> None:
    facts = request(CHAT, n=1, stop="x", max_tokens=7)
    before = dict(facts.body)
    asked(facts)
    assert facts.body == before


def test_nothing_is_kept_of_one_token() -> None:
    assert asked(request(CHAT, messages=[], store=True))["store"] is False
    assert "store" not in asked(request(CHAT, messages=[]))


@pytest.mark.parametrize("store", [{}, {"store": True}, {"store": None}, {"store": False}])
def test_a_response_is_stored_by_default(store: dict[str, Any]) -> None:
    assert asked(request(RESPONSES, input="x", **store))["store"] is False


THINKING = {"type": "enabled", "budget_tokens": 2048}


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive"}, None, "enabled"])
def test_a_reasoning_budget_is_dropped_because_it_exceeds_one_token(thinking: object) -> None:
    assert "thinking" not in asked(request(MESSAGES, messages=[], thinking=THINKING))
    assert asked(request(MESSAGES, messages=[], thinking=thinking))["thinking"] == thinking
    assert asked(request(CHAT, messages=[], thinking=THINKING))["thinking"] == THINKING


def test_a_reasoning_budget_stays_if_kv_parameters_mark_a_prefill() -> None:
    facts = request(MESSAGES, messages=[], thinking=THINKING)
    body = body_for_prefill(facts, kv_transfer_params={"do_remote_decode": True})
    assert body is not None
    assert json.loads(body)["thinking"] == THINKING


WRITTEN = {"max_tokens", "max_completion_tokens", "n", "store", "ignore_eos"}
WRITTEN |= {"stream", "stream_options", "min_tokens", "min_completion_tokens", "stop", "best_of"}
WRITTEN |= {"stop_token_ids", "stop_sequences", "max_output_tokens"}
"""Members that the prefill request has or lacks for reasons of its own."""


def kept(body: dict[str, Any]) -> str:
    """All others, in a notation that separates 1 from 1.0 and has every digit."""
    return json.dumps({name: value for name, value in body.items() if name not in WRITTEN})


UINT256 = 2**256 - 1


@pytest.mark.parametrize(
    "number",
    [
        *("18446744073709551615", "18446744073709551616", "-9223372036854775808"),
        *("-9223372036854775809", "9999999999999999999", "-0", "-0.0", "1.0", "1E5", "1e-400"),
        *("1e16", "0.1", "123456789012345678901234567890.5", "5e-324", str(UINT256)),
        *(f'"{UINT256}"', '"\\ud83d\\ude00 \u00e9 12345678901234567890"'),
    ],
)
def test_both_engines_read_the_same_number(number: str) -> None:
    raw = f'{{"messages":[],"tools":[{{"maximum":{number}}}],"n":1}}'.encode()
    assert kept(asked(read(CHAT, raw))) == kept(json.loads(raw))


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("number", ["-9223372036854775809", "18446744073709551616"])
def test_a_long_integer_is_found_at_every_position(number: str, place: int) -> None:
    raw = f'{{"a":"{"x" * place}","b":{number}}}'.encode()
    assert asked(read(CHAT, raw))["b"] == int(number)


def test_a_long_integer_is_found_where_pieces_meet() -> None:
    whole = read(COMPLETIONS, b'{"prompt":"x","a":{"b":%d}}' % UINT256)
    facts = changed(whole, lead=(memoryview(whole.raw[:-40]),), raw=whole.raw[-40:])
    assert asked(facts)["a"] == {"b": UINT256}


@given(objects, st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES]))
def test_both_engines_read_the_same_prompt_whatever_it_holds(document: str, path: str) -> None:
    try:
        facts = read(path, document.encode())
    except BadRequest:
        return
    assert kept(asked(facts)) == kept(json.loads(facts.raw))


def test_members_are_added_to_a_body_with_long_integers() -> None:
    facts = read(CHAT, b'{"seed":%d}' % UINT256)
    body = body_for_prefill(facts, kv_transfer_params={"do_remote_decode": True})
    assert body is not None
    assert json.loads(body)["kv_transfer_params"] == {"do_remote_decode": True}


def nested(number: int) -> Facts:
    return read(CHAT, b'{"a":' + b"[" * 1000 + b"%d" % number + b"]" * 1000 + b"}")


def test_deeply_nested_values_are_not_written() -> None:
    assert body_for_prefill(nested(1)) is None


def test_a_long_integer_that_is_nested_deeply_is_exact_where_it_is_written() -> None:
    body = body_for_prefill(nested(UINT256))  # from Python 3.12 on it is
    assert body is None or b"[%d]" % UINT256 in body
