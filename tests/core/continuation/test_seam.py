"""Where the text that a client has ends, if several tokens came in one event."""

from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pytest

from router.core.continuation.journal import Journal
from router.core.continuation.seam import find_seam
from router.core.errors import EngineFailed
from router.core.plans.steps import Call, Lease, Release
from router.core.values import Endpoint, Failure, FailureKind, Reply
from tests.core.fixtures import COMPLETIONS, D0, D1, reply, request

NONE: frozenset[Endpoint] = frozenset()

Decode = Callable[[list[int]], str]

PIECES = (b"a", b"b", "\u4e16".encode()[:1], "\u4e16".encode()[1:2], "\u4e16".encode()[2:],
          b"<", b"\xff")  # fmt: skip
A, B, FIRST, SECOND, THIRD, CALL, INVALID = range(len(PIECES))
"""Token ids; three are a character together."""


def decode(ids: Iterable[int]) -> str:
    return b"".join(PIECES[each] for each in ids).decode(errors="replace")


def answered(decode: Decode, call: Call) -> Reply:
    """What an engine answers to /detokenize."""
    assert call.path == "/detokenize"
    text = decode(orjson.loads(call.body)["tokens"])
    return reply(200, orjson.dumps({"prompt": text}))


def find(journal: Journal, decode: Decode) -> int:
    """Find the seam. Returns the number of questions."""
    steps = find_seam(journal, NONE)
    answer: Any = None
    questions = 0
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return questions
        answer = D0 if isinstance(step, Lease) else None
        if isinstance(step, Call):
            questions += 1
            answer = answered(decode, step)


def journal_of(
    *events: tuple[str, list[int]], prompt: str = "[1]", member: str = "text", **body: Any
) -> Journal:
    """A stream of these texts and ids. `member`: what a text is called."""
    journal = Journal(request(COMPLETIONS, model="m", prompt="hi", stream=True, **body))
    for text, ids in events:
        choice = {"index": 0, member: text, "finish_reason": None, "token_ids": ids}
        choice["prompt_token_ids"] = orjson.loads(prompt)
        journal.events(b"data: %b\n\n" % orjson.dumps({"id": "a", "choices": [choice]}))
    return journal


@pytest.mark.parametrize(
    ("events", "delivered", "questions"),
    [
        ([("a", [A]), ("ba", [B, A])], 3, 1),
        ([("a", [A]), ("b", [B, FIRST])], 2, 2),
        ([("a", [A]), ("b", [B, FIRST, SECOND])], 2, 3),
        ([("", [FIRST]), ("\u4e16b", [SECOND, THIRD, B])], 4, 1),  # it begins within a character
        ([("", [FIRST, SECOND]), ("\u4e16", [THIRD, FIRST])], 3, 2),
        ([("ab", [A, B, CALL])], 2, 2),  # a parser holds the rest back
        ([("a", [A, FIRST]), ("\u4e16b", [SECOND, THIRD, B, FIRST])], 5, 2),
    ],
)
def test_it_is_behind_the_last_token_whose_text_was_delivered(
    events: list[tuple[str, list[int]]], delivered: int, questions: int
) -> None:
    journal = journal_of(*events)
    assert find(journal, decode) == questions
    assert not journal.is_partial
    assert journal.delivered == delivered


def test_only_the_last_tokens_are_decoded() -> None:
    journal = journal_of(*[("a", [A])] * 50, ("ab", [A, B]))
    asked: list[list[int]] = []

    def noted(ids: list[int]) -> str:
        asked.append(ids)
        return decode(ids)

    find(journal, noted)
    assert asked == [[A] * 9 + [B]]


def test_what_follows_is_noted_as_before() -> None:
    facts = request(COMPLETIONS, prompt="hi", stream=True, max_tokens=20)
    journal = journal_of(("a", [A]), ("b", [B, FIRST]))
    find(journal, decode)
    journal.resume(facts)
    assert orjson.loads(facts.raw)["prompt"] == [1, A, B]
    assert journal.discarded == 1


@pytest.mark.parametrize(
    "events",
    [
        [("\ufffd", [A, INVALID])],  # more bytes like these may be held back
        [("a", [A, FIRST, SECOND, FIRST, FIRST, SECOND])],
        [("x", [A, B])],  # no token's text
    ],
)
def test_a_stream_whose_seam_is_not_found_is_not_continued(
    events: list[tuple[str, list[int]]],
) -> None:
    journal = journal_of(*events)
    with pytest.raises(EngineFailed):
        find(journal, decode)
    assert journal.reason == "several_tokens"


def test_no_engine_is_asked_about_bytes_that_are_no_character() -> None:
    with pytest.raises(EngineFailed):
        find_seam(journal_of(("\ufffd", [A, INVALID])), NONE).send(None)


@pytest.mark.parametrize(
    ("stop", "events", "delivered", "held"),
    [
        ("xy", [("", [A]), ("a", [B])], 2, "b"),
        (["x", "xyz"], [("", [A]), ("", [B]), ("a", [A]), ("b", [A])], 4, "aa"),
        ("xy", [("", [A]), ("a", [B, FIRST])], 2, "b"),  # within a character
        ("bx", [("", [A]), ("a", [A]), ("a", [B])], 2, ""),  # the last one may begin it
        ("bax", [("", [A]), ("", [A]), ("a", [B]), ("a", [A])], 2, ""),
        ("abx", [("", [A]), ("", [B]), ("a", [B]), ("b", [A])], 3, "b"),
        ("axx", [("", [B]), ("", [A]), ("b", [A])], 1, ""),
        ("babbabx", [*[("", [each]) for each in (A, B, A, B, B, A)], ("a", [B])], 1, ""),
        ("xyz", [("", [A]), ("", [INVALID]), ("a", [B])], 3, "\ufffdb"),
        ("xy", [("", [INVALID]), ("\ufffd", [B])], 2, "b"),
        ("x" * 40, [*[("", [A])] * 39, *[("a", [B])] * 31], 70, "a" * 8 + "b" * 31),
    ],
)
def test_text_that_is_held_back_for_a_stop_string_is_delivered_unless_one_begins_in_it(
    stop: str | list[str], events: list[tuple[str, list[int]]], delivered: int, held: str
) -> None:
    journal = journal_of(*events, stop=stop)
    assert journal.is_partial
    find(journal, decode)
    assert journal.delivered == delivered
    journal.resume(request(COMPLETIONS, model="m", prompt="hi", stream=True, stop=stop))
    prompt = [1, *(each for _, ids in events for each in ids)][: 1 + delivered]
    choice = {"index": 0, "text": "", "token_ids": [A], "prompt_token_ids": prompt}
    got = journal.events(b"data: %b\n\n" % orjson.dumps({"id": "b", "choices": [choice]}))
    shown = [orjson.loads(each[6:])["choices"][0] for each in got.split(b"\n\n")[:-1]]
    assert [each["text"] for each in shown] == ([held] if held else []) + [""]
    assert not any(each["token_ids"] or each["prompt_token_ids"] for each in shown)


@pytest.mark.parametrize(
    ("stop", "events"),
    [
        ("xy", [("", [A]), ("b", [B])]),  # it is another text
        ("bx", [("", [INVALID]), ("\ufffd", [B])]),  # without b it ends within a character
    ],
)
def test_text_that_is_held_back_for_another_reason_ends_the_stream(
    stop: str, events: list[tuple[str, list[int]]]
) -> None:
    journal = journal_of(*events, stop=stop)
    with pytest.raises(EngineFailed):
        find(journal, decode)
    assert journal.reason == "stop_strings"


def test_more_text_than_an_engine_holds_back_is_not_delivered() -> None:
    journal = journal_of(("", [A]), ("a", [B]), stop="bxx")
    texts = iter(("ab", "a" + "c" * 100))
    with pytest.raises(EngineFailed):
        find(journal, lambda ids: next(texts))


def test_reasoning_with_stop_strings_cannot_be_continued() -> None:
    journal = journal_of(("", [A]), ("a", [B]), member="reasoning", stop="xy")
    assert journal.reason == "stop_strings"
    assert journal_of(("", [A]), ("a", [B]), member="reasoning", stop="x").reason is None


def test_stop_strings_of_one_character_hold_nothing_back() -> None:
    assert not journal_of(("a", [A]), ("b", [B]), stop=["x", "y"]).is_partial


def test_text_that_no_tokenizer_makes_is_not_continued() -> None:
    journal = journal_of(("a", [A]))
    text = b'"\\ud800"'
    journal.events(
        b'data: {"choices":[{"index":0,"text":%b,"token_ids":[1,2],"finish_reason":null}]}\n\n'
        % text
    )
    assert journal.is_partial
    with pytest.raises(EngineFailed):
        find(journal, decode)


@pytest.mark.parametrize(
    "outcome",
    [
        reply(404),
        reply(200, b"[]"),
        reply(200, b'{"prompt":7}'),
        reply(200, b"no"),
        Failure(FailureKind.REFUSED, "refused"),
    ],
)
def test_an_engine_that_does_not_say_is_followed_by_another_one(outcome: Reply | Failure) -> None:
    journal = journal_of(("ab", [A, B]))
    steps = find_seam(journal, NONE)
    asked = frozenset[Endpoint]()
    for endpoint in (D0, D1):
        lease = steps.send(None)
        assert isinstance(lease, Lease)
        assert (lease.exclude, lease.is_attempt) == (asked, False)
        asked |= {endpoint}
        assert isinstance(steps.send(endpoint), Call)
        while isinstance(step := steps.send(outcome), Call):
            pass
        assert step == Release(endpoint)
    with pytest.raises(EngineFailed):
        steps.send(None)
