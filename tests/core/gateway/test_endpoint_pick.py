"""A request executed by Envoy: its leases, measurements of its answer, its record."""

from random import Random

import pytest

from router.core.errors import NoEngine
from router.core.events import (
    Event,
    FellBack,
    LegAnswered,
    LegDone,
    LegFailed,
    Probed,
    RequestEnded,
)
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.gateway.endpoint_pick import EndpointPick, pick
from router.core.health import HealthSignal, HealthThresholds
from router.core.membership.entry import Entry
from router.core.plans.steps import Lease, Release, Stream
from router.core.policies import POLICIES
from router.core.request_facts import Facts
from router.core.routing.request_run import RequestRun
from router.core.routing.schedule import Scheduler
from router.core.values import Decision, Endpoint, FailureKind, Mode, Role
from router.core.wire.api_errors import UNAUTHORIZED
from tests.core.fixtures import COMPLETIONS, D0, D1, D2, D3, NO_ENGINE, P0, changed, request
from tests.core.plans.conversation import END, Converse, Raises

LONG = request(prompt="x" * 4000, stream=True)
SHORT = request(prompt="x" * 40, stream=True)
WHOLE = request(prompt="x")
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
ERROR = b'data: {"error":{"message":"core died","code":500}}\n\n'
REFUSAL = b'data: {"error":{"message":"too long","code":400}}\n\n'
ABORT = b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n'


class Picker:
    """A scheduler with engines that are up, and one request."""

    def __init__(self, *endpoints: Endpoint, is_watched: bool = True) -> None:
        self.fleet = Fleet(endpoints, Ledger(), HealthThresholds(), stale_after=5.0)
        for endpoint in endpoints:
            self.fleet.observe(Probed(endpoint, HealthSignal.OK), 0.0)
        self.scheduler = Scheduler(
            self.fleet, dict.fromkeys(Role, POLICIES["least_loaded"]), 100, Random(0)
        )
        self.events: list[Event] = []
        self.record = RequestEnded("id", "/v1/completions", 0.0)
        observe = self.events.append
        run = RequestRun(self.scheduler, observe, self.record, Random(0))
        self.pick = EndpointPick(run, self.scheduler, observe, is_watched=is_watched)

    def choose(self, facts: Facts = SHORT) -> Endpoint:
        """The decode engine."""
        self.pick.choose(changed(facts), 0.0)
        return self.pick.decode

    @property
    def held(self) -> set[Endpoint]:
        """Where the request counts."""
        return {m.endpoint for m in self.fleet if self.fleet.ledger.in_flight(m.endpoint)}

    def tokens(self, endpoint: Endpoint) -> int:
        """Tokens of streams that were counted for its speed."""
        return int(self.fleet.member(endpoint).speed.counts.counter.tokens)


def test_a_request_counts_on_its_engine_until_it_ends() -> None:
    picker = Picker(D0, D1)
    chosen = picker.choose()
    assert picker.held == {chosen}
    assert picker.pick.prefill is None
    picker.pick.on_head(200, None, 1.0)
    picker.pick.on_body(EVENT, 1.5)
    picker.pick.on_end(2.0)
    picker.pick.on_end(2.0)
    assert picker.held == {chosen}
    picker.pick.end(3.0)
    assert picker.held == set()
    assert picker.events == [LegAnswered(chosen, 200, 1.0), LegDone(chosen), picker.record]
    record = picker.record
    assert (record.outcome, record.status, record.first_byte) == ("ok", 200, 1.5)
    assert (record.decode, record.ended, record.bytes_out) == (chosen, 3.0, len(EVENT))


def test_other_engines_are_named_for_retries_the_best_first() -> None:
    picker = Picker(D0, D1, D2, D3)
    busy = [
        Selection(picker.fleet).lease(D1, 1),
        Selection(picker.fleet).lease(D1, 1),
        Selection(picker.fleet).lease(D2, 1),
    ]
    assert picker.choose() == D0
    assert picker.pick.decodes(0.0) == (D0, D3, D2)
    for lease in busy:
        lease.release()


def test_a_single_engine_has_no_alternative() -> None:
    picker = Picker(D0)
    picker.choose()
    assert picker.pick.decodes(0.0) == (D0,)


def test_a_rank_has_none_because_the_header_that_pins_it_would_go_along() -> None:
    ranks = [Endpoint(f"{D0.url}#{rank}", Role.DECODE) for rank in range(2)]
    picker = Picker(*ranks)
    assert picker.pick is not None
    assert picker.choose() == ranks[0]
    assert picker.pick.decodes(0.0) == (ranks[0],)


def test_a_long_prompt_has_a_prefill_engine_until_the_first_token() -> None:
    picker = Picker(P0, D0)
    picker.choose(LONG)
    assert picker.pick.prefill == P0
    assert picker.held == {P0, D0}
    picker.pick.on_head(200, None, 1.0)
    picker.pick.on_body(b": comment\n\n", 1.0)
    assert picker.held == {P0, D0}
    picker.pick.on_body(EVENT, 1.0)
    assert picker.held == {D0}
    assert picker.pick.prefill is None


def test_without_an_engine_nothing_is_held() -> None:
    picker = Picker()
    with pytest.raises(NoEngine):
        picker.choose()
    picker.pick.end(1.0, "none")
    assert (picker.record.outcome, picker.record.error) == ("error", "none")


def test_the_lease_goes_where_the_answer_comes_from() -> None:
    picker = Picker(D0, D1)
    assert picker.choose() == D0
    picker.pick.on_head(200, D1, 1.0)
    assert picker.held == {D1}
    assert picker.record.decode == D1
    assert picker.events[0] == FellBack(Role.DECODE, "gateway_retry")
    picker.pick.on_body(EVENT + EVENT + EVENT, 2.0)
    assert (picker.tokens(D0), picker.tokens(D1)) == (0, 2)
    picker.pick.end(3.0)
    assert picker.held == set()
    assert picker.fleet.member(D0).speed.counts.all_open == 0


def test_unwatched_it_goes_there_too() -> None:
    picker = Picker(D0, D1, is_watched=False)
    picker.choose()
    picker.pick.on_head(200, D1, 1.0)
    assert picker.held == {D1}


def test_an_engine_that_left_meanwhile_may_still_answer() -> None:
    picker = Picker(D0, D1)
    picker.choose()
    picker.fleet.apply([Entry(D0, 0)], 0.5)
    picker.pick.on_head(200, D1, 1.0)
    assert picker.held == set()
    picker.pick.on_body(EVENT, 1.5)
    picker.pick.on_end(2.0)
    picker.pick.end(2.0)
    assert picker.record.outcome == "ok"


def test_tokens_of_a_stream_are_counted_for_the_engines_speed() -> None:
    picker = Picker(D0)
    picker.choose()
    picker.pick.on_head(200, None, 1.0)
    picker.pick.on_body(EVENT, 1.0)
    picker.pick.on_body(EVENT * 8 + USAGE, 2.0)
    assert picker.tokens(D0) == 9
    picker.pick.on_end(2.0)
    picker.pick.end(2.0)


def test_an_answer_without_envoy_messages_is_no_stall() -> None:
    picker = Picker(D0, is_watched=False)
    picker.choose()
    assert picker.fleet.ledger.load(D0).pending > 0
    picker.pick.on_head(200, None, 1.0)
    assert picker.fleet.ledger.load(D0).pending == 0
    picker.pick.on_body(EVENT, 1.0)
    assert picker.fleet.member(D0).speed.counts.all_open == 0
    assert picker.tokens(D0) == 0
    picker.pick.end(2.0)
    assert picker.record.outcome == "ok"


def test_a_whole_answer_is_timed_by_its_usage() -> None:
    picker = Picker(D0)
    picker.choose(WHOLE)
    picker.pick.on_head(200, None, 1.0)
    picker.pick.on_body(b'{"usage":{"completion_tokens":64}}', 2.0)
    picker.pick.on_body(b"", 2.0)
    picker.pick.on_end(2.0)
    picker.pick.end(2.0)
    assert picker.record.outcome == "ok"
    assert picker.tokens(D0) == 0


def test_an_error_is_no_speed_and_no_success() -> None:
    picker = Picker(D0)
    picker.choose()
    picker.pick.on_head(500, None, 1.0)
    picker.pick.on_body(EVENT, 1.0)
    picker.pick.on_end(2.0)
    picker.pick.end(2.0)
    assert picker.tokens(D0) == 0
    assert picker.record.outcome == "error"
    assert not any(isinstance(event, LegDone) for event in picker.events)


@pytest.mark.parametrize("status", [0, 200])
def test_an_answer_that_is_not_seen_to_its_end_is_one_of_a_client_that_left(status: int) -> None:
    picker = Picker(D0)
    picker.choose()
    if status:
        picker.pick.on_head(status, D0, 1.0)
        picker.pick.on_body(EVENT, 1.0)
    picker.pick.end(2.0)
    assert picker.record.outcome == "client_left"
    assert picker.held == set()


def outcome(picker: Picker, *pieces: bytes) -> list[Event]:
    """Events of a stream of these pieces, its record left out."""
    picker.choose()
    picker.pick.on_head(200, None, 1.0)
    for piece in pieces:
        picker.pick.on_body(piece, 1.5)
    picker.pick.on_end(2.0)
    picker.pick.end(2.0)
    return [each for each in picker.events if isinstance(each, LegDone | LegFailed)]


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ((ERROR + DONE,), "it reported an error in a stream: core died"),
        (
            (ROLE[:20], ROLE[20:] + ERROR[:9], ERROR[9:], DONE),
            "it reported an error in a stream: core died",
        ),
        ((ABORT + DONE,), ""),
    ],
)
def test_error_in_place_of_first_token_is_failure(pieces: tuple[bytes, ...], cause: str) -> None:
    picker = Picker(D0)
    assert outcome(picker, *pieces) == [LegFailed(D0, FailureKind.BROKEN, 0.0, cause)]
    assert picker.record.outcome == "broken"
    assert picker.record.error is not None
    speed, fresh = picker.fleet.member(D0).speed, Picker(D0).fleet.member(D0).speed
    assert speed.counts.last_token_at == fresh.counts.last_token_at
    assert (speed.counts.all_open, speed.counts.counter.tokens) == (0, 0)


LARGE = ERROR.replace(b"core died", b"core died " * 1000)


@pytest.mark.parametrize(
    "pieces",
    [
        (EVENT, LARGE + DONE),
        (EVENT, LARGE, DONE),
        (EVENT, LARGE[:99], LARGE[99:9000], LARGE[9000:] + DONE),
        (EVENT + LARGE[:99], LARGE[99:], USAGE + DONE),
    ],
)
def test_so_is_a_large_one_behind_tokens_in_whatever_pieces(pieces: tuple[bytes, ...]) -> None:
    picker = Picker(D0)
    [failed] = outcome(picker, *pieces)
    assert isinstance(failed, LegFailed)
    assert picker.record.outcome == "broken"


WORDS = b'{"choices":[{"prompt_token_ids":[%b],' % b",".join([b"7"] * 9000)
DROP = b'"text":"","finish_reason":"abort"}],%b"usage":{"completion_tokens":%d}}'


@pytest.mark.parametrize("cut", [0, 9, len(WORDS) + 20, len(WORDS) + 4000])
@pytest.mark.parametrize("generated", [0, 5])
def test_answer_dropped_before_first_token_is_a_failure(cut: int, generated: int) -> None:
    picker = Picker(D0)
    picker.choose(WHOLE)
    picker.pick.on_head(200, None, 1.0)
    answer = WORDS + DROP % (b" " * 8000, generated)
    for piece in (answer[:cut], answer[cut:]):
        picker.pick.on_body(piece, 2.0)
    picker.pick.on_end(2.0)
    picker.pick.end(2.0)
    legs = [each for each in picker.events if isinstance(each, LegDone | LegFailed)]
    if generated:  # it ends early, as by its own time-out
        assert legs == [LegDone(D0)]
    else:
        assert legs == [LegFailed(D0, FailureKind.BROKEN, 0.0)]
        assert picker.record.outcome == "broken"


def test_so_is_one_behind_tokens() -> None:
    picker = Picker(D0)
    [failed] = outcome(picker, ROLE + EVENT + EVENT, EVENT, ERROR + DONE)
    assert failed == LegFailed(
        D0, FailureKind.BROKEN, 0.0, "it reported an error in a stream: core died"
    )
    assert picker.record.outcome == "broken"
    assert picker.record.error == "the decode engine answered 500: core died"


@pytest.mark.parametrize("pieces", [(REFUSAL, DONE), (EVENT, REFUSAL + DONE)])
def test_an_error_of_the_clients_is_no_failure_of_the_engine(pieces: tuple[bytes, ...]) -> None:
    picker = Picker(D0)
    assert outcome(picker, *pieces) == [LegDone(D0)]
    assert picker.record.outcome == "ok"


def test_comments_are_no_tokens() -> None:
    picker = Picker(D0)
    outcome(picker, b": ping\n\n", ROLE + EVENT, b": ping\n\n", EVENT + b": ping\n\n")
    assert picker.tokens(D0) == 1


def test_an_engine_that_refuses_the_routers_key_has_failed() -> None:
    picker = Picker(D0)
    picker.choose()
    picker.pick.on_head(401, None, 1.0)
    picker.pick.fail(UNAUTHORIZED, UNAUTHORIZED.message)
    picker.pick.on_end(1.0)
    picker.pick.end(1.0)
    assert LegFailed(D0, FailureKind.UNAUTHORIZED, 0.0) in picker.events
    assert LegDone(D0) not in picker.events
    assert (picker.record.outcome, picker.record.error) == ("error", UNAUTHORIZED.message)


# The plan: both engines are leased at the same time, and kept until the end.

DIRECT = Decision(Mode.DIRECT, "below_threshold")
REMOTE = Decision(Mode.REMOTE, "at_or_above_threshold")
LOADS = Lease(Role.DECODE, computes=False)
ANSWER = Stream(D0, COMPLETIONS, b"")


def test_a_direct_request_has_one_engine(converse: Converse) -> None:
    converse(pick(SHORT, DIRECT)) << Lease(Role.DECODE) >> D0 << ANSWER >> None << END


def test_without_an_engine_there_is_an_error(converse: Converse) -> None:
    converse(pick(SHORT, DIRECT)) << Lease(Role.DECODE) >> NO_ENGINE << Raises(NoEngine)


def test_a_remote_prefill_has_both_at_once() -> None:
    plan = pick(SHORT, REMOTE)
    assert next(plan) == LOADS
    assert plan.send(D0) == Lease(Role.PREFILL)
    assert plan.send(P0) == ANSWER


def test_without_a_prefill_engine_the_decode_engine_does_it_all(converse: Converse) -> None:
    (
        converse(pick(SHORT, REMOTE))
        << LOADS >> D1
        << Lease(Role.PREFILL) >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Release(D1)
        << Lease(Role.DECODE) >> D0
        << ANSWER >> None
        << END
    )  # fmt: skip
