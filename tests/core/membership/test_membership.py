"""What a source says of an engine."""

from router.core.membership.membership import Target
from tests.core.fixtures import D0


def test_an_engine_is_one_that_takes_requests_and_has_no_identity_unless_told_otherwise() -> None:
    assert Target(D0) == Target(D0, identity="", is_draining=False)
    assert Target(D0) != Target(D0, "uid")
