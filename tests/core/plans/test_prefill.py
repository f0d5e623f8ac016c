"""The prefill leg: the body that is asked, and which engine is asked next."""

from collections.abc import Generator
from typing import Any

import pytest

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.prefill import body_for_prefill, prefill
from router.core.plans.steps import Call, Lease, Release, Step
from router.core.values import Failure, Reply, Role
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    P0,
    P1,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    reply,
    request,
)

NO_ENGINE = NoEngine("no prefill engine")
FACTS = request(prompt="Hello")


# The leg: which engine is asked, and when to do without.


class Leg:
    """A prefill leg, step by step, and the reply that it ends with."""

    def __init__(self) -> None:
        self._leg: Generator[Step, Any, Reply | None] = prefill(FACTS, FACTS.path, b"{}")
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


@pytest.mark.parametrize("status", [200, 400, 404, 499])
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
        (reply(429), "busy"),
        (reply(503), "busy"),
        (REFUSED, "refused"),
        (RESET, "reset"),
        (SILENT, "timeout"),
    ],
)
def test_a_failure_is_recorded_and_another_engine_asked(
    outcome: Reply | Failure, reason: str
) -> None:
    leg = Leg()
    leg.says()
    leg.says(P0)
    assert leg.says(outcome) == Release(P0)
    assert leg.says() == FellBack(Role.PREFILL, reason)
    assert leg.says() == Lease(Role.PREFILL, frozenset({P0}))
    assert leg.says(P1) == CALL_1


def test_two_engines_are_asked_and_no_more() -> None:
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


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, MESSAGES])
def test_one_token_is_asked_for(path: str) -> None:
    assert body_for_prefill(request(path, max_tokens=100))["max_tokens"] == 1
    assert body_for_prefill(request(path))["max_tokens"] == 1


def test_responses_spells_the_limit_differently() -> None:
    body = body_for_prefill(request(RESPONSES, max_output_tokens=100))
    assert body["max_output_tokens"] == 1
    assert "max_tokens" not in body


def test_chats_other_limit_is_set_only_where_the_client_set_it() -> None:
    assert body_for_prefill(request(CHAT, max_completion_tokens=9))["max_completion_tokens"] == 1
    assert "max_completion_tokens" not in body_for_prefill(request(CHAT))


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
def test_what_could_end_or_forbid_one_token_is_dropped(member: dict[str, Any]) -> None:
    assert body_for_prefill(request(**member)) == body_for_prefill(request())


def test_only_the_length_may_end_it() -> None:
    body = body_for_prefill(request(ignore_eos=False))
    assert body["ignore_eos"] is True


@pytest.mark.parametrize("stream", [True, False, None])
def test_the_reply_comes_in_one_piece(stream: bool | None) -> None:
    assert body_for_prefill(request(stream=stream))["stream"] is False


def test_one_answer_is_asked_for_where_the_client_named_a_number() -> None:
    assert body_for_prefill(request(n=1))["n"] == 1
    assert body_for_prefill(request(n=None))["n"] == 1
    assert "n" not in body_for_prefill(request())


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("required", "none"),
        ("any", "none"),
        ({"type": "function", "function": {"name": "f"}}, "none"),
        ({"type": "any"}, {"type": "none"}),
        ({"type": "tool", "name": "f"}, {"type": "none"}),
        ("auto", "auto"),
        ("none", "none"),
        ({"type": "auto"}, {"type": "auto"}),
        ({"type": "none"}, {"type": "none"}),
        (None, None),
        (7, 7),
    ],
)
def test_no_tool_is_forced_upon_one_token(given: object, asked: object) -> None:
    assert body_for_prefill(request(CHAT, tool_choice=given))["tool_choice"] == asked


def test_no_tool_choice_is_invented() -> None:
    assert "tool_choice" not in body_for_prefill(request(CHAT))


def test_all_that_makes_the_prompt_stays() -> None:
    prompt = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"enable_thinking": False},
        "cache_salt": "salt",
        "unknown": {"to": ["the", "router"]},
    }
    body = body_for_prefill(request(CHAT, **prompt))
    assert {key: body[key] for key in prompt} == prompt


def test_the_clients_body_is_not_changed() -> None:
    facts = request(CHAT, n=1, stop="x", max_tokens=7, tool_choice="required")
    before = dict(facts.body)
    body_for_prefill(facts)
    assert facts.body == before


def test_nothing_is_kept_of_one_token() -> None:
    assert body_for_prefill(request(RESPONSES, input="x", store=True))["store"] is False
    assert "store" not in body_for_prefill(request(RESPONSES, input="x"))
