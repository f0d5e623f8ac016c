"""The dialogues of the pick plan: engines are leased for somebody else, and kept until the end."""

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.pick import pick
from router.core.plans.steps import Lease, Release, Stream
from router.core.values import Decision, Mode, Role
from tests.core.fixtures import COMPLETIONS, D0, D1, NO_ENGINE, P0, request
from tests.core.plans.conversation import END, Converse, Raises

FACTS = request(prompt="x")
DIRECT = Decision(Mode.DIRECT, "below_threshold")
REMOTE = Decision(Mode.REMOTE, "at_or_above_threshold")
LOADS = Lease(Role.DECODE, computes=False)
ANSWER = Stream(D0, COMPLETIONS, b"")


def test_a_direct_request_has_one_engine(converse: Converse) -> None:
    converse(pick(FACTS, DIRECT)) << Lease(Role.DECODE) >> D0 << ANSWER >> None << END


def test_without_an_engine_there_is_an_error(converse: Converse) -> None:
    converse(pick(FACTS, DIRECT)) << Lease(Role.DECODE) >> NO_ENGINE << Raises(NoEngine)


def test_a_remote_prefill_has_both_at_once() -> None:
    plan = pick(FACTS, REMOTE)
    assert next(plan) == LOADS
    assert plan.send(D0) == Lease(Role.PREFILL)
    assert plan.send(P0) == ANSWER


def test_without_a_prefill_engine_the_decode_engine_does_it_all(converse: Converse) -> None:
    (
        converse(pick(FACTS, REMOTE))
        << LOADS >> D1
        << Lease(Role.PREFILL) >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Release(D1)
        << Lease(Role.DECODE) >> D0
        << ANSWER >> None
        << END
    )  # fmt: skip
