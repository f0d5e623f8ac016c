"""The plan of a request that named its model by an alias: its answer has that name again."""

from typing import Any, Final

import orjson

from router.core.errors import RouterError
from router.core.plans.steps import Plan, Send, Splice, Stream
from router.core.request_facts import Facts
from router.core.values import Reply

__all__ = ["Renamed", "renamed"]

FORMS: Final = (b'"model":%b', b'"model": %b')
"""The member as vLLM and Python's json write it. Quotes within a string are escaped, so generated
text cannot match."""


class Renamed:
    """The splice of an answer: names the model as the client did. What `then` has to change is
    changed first."""

    __slots__ = ("_pairs", "then")

    def __init__(self, model: str, name: str, then: Splice | None = None) -> None:
        old, new = orjson.dumps(model), orjson.dumps(name)
        self._pairs = [(form % old, form % new) for form in FORMS]
        self.then = then

    def events(self, data: bytes) -> bytes:
        """Rename the model in each event."""
        return self._renamed(data if self.then is None else self.then.events(data))

    def body(self, data: bytes) -> bytes:
        """Rename the model in an answer."""
        return self._renamed(data if self.then is None else self.then.body(data))

    def _renamed(self, data: bytes) -> bytes:
        for old, new in self._pairs:
            data = data.replace(old, new)
        return data


def renamed(plan: Plan, facts: Facts, name: str) -> Plan:
    """The steps of `plan`, with answers that name the model as the client did."""
    model = facts.model or ""
    answer: Any = None
    error: RouterError | None = None
    try:
        while True:
            try:
                step = plan.send(answer) if error is None else plan.throw(error)
            except StopIteration:
                return
            if isinstance(step, Stream):
                step.splice = Renamed(model, name, step.splice)
            elif isinstance(step, Send):
                reply = step.reply
                body = Renamed(model, name).body(reply.body)
                step = Send(Reply(reply.status, reply.headers, body))
            answer, error = None, None
            try:
                answer = yield step
            except RouterError as raised:
                error = raised
    finally:
        plan.close()
