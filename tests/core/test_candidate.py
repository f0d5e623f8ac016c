"""What policies see of an endpoint."""

import pytest

from router.core.candidate import STEP_TOKENS
from tests.core.fixtures import D0, candidate


class HalfDone:
    """A prefill reported as half through a long prompt."""

    def progress(self, now: float) -> float:
        """Its tokens by `now`."""
        return 2.0 * STEP_TOKENS


@pytest.mark.parametrize(
    ("pending", "left"), [(5 * STEP_TOKENS, 3 * STEP_TOKENS), (STEP_TOKENS, STEP_TOKENS), (0, 0)]
)
def test_of_prompts_for_one_step_nothing_is_taken_to_be_computed(pending: int, left: int) -> None:
    """For any report, as of a worker process that does not know yet that a prompt is complete."""
    engine = candidate(D0)
    engine.prefill = HalfDone()
    engine.load.add(0, 0, pending)
    assert engine.pending(0.0) == left
