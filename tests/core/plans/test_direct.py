"""The dialogues of the direct plan: one decode engine, or the next one where that is safe."""

from dataclasses import replace

import pytest

from router.core.errors import EngineFailed, EngineTimedOut, NoEngine
from router.core.events import FellBack
from router.core.plans.direct import decode_directly, direct
from router.core.plans.steps import Lease, Release, Send, Stream
from router.core.request_facts import Facts
from router.core.values import Endpoint, Failure, Reply, Role
from tests.core.fixtures import (
    BROKEN,
    BUSY,
    D0,
    D1,
    D2,
    KEPT,
    LOAD_FAILED,
    NO_ENGINE,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    request,
)
from tests.core.plans.conversation import END, Converse, Raises

FACTS = request(prompt="Hello", model="tiny")


def asks(endpoint: Endpoint, facts: Facts = FACTS) -> Stream:
    """The client's own body, with the answer passed on unless its engine failed or is busy."""
    return Stream(endpoint, facts.path, facts.raw, keep=KEPT)


def test_one_engine_answers_and_that_is_all(converse: Converse) -> None:
    converse(direct(FACTS)) << Lease(Role.DECODE) >> D0 << asks(D0) >> None << END


def test_without_an_engine_the_client_gets_the_503(converse: Converse) -> None:
    converse(direct(FACTS)) << Lease(Role.DECODE) >> NO_ENGINE << Raises(NoEngine)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        *[(REFUSED, "refused"), (RESET, "reset"), (BROKEN, "broken"), (BUSY, "busy")],
        (LOAD_FAILED, "status_5xx"),
    ],
)
def test_rejected_requests_move_to_another_engine(
    converse: Converse, outcome: Reply | Failure, reason: str
) -> None:
    (
        converse(direct(FACTS))
        << (Lease(Role.DECODE), D0)
        << (asks(D0), outcome)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << FellBack(Role.DECODE, reason)
        << (asks(D1), None)
        << END
    )


def test_a_silent_engine_is_not_followed_by_another(converse: Converse) -> None:
    (
        converse(direct(FACTS))
        << (Lease(Role.DECODE), D0)
        << (asks(D0), SILENT)
        << Raises(EngineTimedOut, "sent nothing")
    )


def test_stored_response_is_not_retried_after_a_reset(converse: Converse) -> None:
    stored = request(RESPONSES, input="Hello", store=True)
    (
        converse(direct(stored))
        << (Lease(Role.DECODE), D0)
        << (replace(asks(D0, stored), replay=False), RESET)
        << Raises(EngineFailed, "reset")
    )


def test_three_engines_are_tried_and_no_more(converse: Converse) -> None:
    (
        converse(direct(FACTS))
        << (Lease(Role.DECODE), D0)
        << (asks(D0), RESET)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << FellBack(Role.DECODE, "reset")
        << (asks(D1), RESET)
        << Release(D1)
        << (Lease(Role.DECODE, frozenset({D0, D1})), D2)
        << FellBack(Role.DECODE, "reset")
        << (asks(D2), RESET)
        << Raises(EngineFailed)
    )


def test_with_no_other_engine_the_client_gets_the_engines_own_503(converse: Converse) -> None:
    (
        converse(direct(FACTS))
        << (Lease(Role.DECODE), D0)
        << (asks(D0), BUSY)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), NO_ENGINE)
        << Send(BUSY)
        << END
    )


def test_with_no_other_engine_a_refusal_becomes_a_502(converse: Converse) -> None:
    (
        converse(direct(FACTS))
        << (Lease(Role.DECODE), D0)
        << (asks(D0), REFUSED)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0})), NO_ENGINE)
        << Raises(EngineFailed, "connection refused")
    )


def test_the_query_string_goes_along() -> None:
    facts = Facts(FACTS.route, None, False, 0, "", None, b"{}", query=b"a=1")
    plan = decode_directly(facts, leased=D0)
    step = next(plan)
    assert isinstance(step, Stream)
    assert step.path == "/v1/completions?a=1"


def test_engines_tried_before_are_not_tried_again(converse: Converse) -> None:
    plan = decode_directly(FACTS, frozenset({D0}), D1)
    step = next(plan)
    assert step == asks(D1)
    assert plan.send(REFUSED) == Release(D1)
    assert next(plan) == Lease(Role.DECODE, frozenset({D0, D1}))
    plan.close()
