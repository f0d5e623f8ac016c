"""Failures of a decode leg that has a KV reference, here NIXL's.

A KV reference may reach one decode engine once. After a decode engine may have seen it, the next
one needs a new prefill or computes the prompt itself.
"""

from dataclasses import replace

import pytest

from router.core.errors import EngineFailed, EngineTimedOut
from router.core.events import FellBack
from router.core.plans.nixl import nixl
from router.core.plans.splices import PrefillSplice
from router.core.plans.steps import Check, Lease, Release, Retry, Send
from router.core.values import Failure, Reply, Role
from tests.core.fixtures import (
    BROKEN,
    BUSY,
    CHAT,
    D0,
    D1,
    D2,
    LOAD_FAILED,
    NO_ENGINE,
    P0,
    P1,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    read,
    reply,
    request,
)
from tests.core.plans.conversation import END, Converse, Raises
from tests.core.plans.nixl_dialogue import (
    REFERENCE,
    REFERENCE_2,
    after_failed_load,
    after_prefill,
    computes,
    decodes,
    prefilled,
    prefills,
)


def test_a_refused_reference_is_unused_and_goes_to_the_next_engine(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), REFUSED)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << FellBack(Role.DECODE, "refused")
        << (decodes(D1), REFUSED)
        << Release(D1)
        << (Lease(Role.DECODE, frozenset({D0, D1}), computes=False), D2)
        << FellBack(Role.DECODE, "refused")
        << (decodes(D2), None)
        << END
    )


def test_the_last_prefill_determines_the_cached_tokens(converse: Converse) -> None:
    """The second one finds in its cache what it computed for the load that failed."""
    last = prefilled(
        REFERENCE_2, b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}'
    )
    decode = replace(decodes(D0, REFERENCE_2), splice=PrefillSplice(8))
    (
        after_failed_load(converse)
        >> last
        << Release(P1)
        << (Lease(Role.DECODE, computes=False), D0)
        << (decode, None)
        << END
    )


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(RESET, "reset"), (BROKEN, "broken"), (BUSY, "busy"), (reply(502), "status_5xx")],
)
def test_a_reference_that_may_have_been_seen_is_spent(
    converse: Converse, outcome: Reply | Failure, reason: str
) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), outcome)
        << Release(D0)
        << (Check(Role.DECODE, frozenset({D0})), None)
        << FellBack(Role.DECODE, reason)
        << (Lease(Role.PREFILL), P1)
        << (prefills(P1), prefilled(REFERENCE_2))
        << Release(P1)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << (decodes(D1, REFERENCE_2), None)
        << END
    )


def test_spent_reference_without_new_one_is_left_to_decode(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), RESET)
        << Release(D0)
        << (Check(Role.DECODE, frozenset({D0})), None)
        << FellBack(Role.DECODE, "reset")
        << (Lease(Role.PREFILL), NO_ENGINE)
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << (Lease(Role.DECODE, frozenset({D0})), D1)
        << (computes(D1), None)
        << END
    )


def test_two_spent_references_are_enough(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), RESET)
        << Release(D0)
        << (Check(Role.DECODE, frozenset({D0})), None)
        << FellBack(Role.DECODE, "reset")
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0), prefilled(REFERENCE_2))
        << Release(P0)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << (decodes(D1, REFERENCE_2), RESET)
        << Release(D1)
        << (Check(Role.DECODE, frozenset({D0, D1})), None)
        << FellBack(Role.DECODE, "reset")
        << (Lease(Role.DECODE, frozenset({D0, D1})), D2)
        << (computes(D2), None)
        << END
    )


def test_failed_kv_load_gets_one_more_prefill(converse: Converse) -> None:
    (
        after_failed_load(converse)
        >> prefilled(REFERENCE_2)
        << Release(P1)
        << (Lease(Role.DECODE, computes=False), D0)
        << (decodes(D0, REFERENCE_2), None)
        << END
    )


def test_a_second_failed_kv_load_leaves_it_to_the_decode_engine(converse: Converse) -> None:
    (
        after_failed_load(converse)
        >> prefilled(REFERENCE_2)
        << Release(P1)
        << (Lease(Role.DECODE, computes=False), D0)
        << (decodes(D0, REFERENCE_2), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.DECODE), D0)
        << (computes(D0), None)
        << END
    )


def test_without_a_retry_left_a_failed_kv_load_is_the_clients_answer(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), False)
        << Send(LOAD_FAILED)
        << END
    )


def test_a_silent_decode_engine_ends_the_request(converse: Converse) -> None:
    after_prefill(converse) << decodes(D0) >> SILENT << Raises(EngineTimedOut, "sent nothing")


def test_a_stored_response_is_not_decoded_twice(converse: Converse) -> None:
    stored = request(RESPONSES, input="Hello", store=True)
    plan = nixl(stored)
    for answer in (None, None, P0, prefilled(REFERENCE), None, D0):
        plan.send(answer)
    with pytest.raises(EngineFailed, match="reset"):
        plan.send(RESET)


def test_with_no_other_decode_engine_the_client_gets_the_engines_503(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), BUSY)
        << Release(D0)
        << (Check(Role.DECODE, frozenset({D0})), NO_ENGINE)
        << Send(BUSY)
        << END
    )


def test_with_no_other_decode_engine_a_refusal_becomes_a_502(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), REFUSED)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), NO_ENGINE)
        << Raises(EngineFailed, "connection refused")
    )


def test_a_refusing_engine_is_not_tried_again_after_a_reset(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), REFUSED)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << FellBack(Role.DECODE, "refused")
        << (decodes(D1), RESET)
        << Release(D1)
        << (Check(Role.DECODE, frozenset({D0, D1})), NO_ENGINE)
        << Raises(EngineFailed, "reset")
    )


def test_the_third_refusal_is_the_clients_answer(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), REFUSED)
        << Release(D0)
        << (Lease(Role.DECODE, frozenset({D0}), computes=False), D1)
        << FellBack(Role.DECODE, "refused")
        << (decodes(D1), REFUSED)
        << Release(D1)
        << (Lease(Role.DECODE, frozenset({D0, D1}), computes=False), D2)
        << FellBack(Role.DECODE, "refused")
        << (decodes(D2), REFUSED)
        << Raises(EngineFailed, "connection refused")
    )


def test_failed_loads_count_as_attempts(converse: Converse) -> None:
    (
        after_prefill(converse)
        << (decodes(D0), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0), prefilled(REFERENCE_2))
        << Release(P0)
        << (Lease(Role.DECODE, computes=False), D1)
        << (decodes(D1, REFERENCE_2), LOAD_FAILED)
        << Release(D1)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.DECODE), D2)
        << (computes(D2), RESET)
        << Raises(EngineFailed, "reset")
    )


@pytest.mark.parametrize("status", [400, 404, 501])
def test_other_error_event_is_the_clients_answer(converse: Converse, status: int) -> None:
    after_prefill(converse) << decodes(D0) >> reply(status) << Send(reply(status)) << END


def test_a_body_nested_too_deeply_to_be_rewritten_goes_to_the_decode_engine(
    converse: Converse,
) -> None:
    deep = read(CHAT, b'{"metadata":' + b"[" * 300 + b"]" * 300 + b"}")
    (
        converse(nixl(deep))
        << (Check(Role.DECODE), None)
        << FellBack(Role.PREFILL, "nested_too_deep")
        << (Lease(Role.DECODE), D0)
        << (computes(D0, deep), None)
        << END
    )
