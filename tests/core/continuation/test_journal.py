"""Streams that are cut anywhere and go on elsewhere, against what one engine would have sent."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.continuation.journal import Journal
from router.core.errors import EngineFailed
from router.core.request_facts import Facts
from router.core.wire import sse
from tests.core.continuation.test_seam import find
from tests.core.fixtures import BROKEN, CHAT, COMPLETIONS, request

PIECES = (b"a", b" b", "\u00e9".encode()[:1], "\u00e9".encode()[1:], "\u4e16".encode()[:1],
          "\u4e16".encode()[1:2], "\u4e16".encode()[2:], b'"', b"\n", b"the")  # fmt: skip
"""The text of each token: some are parts of a character."""
PROMPT = [3, 120, 7, 45001]


@dataclass
class Engine:
    """What vLLM sends for a stream. Its tokens depend on all ids so far alone."""

    body: dict[str, Any]
    per_chunk: int = 1
    name: str = "e"
    sent: list[int] = field(init=False)

    def __post_init__(self) -> None:
        given = self.body.get("kv_transfer_params") or {}
        ids = given.get("prompt_token_ids") or self.body.get("prompt")
        self.sent = list(ids) if isinstance(ids, list) else PROMPT

    @property
    def is_chat(self) -> bool:
        return "messages" in self.body

    def events(self) -> Iterator[bytes]:
        """Text of incomplete characters is held back; one that the prompt ends in is never
        complete, and the whole prompt's text comes with the first token."""
        held = b""
        ids = list(self.sent)
        left = self.body["max_tokens"]
        made = 0
        if len(ids) > len(PROMPT) and _is_cut(ids):
            held = b"<the whole prompt>"
        if self.is_chat:
            yield self._event({"role": "assistant", "content": ""}, None, prompt=self.sent)
        first = True
        while made < left:
            fresh: list[int] = []
            while made < left and len(fresh) < self.per_chunk:
                fresh.append(_next(ids))
                ids.append(fresh[-1])
                held += PIECES[fresh[-1] % len(PIECES)]
                made += 1
            text, held = _whole(held) if made < left else (held.decode(errors="replace"), b"")
            reason = "length" if made == left else None
            prompt = self.sent if first and not self.is_chat else None
            delta = {"content": text} if text else {}
            yield self._event(delta if self.is_chat else text, fresh, prompt=prompt, reason=reason)
            first = False
        counts = {"prompt_tokens": len(self.sent), "completion_tokens": made}
        counts["total_tokens"] = len(self.sent) + made
        usage = {"id": self.name, "object": "o", "created": 7, "choices": [], "usage": counts}
        yield b"data: " + orjson.dumps(usage) + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _event(
        self, text: Any, ids: list[int] | None, *, prompt: Any = None, reason: str | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta" if self.is_chat else "text": text}
        choice |= {"finish_reason": reason}
        document: dict[str, Any] = {"id": self.name, "object": "o", "created": 7}
        document["choices"] = [choice]
        if not self.is_chat:
            choice["prompt_token_ids"] = prompt
        elif prompt:
            document["prompt_token_ids"] = prompt
        if ids is not None:
            choice["token_ids"] = ids
        return b"data: " + orjson.dumps(document) + b"\n\n"


def _next(ids: list[int]) -> int:
    return (sum(ids) * 2654435761 >> 9) % 1000


def decode(ids: list[int]) -> str:
    return b"".join(PIECES[each % len(PIECES)] for each in ids).decode(errors="replace")


def _is_cut(ids: list[int]) -> bool:
    """Whether the text of some tokens ends within a character."""
    made = b"".join(PIECES[each % len(PIECES)] for each in ids[len(PROMPT) :])
    return bool(_whole(made)[1])


def _whole(data: bytes) -> tuple[str, bytes]:
    """The text of complete characters, and the bytes of one that may be incomplete."""
    for cut in range(len(data), max(-1, len(data) - 4), -1):
        try:
            data[cut:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return data[:cut].decode(errors="replace"), data[cut:]
    return data.decode(errors="replace"), b""


def ask(*, is_chat: bool = False, tokens: int = 30, **body: Any) -> Facts:
    """A streamed request."""
    if is_chat:
        messages = [{"role": "user", "content": "hi"}]
        return request(CHAT, messages=messages, stream=True, max_tokens=tokens, **body)
    return request(COMPLETIONS, prompt="hi", stream=True, max_tokens=tokens, **body)


def resumed(journal: Journal, facts: Facts) -> dict[str, Any]:
    """The body for the next engine."""
    journal.resume(facts)
    body: dict[str, Any] = orjson.loads(facts.raw)
    if facts.prompt_ids:
        body["kv_transfer_params"] = {"prompt_token_ids": orjson.loads(facts.prompt_ids)}
    return body


def framed(event: bytes) -> bytes:
    """The event in a chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def deliver(journal: Journal, event: bytes) -> bytes:
    """What the client gets of an event: by the fast way where that is possible."""
    chunk = framed(event)
    if passed := journal.token(chunk, len(event)):
        assert len(passed) == len(chunk)
        return passed.partition(b"\r\n")[2][:-2]
    return journal.events(event)


def answer(events: list[bytes]) -> list[dict[str, Any]]:
    """What a client reads of a stream."""
    data = b"".join(events).split(b"\n\n")
    assert data[-2:] == [b"data: [DONE]", b""]
    return [orjson.loads(each[6:]) for each in data[:-2]]


def text_of(documents: list[dict[str, Any]]) -> str:
    choices = [each["choices"][0] for each in documents if each["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


def continued() -> tuple[Facts, Journal]:
    """A completion with at least five tokens, for another engine."""
    facts = ask()
    journal = Journal(facts)
    stream = Engine(dict(facts.body)).events()
    while journal.delivered < 5:
        deliver(journal, next(stream))
    journal.resume(facts)
    return facts, journal


@given(
    is_chat=st.booleans(),
    tokens=st.integers(1, 40),
    per_chunk=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 45), max_size=3),
)
@example(is_chat=True, tokens=10, per_chunk=1, cuts=[3])
@example(is_chat=False, tokens=10, per_chunk=2, cuts=[3, 2])
@example(is_chat=False, tokens=11, per_chunk=2, cuts=[5])  # behind half a character
def test_a_stream_that_is_cut_anywhere_is_the_undisturbed_one(
    is_chat: bool, tokens: int, per_chunk: int, cuts: list[int]
) -> None:
    facts = ask(is_chat=is_chat, tokens=tokens)
    body: dict[str, Any] = dict(facts.body)
    undisturbed = answer(list(Engine(body).events()))
    journal, got = Journal(facts), list[bytes]()
    for number, cut in enumerate([*cuts, 10_000]):
        for place, event in enumerate(Engine(body, per_chunk, "e" * (1 + number)).events()):
            if place == cut:
                break
            got.append(deliver(journal, event))
        else:
            break
        if journal.reason is not None:
            assert journal.reason == ("finished" if journal.is_finished else "no_ids")
            return
        if journal.is_partial:
            assert per_chunk > 1
            try:
                find(journal, decode)
            except EngineFailed:  # of bytes that are no character more may be held back
                assert got[-1].find("\ufffd".encode()) >= 0
                return
        body = resumed(journal, facts)
    documents = answer(got)
    assert text_of(documents) == text_of(undisturbed)
    assert documents[-1]["usage"] == undisturbed[-1]["usage"]
    assert len({each["id"] for each in documents}) == 1
    assert sum("role" in c.get("delta", {}) for d in documents for c in d["choices"]) == is_chat
    assert not any(c.get("token_ids") for d in documents for c in d["choices"])


def test_undelivered_tokens_are_thrown_away() -> None:
    facts = ask()
    journal = Journal(facts)
    stream = Engine(dict(facts.body)).events()
    while text_of([orjson.loads(deliver(journal, next(stream))[6:])]):
        pass
    count = journal.delivered
    body = resumed(journal, facts)
    assert len(body["prompt"]) == len(PROMPT) + count
    assert body["max_tokens"] == 30 - count
    assert (journal.carried, journal.discarded) == (count, 1)


def test_behind_several_tokens_at_once_the_seam_is_unknown_until_the_next_single_one() -> None:
    journal = Journal(ask(is_chat=True))
    stream = Engine({"messages": [], "max_tokens": 40}, per_chunk=1).events()
    deliver(journal, next(stream))
    choice = b'{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[%b]}'
    event = b'data: {"id":"e","choices":[' + choice + b"]}\n\n"
    for _ in range(2):  # the second one passes unparsed
        for ids, is_partial in ((b"20", False), (b"20,21", True), (b"22", False)):
            deliver(journal, event % ids)
            assert journal.reason is None
            assert journal.is_partial == is_partial
    assert journal.delivered == 8


def test_the_events_of_a_tool_call_pass_unparsed_though_it_cannot_be_continued() -> None:
    journal = Journal(ask(is_chat=True))
    call = b'{"tool_calls":[{"index":0,"function":{"arguments":"%b"}}]}'
    choice = b'{"index":0,"delta":' + call + b',"finish_reason":null,"token_ids":[20]}'
    event = b'data: {"id":"e","choices":[' + choice + b"]}\n\n"
    journal.events(event % b"{")
    following = event % b'\\"a'
    passed = journal.token(framed(following), len(following))
    assert passed == framed(following.replace(b"[20]", b"null"))
    assert journal.reason == "tool_call"


def test_a_grammar_starts_anew_behind_the_reasoning_alone() -> None:
    journal = Journal(ask(is_chat=True, response_format={"type": "json_object"}))
    deliver(journal, next(Engine({"messages": [], "max_tokens": 40}).events()))
    choice = b'{"index":0,"delta":{"%b":"a"},"finish_reason":null,"token_ids":[20]}'
    event = b'data: {"id":"e","choices":[' + choice + b"]}\n\n"
    for _ in range(2):
        deliver(journal, event % b"reasoning")
        assert journal.reason is None
    deliver(journal, event % b"content")
    assert journal.reason == "structured_output"


def test_an_engine_that_ignores_the_tokens_is_found_out() -> None:
    facts = ask(is_chat=True)
    journal = Journal(facts)
    stream = Engine(dict(facts.body)).events()
    while journal.delivered < 5:
        deliver(journal, next(stream))
    journal.resume(facts)
    assert journal.events(next(Engine(dict(facts.body)).events())) == b""
    assert journal.reason == "prompt_ignored"


def said(kinds: str, *ids: int, reason: str | None = None) -> bytes:
    """An event of a chat with text of these kinds, whose tokens are `ids`."""
    delta = dict.fromkeys(kinds.split(), "a")
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "token_ids": ids}
    return b"data: %b\n\n" % orjson.dumps({"id": "e", "choices": [choice]})


@pytest.mark.parametrize(
    ("before", "after", "is_misread"),
    [
        ("reasoning", [said("content", 30)], True),
        ("reasoning", [said("content", 30, 31)], True),
        ("reasoning", [said("content", 30, reason="stop")], True),
        ("reasoning", [said("content")], True),
        ("reasoning", [said("", 30), said("content", 31)], False),
        ("reasoning", [said("reasoning content", 30, 31)], False),
        ("reasoning", [said("reasoning_content", 30)], False),
        ("reasoning", [said("reasoning", 30), said("content", 31)], False),
        ("content", [said("content", 30)], False),
        ("content", [said("reasoning", 30)], False),
    ],
)
def test_reasoning_that_a_parser_takes_for_the_answer_is_not_shown(
    before: str, after: list[bytes], is_misread: bool
) -> None:
    """vLLM's mistral, granite and minimax_m3 begin each stream behind the reasoning."""
    facts = ask(is_chat=True)
    journal = Journal(facts)
    deliver(journal, next(Engine(dict(facts.body)).events()))
    for each in (20, 21):
        deliver(journal, said(before, each))
    deliver(journal, next(Engine(resumed(journal, facts)).events()))
    shown = b"".join(deliver(journal, event) for event in after)
    assert (journal.reason == "reasoning_misread") == is_misread
    assert (journal.failure is not None) == is_misread
    assert bool(shown) != is_misread
    assert not (is_misread and journal.is_finished)


def test_a_chat_of_gpt_oss_is_not_continued() -> None:
    """Its parser begins each stream with a channel's header, and shows nothing of what follows."""
    body = {"max_tokens": 5, "kv_transfer_params": {"prompt_token_ids": [1, 200006, 173781]}}
    for chat, reason in (({"messages": []}, "harmony"), ({}, None)):
        journal = Journal(ask(is_chat=bool(chat)))
        deliver(journal, next(Engine(body | chat).events()))
        assert journal.reason == reason


def test_a_finished_stream_is_not_continued() -> None:
    facts = ask(tokens=3)
    journal = Journal(facts)
    for event in list(Engine(dict(facts.body)).events())[:3]:
        deliver(journal, event)
    assert journal.reason == "finished"


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("wants_usage", [False, True])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_finished_stream_gets_the_end_that_its_engine_owes(
    is_chat: bool, wants_usage: bool, lost: int
) -> None:
    facts = ask(is_chat=is_chat, stream_options={"include_usage": wants_usage})
    journal = Journal(facts)
    whole = list(Engine(dict(facts.body)).events())
    if not wants_usage:
        del whole[-2]
    got = [deliver(journal, event) for event in whole[:-lost]]
    if lost >= 2 + wants_usage:
        assert journal.ending() == b""
        return
    undisturbed = Journal(facts)
    shown = [deliver(undisturbed, event) for event in whole]
    assert answer([*got, journal.ending()]) == answer(shown)


def test_a_journal_without_memory_keeps_nothing() -> None:
    facts = ask(stream_options={"include_usage": True})
    journal = Journal(facts)
    whole = list(Engine(dict(facts.body)).events())
    for event in whole[:9]:
        deliver(journal, event)
    before = journal.size
    assert before > len(facts.raw) + len(PROMPT)
    journal.give_up()
    assert journal.size < before - len(facts.raw)
    assert (journal.reason, journal.delivered) == ("no_room", 0)
    assert text_of(answer([deliver(journal, event) for event in whole[9:]]))
    assert journal.ending() == sse.DONE  # the usage has been delivered
    journal.give_up()
    assert journal.reason == "finished"


def test_without_memory_no_usage_is_made_up() -> None:
    facts = ask(stream_options={"include_usage": True})
    journal = Journal(facts)
    whole = list(Engine(dict(facts.body)).events())
    deliver(journal, whole[0])
    journal.give_up()
    for event in whole[1:-2]:
        deliver(journal, event)
    assert (journal.reason, journal.ending()) == ("finished", b"")


def test_without_ids_no_usage_is_made_up() -> None:
    last = b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":"stop"}]}\n\n'
    for wants_usage, ending in ((True, b""), (False, sse.DONE)):
        journal = Journal(ask(stream_options={"include_usage": wants_usage}))
        journal.events(last)
        assert journal.ending() == ending


def test_usage_is_that_of_one_answer() -> None:
    facts, journal = continued()
    count = journal.delivered
    own: dict[str, Any] = {
        "prompt_tokens": 4 + count,
        "completion_tokens": 9,
        "total_tokens": 13 + count,
    }
    own |= {"prompt_tokens_details": {"cached_tokens": 4 + count}}
    own |= {"completion_tokens_details": {"reasoning_tokens": 1}}
    journal.events(next(Engine(orjson.loads(facts.raw)).events()))
    event = b"data: %b\n\n" % orjson.dumps({"choices": [], "usage": own})
    usage = orjson.loads(journal.events(event)[6:])["usage"]
    assert usage == {
        "prompt_tokens": 4,
        "completion_tokens": 9 + count,
        "total_tokens": 13 + count,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    odd = b'data: {"choices":[],"usage":{}}\n\n'
    assert journal.events(odd) == odd


def test_usage_in_each_event_is_corrected_even_if_it_never_changes() -> None:
    facts, journal = continued()
    journal.events(next(Engine(orjson.loads(facts.raw)).events()))
    choice = b'{"index":0,"text":"a","finish_reason":null,"token_ids":[77]}'
    count = b'"usage":{"prompt_tokens":9,"completion_tokens":1}'
    for _ in range(2):
        event = deliver(journal, b'data: {"id":"e","choices":[%b],%b}\n\n' % (choice, count))
        assert orjson.loads(event[6:])["usage"]["prompt_tokens"] == 9 - journal.carried


@pytest.mark.parametrize("given", [None, 40])
def test_what_limits_an_answer_is_reduced(given: int | None) -> None:
    facts = ask(tokens=30, min_tokens=2, truncate_prompt_tokens=9)
    body = {**facts.body, "max_tokens": given}
    facts = request(COMPLETIONS, **body)
    journal = Journal(facts)
    stream = Engine(dict(facts.body) | {"max_tokens": 30}).events()
    while journal.delivered < 5:
        deliver(journal, next(stream))
    journal.resume(facts)
    body = orjson.loads(facts.raw)
    assert body["max_tokens"] == (given or 16) - journal.delivered
    assert body["min_tokens"] == 0
    assert "truncate_prompt_tokens" not in body


def test_only_what_can_be_continued_is_cut() -> None:
    facts = ask()
    journal = Journal(facts)
    assert not journal.cut(BROKEN)
    journal.events(next(Engine(dict(facts.body)).events()))
    assert journal.cut(BROKEN)
    assert (journal.take_cut(), journal.take_cut()) == (BROKEN, None)


def test_what_a_parser_holds_back_is_not_shown() -> None:
    facts = ask(is_chat=True)
    journal = Journal(facts)
    stream = Engine(dict(facts.body)).events()
    journal.events(next(stream))
    event = b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":null,%b}]}\n\n'
    assert deliver(journal, event % b'"token_ids":[1]') == b""
    assert deliver(journal, event % b'"token_ids":[]') == b""
    event = event.replace(b"{},", b'{"content":""},')
    assert deliver(journal, event % b'"token_ids":[1234]')
    journal.resume(facts)
    assert (journal.delivered, journal.discarded) == (0, 2)


@pytest.mark.parametrize(
    "ids", [b"7", b"12", b",".join([b"151935"] * 20), *(b"9" * n for n in range(59, 66))]
)
def test_ids_of_any_width_are_blanked_within_their_chunk(ids: bytes) -> None:
    journal = Journal(ask())
    event = b'data: {"id":"e","choices":[{"index":0,"text":"x","finish_reason":null,%b}]}\n\n'
    for sent in (b"123", ids, ids):  # the last two are like the first one
        shown = deliver(journal, event % b'"token_ids":[%b]' % sent)
        assert orjson.loads(shown[6:]) == orjson.loads((event % b'"token_ids":null')[6:])
    assert journal.delivered == 1 + 2 * (1 + ids.count(b","))


@pytest.mark.parametrize("is_chat", [False, True])
def test_text_events_pass_without_being_parsed_by_the_next_engine_too(is_chat: bool) -> None:
    facts = ask(is_chat=is_chat)
    journal, body = Journal(facts), dict(facts.body)
    shown = []
    for name in ("e", "f"):
        stream = Engine(body, 1, name).events()
        passed = 0
        for event in itertools.islice(stream, 12):
            chunk = framed(event)
            passes = journal.token(chunk, len(event))
            passed += bool(passes)
            shown.append(passes.partition(b"\r\n")[2][:-2] or journal.events(event))
            assert not passes or len(passes) == len(chunk)
        assert passed >= 5
        body = resumed(journal, facts)
    assert {orjson.loads(event[6:])["id"] for event in shown if event} == {"e"}


@pytest.mark.parametrize(
    "event",
    [
        b'{"id":"e","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":[12]}]}',
        b'{"id":"e","choices":[{"index":0,"text":"x","finish_reason":"stop","token_ids":[12]}]}',
        b'{"id":"e","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[]}]}',
        b'{"id":"e","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[1]}],"a":1}',
        b'{"id":"f","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[12]}]}',
        b'{"id":"e","choices":[{"index":0,"text":"","b":"x","finish_reason":null,"token_ids":[1]}]}',
        b'{"id":"e","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":null}]}',
    ],
)
def test_what_differs_from_a_text_event_is_parsed(event: bytes) -> None:
    text = b'{"id":"e","choices":[{"index":0,"text":"\\"","finish_reason":null,"token_ids":[12]}]}'
    journal = Journal(ask())
    journal.events(b"data: %b\n\n" % text)
    for data, passes in ((text, True), (event, False)):
        frame = framed(b"data: %b\n\n" % data)
        assert bool(journal.token(frame, len(data) + 8)) == passes


def test_two_events_in_one_chunk_are_both_noted() -> None:
    facts = ask()
    journal = Journal(facts)
    journal.events(next(Engine(dict(facts.body)).events()))
    before = journal.delivered
    event = b'data: {"id":"e","choices":[{"index":0,"text":"x","finish_reason":null,%b}]}\n\n'
    two = event % b'"token_ids":[123]' + event % b'"token_ids":[456]'
    assert journal.token(framed(two), len(two)) == b""
    assert journal.events(two) == 2 * (event % b'"token_ids":null')
    assert journal.delivered == before + 2


members = st.sampled_from(
    ("delta", "text", "token_ids", "finish_reason", "content", "role", "usage", "prompt_tokens")
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(("", "a", "abort")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(members, inner, max_size=3),
    max_leaves=6,
)


@given(is_chat=st.booleans(), choices=st.lists(values, min_size=1, max_size=3), more=values)
def test_no_event_of_an_engine_breaks_the_router(
    is_chat: bool, choices: list[Any], more: Any
) -> None:
    journal = Journal(ask(is_chat=is_chat))
    for choice in choices:
        document = {"id": "a", "object": "o", "created": 1, "choices": [choice], "usage": more}
        for given_ids in ({}, {"prompt_token_ids": [1, 2]}):
            event = b"data: " + orjson.dumps(document | given_ids) + b"\n\n"
            journal.events(event)
            journal.token(framed(event), len(event))
    journal.ending()


def test_ids_in_front_of_the_text_are_noted() -> None:
    journal = Journal(ask())
    choice = b'{"index":0,"token_ids":%b,"text":"a","finish_reason":null}'
    event = b'data: {"id":"e","choices":[' + choice + b"]}\n\n"
    for _ in range(2):
        assert deliver(journal, event % b"[77]") == event % b"null"
    assert journal.delivered == 2


def test_a_choice_that_is_no_json_passes_and_ends_the_journal() -> None:
    event = b'data: {"id":"e","choices":[{"index":0,"text":}]}\n\n'
    journal = Journal(ask())
    assert journal.events(event) == event
    assert journal.reason == "no_ids"


def test_an_answer_without_ids_is_not_continued() -> None:
    journal = Journal(ask())
    journal.events(b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n')
    assert journal.reason == "no_ids"


def test_a_tool_call_is_not_continued() -> None:
    facts = ask(is_chat=True)
    journal = Journal(facts)
    stream = Engine(dict(facts.body)).events()
    for _ in range(4):
        deliver(journal, next(stream))
    call = b'"delta":{"tool_calls":[{"index":0}]}'
    event = b'data: {"id":"a","choices":[{"index":0,%b,"finish_reason":null,"token_ids":[12]}]}\n\n'
    for _ in range(2):
        shown = orjson.loads(deliver(journal, event % call)[6:])
        assert shown["choices"][0]["token_ids"] is None
        assert journal.reason == "tool_call"


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":"abort",'
        b'"token_ids":[1]}]}\n\n',
        b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n',
    ],
)
def test_the_end_of_an_engine_that_fails_is_not_delivered(event: bytes) -> None:
    facts = ask()
    journal = Journal(facts)
    stream = Engine(dict(facts.body)).events()
    while journal.delivered < 5:
        deliver(journal, next(stream))
    assert deliver(journal, event) == b""
    assert journal.events(sse.DONE) == b""
    assert journal.failure is not None
    assert journal.reason is None


def test_an_error_behind_the_last_token_is_not_delivered() -> None:
    facts = ask(tokens=1)
    journal = Journal(facts)
    journal.events(next(Engine(dict(facts.body)).events()))
    assert journal.events(b'data: {"error": {"message": "dead", "code": 500}}\n\n') == b""
    assert journal.failure is not None
    assert journal.ending() == sse.DONE


def test_an_error_of_the_client_s_is_delivered() -> None:
    facts = ask()
    journal = Journal(facts)
    journal.events(next(Engine(dict(facts.body)).events()))
    error = b'data: {"error": {"message": "too long", "code": 400}}\n\n'
    assert journal.events(error) == error
