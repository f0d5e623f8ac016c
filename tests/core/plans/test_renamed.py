"""Answers to a request for an alias name it, and the dialogue of the plan stays the same."""

import pytest

from router.core.errors import NoEngine
from router.core.plans.direct import direct
from router.core.plans.renamed import Renamed, renamed
from router.core.plans.steps import Lease, Plan, Send, Stream
from router.core.values import Reply, Role
from tests.core.fixtures import D0, NO_ENGINE, request

FACTS = request(prompt="Hello", model="org/m")
JSON_HEADERS = ((b"content-type", b"application/json"),)


def test_a_stream_gets_the_splice_and_keeps_its_other_members() -> None:
    members = ("/v1/completions", b"body", frozenset({503}), True, False, None, (b"lead",), True)

    def plan() -> Plan:
        yield Stream(D0, *members)

    step = next(renamed(plan(), FACTS, "gpt"))
    assert isinstance(step, Stream)
    assert isinstance(step.splice, Renamed)
    step.splice = None
    assert step == Stream(D0, *members)


def test_other_steps_and_their_answers_pass() -> None:
    plan, own = renamed(direct(FACTS), FACTS, "gpt"), direct(FACTS)
    assert next(plan) == next(own) == Lease(Role.DECODE)
    assert isinstance(plan.send(D0), Stream)
    with pytest.raises(StopIteration):
        plan.send(None)


def test_errors_reach_the_plan() -> None:
    plan = renamed(direct(FACTS), FACTS, "gpt")
    next(plan)
    with pytest.raises(NoEngine):
        plan.throw(NO_ENGINE)


def test_a_reply_in_memory_is_renamed() -> None:
    def plan() -> Plan:
        yield Send(Reply(400, JSON_HEADERS, b'{"model":"org/m"}'))

    sent = next(renamed(plan(), FACTS, "gpt"))
    assert sent == Send(Reply(400, JSON_HEADERS, b'{"model":"gpt"}'))


def test_a_closed_plan_closes_the_inner_one() -> None:
    inner = direct(FACTS)
    plan = renamed(inner, FACTS, "gpt")
    next(plan)
    plan.close()
    with pytest.raises(StopIteration):
        next(inner)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"id":1,"model":"org/m","x":2}', b'{"id":1,"model":"gpt","x":2}'),
        (b'data: {"model": "org/m"}\n\n' * 2, b'data: {"model": "gpt"}\n\n' * 2),
        (rb'{"text":"\"model\":\"org/m\""}', rb'{"text":"\"model\":\"org/m\""}'),
        (b'{"model":"org/m2"}', b'{"model":"org/m2"}'),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
    ],
)
def test_only_the_member_is_renamed(data: bytes, expected: bytes) -> None:
    splice = Renamed("org/m", "gpt")
    assert splice.body(data) == splice.events(data) == expected


class Marks:
    """Another splice."""

    def events(self, data: bytes) -> bytes:
        return data.replace(b"1", b"2")

    body = events


def test_another_splice_goes_first() -> None:
    splice = Renamed("m2", "gpt", Marks())
    assert splice.events(b'data: {"model":"m1"}\n\n') == b'data: {"model":"gpt"}\n\n'
    assert splice.body(b'{"model":"m1"}') == b'{"model":"gpt"}'
