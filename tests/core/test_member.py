"""A member's reasons to be set aside, the gravest first."""

import pytest

from router.core.member import Aside, Member
from router.core.outlier import FINE, Outlier
from router.core.stall import CLEAR, Stall
from router.core.values import Candidate
from tests.core.cast import D0


@pytest.mark.parametrize("ejected", [False, True])
@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_the_gravest_reason_is_told(ejected: bool, stalled: bool, slow: bool) -> None:
    member = Member(
        Candidate(D0, 3),
        outlier=Outlier(until=9.0) if ejected else FINE,
        stall=Stall(1.0) if stalled else CLEAR,
        slow_since=1.0 if slow else None,
    )
    reasons = [(ejected, Aside.EJECTED), (stalled, Aside.STALLED), (slow, Aside.SLOW)]
    assert member.aside == next((reason for holds, reason in reasons if holds), None)
    assert member.is_shut == (ejected or stalled)
    assert (member.endpoint, member.ordinal, member.others) == (D0, 3, None)
