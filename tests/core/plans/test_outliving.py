"""A plan that goes on with another engine, as a run drives it."""

from typing import Any

import orjson
import pytest

from router.core.errors import EngineFailed, NoEngine
from router.core.events import FellBack
from router.core.plans.direct import direct
from router.core.plans.steps import Stream
from router.core.values import Endpoint, Role
from tests.core.fixtures import BROKEN, D0, D1, D2, D3, RESET, changed, request
from tests.core.routing.run_shell import Shell, spent

FIRST = (
    b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":null,'
    b'"prompt_token_ids":[1,2],"token_ids":[3]}]}\n\n'
)


def begun(*endpoints: Endpoint, **body: Any) -> Shell:
    """A stream of one token."""
    facts = request(prompt="x" * 400, stream=True, **body)
    shell = Shell(*endpoints, facts=facts, continues=True)
    shell.start(direct(facts))
    shell.run.begun()
    if shell.run.journal is not None:
        shell.run.journal.events(FIRST)
    return shell


def breaks(shell: Shell) -> object:
    """What follows when the engine of a stream fails."""
    journal = shell.run.journal
    if journal is not None:
        journal.cut(BROKEN)
    return shell.run.settle(None, BROKEN, 200, 1.0)


def test_the_next_engine_gets_the_tokens_so_far() -> None:
    shell = begun(D0, D1, max_tokens=9)
    step = breaks(shell)
    assert isinstance(step, Stream)
    assert step.endpoint == D1
    body = orjson.loads(step.body)
    assert (body["prompt"], body["max_tokens"]) == ([1, 2, 3], 8)
    assert shell.held == {D1}
    assert shell.run.journal is not None
    assert shell.run.journal.is_continued
    assert FellBack(Role.DECODE, "continued") in shell.events
    shell.run.begun()
    assert shell.run.settle(None, None, 200, 2.0) is None
    shell.run.close()
    assert shell.held == set()


def test_the_body_is_kept_once() -> None:
    shell = begun(D0, D1)
    facts = shell.run.facts
    assert facts is not None
    assert isinstance(shell.run.step, Stream)
    assert (facts.raw, facts.body, shell.run.step.body) == (b"", {}, b"")


def test_a_second_failure_excludes_both_engines() -> None:
    shell = begun(D0, D1)
    assert shell.asked(breaks(shell)) == D1
    shell.run.begun()
    with pytest.raises(NoEngine):
        shell.asked(breaks(shell))


def test_a_stream_that_breaks_engines_reaches_three_of_them() -> None:
    shell = begun(D0, D1, D2, D3)
    assert shell.asked(breaks(shell)) == D1
    shell.run.begun()
    assert shell.asked(breaks(shell)) == D2
    shell.run.begun()
    with pytest.raises(EngineFailed):
        breaks(shell)


def test_engines_that_failed_before_the_first_token_count_too() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, D2, D3, facts=facts, continues=True)
    shell.start(direct(facts))
    assert shell.fails(RESET) == D1
    shell.run.begun()
    assert shell.run.journal is not None
    shell.run.journal.events(FIRST)
    assert shell.asked(breaks(shell)) == D2
    with pytest.raises(EngineFailed):
        shell.fails(RESET)


def test_a_body_that_is_nested_too_deeply_ends_with_the_engine() -> None:
    facts = changed(
        request(prompt="x", stream=True),
        raw=b'{"prompt":"x","stream":true,"metadata":%b}' % (b"[" * 300 + b"]" * 300),
    )
    shell = Shell(D0, D1, facts=facts, continues=True)
    shell.start(direct(facts))
    shell.run.begun()
    assert shell.run.journal is not None
    shell.run.journal.events(FIRST)
    with pytest.raises(EngineFailed):
        breaks(shell)


def test_a_continuation_takes_a_retry_from_the_budget() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, D1, facts=facts, continues=True, budget=spent())
    shell.start(direct(facts))
    shell.run.begun()
    assert shell.run.journal is not None
    shell.run.journal.events(FIRST)
    with pytest.raises(NoEngine):
        breaks(shell)


def test_what_cannot_be_continued_ends() -> None:
    shell = begun(D0, D1, stop="x")
    assert shell.run.journal is None
    assert breaks(shell) is None


def test_engines_are_asked_for_token_ids() -> None:
    facts = request(prompt="x" * 400, stream=True)
    shell = Shell(D0, facts=facts, continues=True)
    shell.start(direct(facts))
    assert isinstance(shell.run.step, Stream)
    assert orjson.loads(shell.run.step.body)["return_token_ids"] is True
