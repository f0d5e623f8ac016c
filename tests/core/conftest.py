"""Conversations that must be played to their end."""

from collections.abc import Iterator

import pytest

from router.core.plans.steps import Plan
from tests.core.plans.conversation import Conversation, Converse


@pytest.fixture
def converse() -> Iterator[Converse]:
    """Begin a conversation with a plan; the test fails if it leaves one unfinished."""
    begun: list[Conversation] = []

    def begin(plan: Plan) -> Conversation:
        begun.append(Conversation(plan))
        return begun[-1]

    yield begin
    assert all(conversation.is_over for conversation in begun), "the plan has more to say"
