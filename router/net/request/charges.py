"""What one request holds of the router's limits, and the one place where it is given back."""

from router.core.events import RequestEnded
from router.core.limits.admission import Ticket
from router.core.limits.budgets import ByteBudget
from router.core.limits.key_limits import KeyUsage
from router.core.request_facts import Facts
from router.net.limits.admission_gate import AdmissionGate, Waiter

__all__ = ["Charges"]


class Charges:
    """Bytes of the client's body, bytes of engines' answers, a place in admission, and the usage of
    an API key. Call `release` once, however the request ends.

    `bodies` and `answers`: the budgets of all requests.
    """

    __slots__ = ("_answers", "_bodies", "_gate", "_reply", "_ticket", "_usage", "answer", "body")

    def __init__(self, bodies: ByteBudget, answers: ByteBudget) -> None:
        self.body = 0
        """Bytes of the client's body."""
        self.answer = 0
        """Bytes of the answer that is being read, as far as they are kept in memory."""
        self._reply = 0
        """Bytes of replies that the plan has."""
        self._bodies = bodies
        self._answers = answers
        self._ticket: Ticket | None = None
        """Its place in flight or in the queue of `_gate`; None without a limit."""
        self._gate: AdmissionGate | None = None
        self._usage: KeyUsage | None = None
        """The usage of its API key; None if the key has no limits."""

    # Bytes.

    def hold_body(self, size: int) -> None:
        """Charge the body, of which `size` bytes have arrived. Raises Overloaded."""
        self._bodies.take(size - self.body)
        self.body = size

    def hold_journal(self, size: int) -> bool:
        """Charge `size` bytes that another engine would need to go on, the body included. Returns
        False, and gives them back, if more than half of the budget is taken: the rest is for the
        bodies of new requests."""
        bodies = self._bodies
        fits = bodies.held + size - self.body <= bodies.limit // 2
        if not fits:
            size = 0
        bodies.add(size - self.body)
        self.body = size
        return fits

    def keep_answer(self, size: int) -> bool:
        """Charge `size` more bytes of the current answer. Returns False, and charges nothing, if
        the budget is exhausted."""
        if not self._answers.try_take(size):
            return False
        self.answer += size
        return True

    def pass_to_plan(self) -> None:
        """The current answer has become a reply, which the plan keeps."""
        self._reply += self.answer
        self.answer = 0

    def drop_answer(self) -> None:
        """Give back the bytes of the current answer."""
        self._answers.give(self.answer)
        self.answer = 0

    def drop_answers(self) -> None:
        """Give back the bytes of the current answer and of replies."""
        self._answers.give(self.answer + self._reply)
        self.answer = self._reply = 0

    def drop_bytes(self) -> None:
        """Give back all bytes, because nothing is kept any more."""
        self._bodies.give(self.body)
        self.body = 0
        self.drop_answers()

    # Admission and API keys.

    def count(self, usage: KeyUsage, facts: Facts, now: float) -> None:
        """Count the request for its API key. Raises LimitReached."""
        usage.enter(facts.tokens, now, is_stream=facts.stream)
        self._usage = usage

    def enter(self, gate: AdmissionGate, ticket: Ticket, waiter: Waiter) -> bool:
        """Whether the request is admitted. If not, it waits in the queue, or QueueFull is
        raised."""
        self._gate, self._ticket = gate, ticket
        return gate.enter(ticket, waiter)

    # The end.

    def release(self, record: RequestEnded, now: float) -> None:
        """Give everything back."""
        if self.body or self.answer or self._reply:
            self.drop_bytes()
        if self._gate is not None and self._ticket is not None:
            self._gate.leave(self._ticket, record.answer_tokens)
        if self._usage is not None:
            self._usage.leave(record.answer_tokens, now, is_stream=record.stream)
