"""The dialogues of the nixl plan, and what holds for every one of them.

A KV reference may reach one decode engine once. What a decode engine may have seen is spent: the
next one needs a new prefill or none at all.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import EngineFailed, EngineTimedOut, NoEngine, RouterError
from router.core.events import FellBack
from router.core.plans.nixl import nixl
from router.core.plans.steps import Call, Check, Lease, Plan, Release, Retry, Send, Step, Stream
from router.core.retry import ATTEMPTS
from router.core.values import Endpoint, Facts, Failure, Reply, Role
from tests.core.fixtures import (
    BROKEN,
    CHAT,
    D0,
    D1,
    D2,
    D3,
    D4,
    P0,
    P1,
    P2,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    read,
    reply,
    request,
    sample,
)
from tests.core.plans.conversation import END, Books, Conversation, Raises

Converse = Callable[[Plan], Conversation]

RAW = b'{ "model":"tiny", "messages":[{"role":"user","content":"Hello"}], "stream":true }'
FACTS = read(CHAT, RAW)

PREFILL_BODY = (
    b'{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":false,'
    b'"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,'
    b'"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}}'
)

# No JSON parser would give these bytes back: the space, the large integer and the float stay.
REFERENCE = b'{"remote_block_ids": [[18446744073709551617]],"remote_host":"p0","expiry":1.50}'
REFERENCE_2 = b'{"remote_block_ids":[[2]],"remote_host":"p1"}'

NO_ENGINE = NoEngine("no such engine")
BUSY = reply(503, sample("queue_full.json"))
# What the relay makes of an error event that came first, and of a plain 500 alike.
LOAD_FAILED = reply(500, b'{"error":{"message":"Internal server error","code":500}}')


def prefilled(reference: bytes) -> Reply:
    """A prefill engine's reply with a KV reference."""
    return reply(200, b'{"id":"x","choices":[],"kv_transfer_params":%b,"metrics":null}' % reference)


def prefills(endpoint: Endpoint) -> Call:
    """The prefill engine is asked for one token and to keep its blocks."""
    return Call(endpoint, CHAT, PREFILL_BODY)


def decodes(endpoint: Endpoint, reference: bytes = REFERENCE) -> Stream:
    """The decode engine gets the client's bytes with the reference added at their end."""
    body = RAW[:-1] + b',"kv_transfer_params":' + reference + b"}"
    return Stream(endpoint, CHAT, body, keep=frozenset({429, 500, 503}), hold=True, replay=False)


def computes(endpoint: Endpoint, facts: Facts = FACTS) -> Stream:
    """The decode engine gets the client's bytes and computes the prompt itself."""
    return Stream(endpoint, facts.path, facts.raw, keep=frozenset({429, 503}))


def after_prefill(converse: Converse, reference: bytes = REFERENCE) -> Conversation:
    """A conversation up to where the decode engine D0 is to be asked."""
    return (
        converse(nixl(FACTS))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> P0
        << prefills(P0)
        >> prefilled(reference)
        << Release(P0)
        << Lease(Role.DECODE, computes=False)
        >> D0
    )


def after_failed_load(converse: Converse) -> Conversation:
    """A conversation up to where the prompt is prefilled for the second time, for D0."""
    return (
        after_prefill(converse)
        << decodes(D0)
        >> LOAD_FAILED
        << Release(D0)
        << Check(Role.DECODE)
        >> None
        << Retry(Role.DECODE)
        >> True
        << FellBack(Role.DECODE, "kv_load_failed")
        << Lease(Role.PREFILL)
        >> P1
        << prefills(P1)
    )


def test_a_prefill_engine_computes_the_prompt_and_a_decode_engine_answers(
    converse: Converse,
) -> None:
    after_prefill(converse) << decodes(D0) >> None << END


@pytest.mark.parametrize("name", ["prefill_chat.json", "prefill_completions.json"])
def test_a_recorded_reference_goes_on_byte_for_byte(name: str) -> None:
    recorded = sample(name)
    plan = nixl(FACTS)
    for answer in (None, None, P0, reply(200, recorded), None):
        plan.send(answer)
    step = plan.send(D0)
    assert isinstance(step, Stream)
    begin = recorded.index(b'"kv_transfer_params":') + len(b'"kv_transfer_params":')
    end = recorded.index(b',"ec_transfer_params"')
    assert step.body == RAW[:-1] + b',"kv_transfer_params":' + recorded[begin:end] + b"}"
    plan.close()


def test_references_of_engines_with_one_id_are_told_apart() -> None:
    """Data-parallel engines that all call themselves the same: an id is nothing to the router, and
    each reference names its own host."""
    for prefill in (P0, P1):
        plan = nixl(FACTS)
        told = b'{"remote_engine_id":"same","remote_host":"%b"}' % prefill.url.encode()
        for answer in (None, None, prefill, prefilled(told), None):
            plan.send(answer)
        step = plan.send(D0)
        assert isinstance(step, Stream)
        assert step.body == RAW[:-1] + b',"kv_transfer_params":' + told + b"}"
        plan.close()


def test_a_large_body_is_sent_in_pieces(converse: Converse) -> None:
    facts = read(CHAT, RAW)
    facts.lead, facts.raw = (RAW[:9], RAW[9:20]), RAW[20:]
    made = b'{"max_tokens":1}'
    facts.prefill = (made[:5], made[5:])
    ask = b',"kv_transfer_params":' + PREFILL_BODY.partition(b'"kv_transfer_params":')[2]
    decode = RAW[20:-1] + b',"kv_transfer_params":' + REFERENCE + b"}"
    (
        converse(nixl(facts))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> P0
        << Call(P0, CHAT, made[5:-1] + ask, lead=(made[:5],))
        >> prefilled(REFERENCE)
        << Release(P0)
        << Lease(Role.DECODE, computes=False)
        >> D0
        << replace(decodes(D0), body=decode, lead=facts.lead)
        >> BUSY
        << Release(D0)
        << Check(Role.DECODE, frozenset({D0}))
        >> None
        << FellBack(Role.DECODE, "busy")
        << Lease(Role.PREFILL)
        >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Lease(Role.DECODE, frozenset({D0}))
        >> D1
        << replace(computes(D1, facts), lead=facts.lead)
        >> None
        << END
    )


def test_without_a_decode_engine_nothing_is_prefilled(converse: Converse) -> None:
    converse(nixl(FACTS)) << Check(Role.DECODE) >> NO_ENGINE << Raises(NoEngine)


def test_decode_engines_that_went_away_during_the_prefill_are_a_503(converse: Converse) -> None:
    (
        converse(nixl(FACTS))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> P0
        << prefills(P0)
        >> prefilled(REFERENCE)
        << Release(P0)
        << Lease(Role.DECODE, computes=False)
        >> NO_ENGINE
        << Raises(NoEngine)
    )


def test_decode_engines_that_went_away_during_a_failed_prefill_are_a_503(
    converse: Converse,
) -> None:
    (
        converse(nixl(FACTS))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Lease(Role.DECODE)
        >> NO_ENGINE
        << Raises(NoEngine)
    )


def test_decode_engines_that_went_away_after_a_failed_load_are_a_503(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> LOAD_FAILED
        << Release(D0)
        << Check(Role.DECODE)
        >> NO_ENGINE
        << Raises(NoEngine)
    )


# The prefill leg.


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_a_prefill_engine_says_of_a_bad_request_is_passed_on(
    converse: Converse, status: int
) -> None:
    (
        converse(nixl(FACTS))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> P0
        << prefills(P0)
        >> reply(status, b"its words")
        << Release(P0)
        << Send(reply(status, b"its words"))
        << END
    )


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (reply(500), "status_5xx"),
        (BUSY, "busy"),
        (REFUSED, "refused"),
        (RESET, "reset"),
        (BROKEN, "broken"),
        (SILENT, "timeout"),
    ],
)
class TestAPrefillEngineThatFails:
    """It is replaced once; then the decode engine computes the prompt."""

    def test_is_followed_by_another(
        self, converse: Converse, outcome: Reply | Failure, reason: str
    ) -> None:
        (
            converse(nixl(FACTS))
            << Check(Role.DECODE)
            >> None
            << Lease(Role.PREFILL)
            >> P0
            << prefills(P0)
            >> outcome
            << Release(P0)
            << FellBack(Role.PREFILL, reason)
            << Lease(Role.PREFILL, frozenset({P0}))
            >> P1
            << prefills(P1)
            >> prefilled(REFERENCE)
            << Release(P1)
            << Lease(Role.DECODE, computes=False)
            >> D0
            << decodes(D0)
            >> None
            << END
        )

    def test_twice_leaves_it_to_the_decode_engine(
        self, converse: Converse, outcome: Reply | Failure, reason: str
    ) -> None:
        (
            converse(nixl(FACTS))
            << Check(Role.DECODE)
            >> None
            << Lease(Role.PREFILL)
            >> P0
            << prefills(P0)
            >> REFUSED
            << Release(P0)
            << FellBack(Role.PREFILL, "refused")
            << Lease(Role.PREFILL, frozenset({P0}))
            >> P1
            << prefills(P1)
            >> outcome
            << Release(P1)
            << FellBack(Role.PREFILL, reason)
            << Lease(Role.DECODE)
            >> D0
            << computes(D0)
            >> None
            << END
        )

    def test_alone_leaves_it_to_the_decode_engine(
        self, converse: Converse, outcome: Reply | Failure, reason: str
    ) -> None:
        (
            converse(nixl(FACTS))
            << Check(Role.DECODE)
            >> None
            << Lease(Role.PREFILL)
            >> P0
            << prefills(P0)
            >> outcome
            << Release(P0)
            << FellBack(Role.PREFILL, reason)
            << Lease(Role.PREFILL, frozenset({P0}))
            >> NO_ENGINE
            << Lease(Role.DECODE)
            >> D0
            << computes(D0)
            >> None
            << END
        )


def test_without_a_prefill_engine_the_decode_engine_computes_the_prompt(
    converse: Converse,
) -> None:
    (
        converse(nixl(FACTS))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Lease(Role.DECODE)
        >> D0
        << computes(D0)
        >> None
        << END
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"x"}',
        b'{"id":"x","kv_transfer_params":null}',
        b'{"kv_transfer_params":{}}',
        b'{"kv_transfer_params":{ \r\n }}',
        b'{"kv_transfer_params":[1]}',
        b'{"kv_transfer_params":"x"}',
        b'{"kv_transfer_params":7}',
        b'{"kv_transfer_params":{"remote_port":1',
        b'[{"kv_transfer_params":{"remote_port":1}}]',
        b"",
        b"\xff",
        b"data: {}\n\n",
    ],
)
def test_a_reply_without_a_usable_reference_leaves_it_to_the_decode_engine(
    converse: Converse, body: bytes
) -> None:
    (
        converse(nixl(FACTS))
        << Check(Role.DECODE)
        >> None
        << Lease(Role.PREFILL)
        >> P0
        << prefills(P0)
        >> reply(200, body)
        << Release(P0)
        << FellBack(Role.PREFILL, "no_kv_params")
        << Lease(Role.DECODE)
        >> D0
        << computes(D0)
        >> None
        << END
    )


# The decode leg.


def test_a_refused_reference_is_unused_and_goes_to_the_next_engine(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> REFUSED
        << Release(D0)
        << Lease(Role.DECODE, frozenset({D0}), computes=False)
        >> D1
        << FellBack(Role.DECODE, "refused")
        << decodes(D1)
        >> REFUSED
        << Release(D1)
        << Lease(Role.DECODE, frozenset({D0, D1}), computes=False)
        >> D2
        << FellBack(Role.DECODE, "refused")
        << decodes(D2)
        >> None
        << END
    )


@pytest.mark.parametrize(
    ("outcome", "reason"), [(RESET, "reset"), (BROKEN, "broken"), (BUSY, "busy")]
)
def test_a_reference_that_may_have_been_seen_is_spent(
    converse: Converse, outcome: Reply | Failure, reason: str
) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> outcome
        << Release(D0)
        << Check(Role.DECODE, frozenset({D0}))
        >> None
        << FellBack(Role.DECODE, reason)
        << Lease(Role.PREFILL)
        >> P1
        << prefills(P1)
        >> prefilled(REFERENCE_2)
        << Release(P1)
        << Lease(Role.DECODE, frozenset({D0}), computes=False)
        >> D1
        << decodes(D1, REFERENCE_2)
        >> None
        << END
    )


def test_a_spent_reference_and_no_new_one_leave_it_to_the_decode_engine(
    converse: Converse,
) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> RESET
        << Release(D0)
        << Check(Role.DECODE, frozenset({D0}))
        >> None
        << FellBack(Role.DECODE, "reset")
        << Lease(Role.PREFILL)
        >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Lease(Role.DECODE, frozenset({D0}))
        >> D1
        << computes(D1)
        >> None
        << END
    )


def test_two_spent_references_are_enough(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> RESET
        << Release(D0)
        << Check(Role.DECODE, frozenset({D0}))
        >> None
        << FellBack(Role.DECODE, "reset")
        << Lease(Role.PREFILL)
        >> P0
        << prefills(P0)
        >> prefilled(REFERENCE_2)
        << Release(P0)
        << Lease(Role.DECODE, frozenset({D0}), computes=False)
        >> D1
        << decodes(D1, REFERENCE_2)
        >> RESET
        << Release(D1)
        << Check(Role.DECODE, frozenset({D0, D1}))
        >> None
        << FellBack(Role.DECODE, "reset")
        << Lease(Role.DECODE, frozenset({D0, D1}))
        >> D2
        << computes(D2)
        >> None
        << END
    )


def test_a_failed_kv_load_is_worth_one_more_prefill_on_the_same_decode_engine(
    converse: Converse,
) -> None:
    (
        after_failed_load(converse)
        >> prefilled(REFERENCE_2)
        << Release(P1)
        << Lease(Role.DECODE, computes=False)
        >> D0
        << decodes(D0, REFERENCE_2)
        >> None
        << END
    )


def test_a_second_failed_kv_load_leaves_it_to_the_decode_engine(converse: Converse) -> None:
    (
        after_failed_load(converse)
        >> prefilled(REFERENCE_2)
        << Release(P1)
        << Lease(Role.DECODE, computes=False)
        >> D0
        << decodes(D0, REFERENCE_2)
        >> LOAD_FAILED
        << Release(D0)
        << Check(Role.DECODE)
        >> None
        << Retry(Role.DECODE)
        >> True
        << FellBack(Role.DECODE, "kv_load_failed")
        << Lease(Role.DECODE)
        >> D0
        << computes(D0)
        >> None
        << END
    )


def test_without_a_retry_left_a_failed_kv_load_is_the_clients_answer(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> LOAD_FAILED
        << Release(D0)
        << Check(Role.DECODE)
        >> None
        << Retry(Role.DECODE)
        >> False
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
        << decodes(D0)
        >> BUSY
        << Release(D0)
        << Check(Role.DECODE, frozenset({D0}))
        >> NO_ENGINE
        << Send(BUSY)
        << END
    )


def test_with_no_other_decode_engine_a_refusal_becomes_a_502(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> REFUSED
        << Release(D0)
        << Lease(Role.DECODE, frozenset({D0}), computes=False)
        >> NO_ENGINE
        << Raises(EngineFailed, "connection refused")
    )


def test_an_engine_that_refused_is_not_asked_again_after_a_reset(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> REFUSED
        << Release(D0)
        << Lease(Role.DECODE, frozenset({D0}), computes=False)
        >> D1
        << FellBack(Role.DECODE, "refused")
        << decodes(D1)
        >> RESET
        << Release(D1)
        << Check(Role.DECODE, frozenset({D0, D1}))
        >> NO_ENGINE
        << Raises(EngineFailed, "reset")
    )


def test_the_third_refusal_is_the_clients_answer(converse: Converse) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> REFUSED
        << Release(D0)
        << Lease(Role.DECODE, frozenset({D0}), computes=False)
        >> D1
        << FellBack(Role.DECODE, "refused")
        << decodes(D1)
        >> REFUSED
        << Release(D1)
        << Lease(Role.DECODE, frozenset({D0, D1}), computes=False)
        >> D2
        << FellBack(Role.DECODE, "refused")
        << decodes(D2)
        >> REFUSED
        << Raises(EngineFailed, "connection refused")
    )


def test_failed_loads_are_attempts_and_the_engine_that_computes_is_the_last(
    converse: Converse,
) -> None:
    (
        after_prefill(converse)
        << decodes(D0)
        >> LOAD_FAILED
        << Release(D0)
        << Check(Role.DECODE)
        >> None
        << Retry(Role.DECODE)
        >> True
        << FellBack(Role.DECODE, "kv_load_failed")
        << Lease(Role.PREFILL)
        >> P0
        << prefills(P0)
        >> prefilled(REFERENCE_2)
        << Release(P0)
        << Lease(Role.DECODE, computes=False)
        >> D1
        << decodes(D1, REFERENCE_2)
        >> LOAD_FAILED
        << Release(D1)
        << Check(Role.DECODE)
        >> None
        << Retry(Role.DECODE)
        >> True
        << FellBack(Role.DECODE, "kv_load_failed")
        << Lease(Role.DECODE)
        >> D2
        << computes(D2)
        >> RESET
        << Raises(EngineFailed, "reset")
    )


@pytest.mark.parametrize("status", [400, 404, 501])
def test_an_error_event_that_is_no_failed_load_is_the_clients_answer(
    converse: Converse, status: int
) -> None:
    after_prefill(converse) << decodes(D0) >> reply(status) << Send(reply(status)) << END


def test_a_body_too_deep_to_be_written_anew_is_left_to_the_decode_engine(
    converse: Converse,
) -> None:
    deep = read(CHAT, b'{"metadata":' + b"[" * 300 + b"]" * 300 + b"}")
    (
        converse(nixl(deep))
        << Check(Role.DECODE)
        >> None
        << FellBack(Role.PREFILL, "nested_too_deep")
        << Lease(Role.DECODE)
        >> D0
        << computes(D0, deep)
        >> None
        << END
    )


# What holds for every dialogue.

PREFILL_ENGINES = (P0, P1, P2)
DECODE_ENGINES = (D0, D1, D2, D3, D4)
MAX_STEPS = 60
"""Two rounds of two prefill engines and three decode engines take about half of that."""

FAILURES = (REFUSED, RESET, BROKEN, SILENT)
WITHOUT_REFERENCE = (reply(200, b"{}"), reply(400), reply(500))

Choose = Callable[[Sequence[object], str], object]
"""Picks one of several answers; the text says to what."""


class Shell(Books):
    """Answers a plan's steps as `choose` likes, and watches what the plan does."""

    def __init__(self, choose: Choose, prefills: int, decodes: int) -> None:
        super().__init__()
        self._choose = choose
        self._engines = {
            Role.PREFILL: PREFILL_ENGINES[:prefills],
            Role.DECODE: DECODE_ENGINES[:decodes],
        }
        self._references = 0
        self._spent: set[bytes] = set()
        self._excluded: frozenset[Endpoint] = frozenset()
        self._may_have_seen: set[Endpoint] = set()
        self._has_refused: set[Endpoint] = set()
        self._computes = True

    def play(self, plan: Plan) -> None:
        """Run the plan to its end, keeping the books."""
        try:
            step = next(plan)
            for _ in range(MAX_STEPS):
                self.check(step)
                answer = self._answer_to(step)
                self.answer(step, answer)
                step = plan.throw(answer) if isinstance(answer, NoEngine) else plan.send(answer)
        except (StopIteration, RouterError):
            self.check_end()
            assert len(self._may_have_seen) <= ATTEMPTS, "a deadly request meets too many engines"
            assert len(self._has_refused) <= ATTEMPTS, "a client waits for too many engines"
            assert self._references <= 4, "the prompt is prefilled too often"
        else:
            raise AssertionError(f"not over after {MAX_STEPS} steps")

    def _answer_to(self, step: Step) -> object:
        match step:
            case Check():
                return self._choose((None, NO_ENGINE), f"check {step.role}")
            case Retry():
                return self._choose((True, False), "retry")
            case Lease():
                return self._lease(step)
            case Call():
                self._references += 1
                reference = prefilled(b'{"number":%d}' % self._references)
                return self._choose((reference, *WITHOUT_REFERENCE, *FAILURES), "call")
            case Stream():
                return self._stream(step)
        return None

    def _lease(self, step: Lease) -> object:
        if step.role is Role.DECODE:
            assert step.exclude >= self._excluded, "an engine that was excluded may come back"
            self._excluded |= step.exclude
        self._computes = step.computes
        free = [engine for engine in self._engines[step.role] if engine not in step.exclude]
        return self._choose((*free, NO_ENGINE), f"lease {step.role}")

    def _stream(self, step: Stream) -> object:
        kept = [reply(status) for status in sorted(step.keep)]
        # With `hold` an error event comes back too, whatever its status is.
        events = [reply(400)] if step.hold else []
        outcome = self._choose((None, *kept, *events, *FAILURES), "stream")
        reached = self._has_refused if outcome is REFUSED else self._may_have_seen
        reached.add(step.endpoint)
        reference = orjson.loads(step.body).get("kv_transfer_params")
        assert self._computes is (reference is None), "a prompt is computed and not counted"
        if reference is not None:
            assert not step.replay, "the shell may send a reference twice by itself"
            assert step.hold, "an error event may reach the client"
            key = orjson.dumps(reference)
            assert key not in self._spent, f"{reference} is used a second time"
            if outcome is not REFUSED:
                self._spent.add(key)
        return outcome


def every(play: Callable[[Choose], None]) -> int:
    """Play once for each sequence of choices; how many there were."""
    path: list[int] = []
    sizes: list[int] = []

    def choose(answers: Sequence[object], _text: str) -> object:
        place = len(sizes)
        sizes.append(len(answers))
        if place == len(path):
            path.append(0)
        return answers[path[place]]

    for count in itertools.count(1):
        sizes.clear()
        play(choose)
        while path and path[-1] == sizes[len(path) - 1] - 1:
            path.pop()
        if not path:
            return count
        path[-1] += 1
    raise AssertionError("unreachable")


def test_every_dialogue_of_a_small_fleet_keeps_references_and_leases() -> None:
    played = every(lambda choose: Shell(choose, prefills=1, decodes=2).play(nixl(FACTS)))
    assert played > 1000


@given(st.data())
@settings(max_examples=5 * settings().max_examples)
def test_whatever_engines_answer_no_reference_is_reused_and_no_lease_is_lost(
    data: st.DataObject,
) -> None:
    def choose(answers: Sequence[object], text: str) -> object:
        return data.draw(st.sampled_from(answers), text)

    Shell(choose, prefills=3, decodes=5).play(nixl(FACTS))
