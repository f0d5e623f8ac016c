"""A plan's steps and results as a script.

`<<` is the step that the plan must yield next, in a pair with the shell's answer:

    converse(plan) << (Lease(Role.DECODE), D0) << (Stream(D0, path, body), None) << END

Steps that have no answer (`Release`, `FellBack`, `Send`) stand alone. So does a step whose answer
is given later, by `>>`. An answer that is an exception is raised inside the plan. Meanwhile `Books`
checks that the plan leases every engine that it uses, and releases what it leases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from router.core.errors import RouterError
from router.core.events import FellBack
from router.core.plans.steps import (
    AwaitKV,
    Call,
    Check,
    Lease,
    Plan,
    Release,
    Retry,
    Send,
    Step,
    Stream,
)
from router.core.values import Endpoint, Role

__all__ = ["END", "Books", "Conversation", "Converse", "Raises"]


class _End:
    """The plan is over."""

    def __repr__(self) -> str:
        return "END"


END: Final = _End()


@dataclass(frozen=True)
class Raises:
    """The plan is over: it raised this kind of error, with this text in its message."""

    kind: type[RouterError]
    text: str = ""


class Books:
    """What a request holds, and the rules that hold for every plan."""

    def __init__(self) -> None:
        self.held: set[Endpoint] = set()
        self.is_answered = False

    def check(self, step: Step) -> None:
        """A step that the plan takes."""
        assert not self.is_answered, f"{step} after the client was answered"
        match step:
            case Release(endpoint):
                assert endpoint in self.held, f"{endpoint} is released and was not held"
                self.held.remove(endpoint)
            case Call(endpoint) | Stream(endpoint):
                assert endpoint in self.held, f"{endpoint} is used and was not held"
            case Lease(Role.DECODE):
                assert not self.decodes, "a second decode engine is leased"
            case Send():
                self.is_answered = True

    def answer(self, step: Step, answer: object) -> None:
        """What the shell answers to it."""
        match step:
            case Lease(role, exclude) if isinstance(answer, Endpoint):
                assert answer.role is role, f"{answer} is no {role} engine"
                assert answer not in exclude, f"{answer} was to be excluded"
                assert answer not in self.held, f"{answer} is leased twice"
                self.held.add(answer)
            case Stream() if answer is None:
                self.is_answered = True

    @property
    def decodes(self) -> set[Endpoint]:
        """The decode engines that are held."""
        return {endpoint for endpoint in self.held if endpoint.role is Role.DECODE}

    def check_end(self) -> None:
        """The plan has ended: only the lease of the answering engine may remain."""
        assert self.held == self.decodes, f"{self.held} is still held at the end"


ANSWERED_WITH_NOTHING = (Release, FellBack, Send)
ANSWERED_WITH_SOMETHING = (Check, Lease, Retry, Call, Stream, AwaitKV)


class Conversation:
    """One plan, from its first step to its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._books = Books()
        self._said: Step | _End | RouterError | None = None
        self._waits_for_answer = False
        self.is_over = False
        self._advance(None)

    def __lshift__(self, expected: Step | tuple[Step, object] | _End | Raises) -> Self:
        """The plan's next step; the second of a pair is the shell's result."""
        if isinstance(expected, tuple):
            step, answer = expected
            return self << step >> answer
        assert not self._waits_for_answer, f"{self._said} was not answered"
        said = self._said
        if isinstance(expected, Raises):
            assert isinstance(said, expected.kind), f"said {said!r}, expected {expected}"
            assert expected.text in said.message
        else:
            assert said == expected, f"said\n  {said!r}\nexpected\n  {expected!r}"
        if isinstance(said, ANSWERED_WITH_NOTHING):
            self._advance(None)
        elif isinstance(said, ANSWERED_WITH_SOMETHING):
            self._waits_for_answer = True
        else:
            self.is_over = True
        return self

    def __rshift__(self, answer: object) -> Self:
        """The shell answers this."""
        assert self._waits_for_answer, f"{self._said} takes no answer"
        assert isinstance(self._said, ANSWERED_WITH_SOMETHING)
        self._waits_for_answer = False
        self._books.answer(self._said, answer)
        self._advance(answer)
        return self

    def _advance(self, answer: Any) -> None:
        try:
            if isinstance(answer, Exception):
                said = self._plan.throw(answer)
            else:
                said = self._plan.send(answer)
        except StopIteration:
            self._said = END
            self._books.check_end()
        except RouterError as error:
            self._said = error
            self._books.check_end()
        else:
            self._said = said
            self._books.check(said)


Converse = Callable[[Plan], Conversation]
"""The fixture `converse`: it begins a conversation with a plan."""
