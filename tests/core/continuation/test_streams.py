"""Streams of simulated engines that fail anywhere and go on elsewhere, read in pieces of any size.

The engines' tokens are a hash of all tokens before, and their text is made of these alone.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from router.core.continuation.journal import Journal
from router.core.errors import EngineFailed
from router.core.plans.direct import with_prompt_ids
from router.core.request_facts import Facts
from router.core.wire.jsonspan import with_member
from router.core.wire.sse import DONE, PREAMBLE, EventSplitter, event_kind
from router.core.wire.usage import USAGE
from router.simulator.api.answer import EngineAnswer, Piece, data_frame
from router.simulator.api.errors import engine_dead
from router.simulator.api.generation_request import read_generation_request
from router.simulator.api.openai import Chat, Completions
from router.simulator.config import EngineConfig
from router.simulator.model.language import Language, decode
from router.simulator.model.sequence import Output, Prompt, Sequence, end_of, next_token
from tests.core.continuation.test_seam import find
from tests.core.fixtures import CHAT, COMPLETIONS, request

SECRET = "what no answer may repeat"
EOS_ONE_IN = 300
STOPS = ("b", "b k", "ab r", "o\u00e9", " kob lam", "never comes")
"""Words have four characters, " kob" for example, so that some of these are of two tokens."""

HELD = re.compile(rb'"(text|delta)":("",|\{"content":""\}).*"token_ids":')
"""In an event whose text is held back."""
FAILED = re.compile(rb'data: \{("error"|"choices":\[\{"index":0,"text":"lost").*', re.DOTALL)
"""From the event of a failure on."""


def engine(body: dict[str, Any], number: int, per_event: int, version: str) -> Iterator[bytes]:
    """The events of the engine with this number, with up to `per_event` tokens each."""
    config = EngineConfig(eos_one_in=EOS_ONE_IN, version=version)
    asked = read_generation_request("chat" if "messages" in body else "completions", body, config)
    prompt = Prompt.of(asked.prompts[0], Language(asked.model, EOS_ONE_IN), config.block_size, "")
    sequence = Sequence("", prompt, asked.sampling)
    answer = EngineAnswer(asked, [sequence])
    make = Chat if asked.api == "chat" else Completions
    dialect = make(answer, f"id-{number}", number, False)
    if opening := dialect.opening():
        yield opening
    while not answer.complete:
        pieces: list[Piece] = []
        while len(pieces) < per_event and not answer.complete:
            token = next_token(sequence)
            sequence.tokens.append(token)
            sequence.state = prompt.language.after(sequence.state, token)
            pieces.append(answer.choices[0].take(Output(sequence, token, *end_of(sequence, token))))
        text = "".join(piece.text for piece in pieces)
        tokens = [token for piece in pieces for token in piece.tokens]
        yield dialect.piece(pieces[0]._replace(text=text, tokens=tokens))
    yield from (event + b"\n\n" for event in dialect.closing().split(b"\n\n")[:-1])


@dataclass
class Failure:
    """How an engine fails behind this share of its events, within a character if there is one."""

    share: float
    how: str
    is_within: bool = False

    def of(self, events: list[bytes]) -> list[bytes]:
        """What comes of the events."""
        place = round(self.share * len(events))
        if self.is_within:
            silent = (n for n, each in enumerate(events) if n >= place and HELD.search(each))
            place = next(silent, place - 1) + 1
        before, rest = events[:place], events[place:]
        if not rest or self.how == "ends":
            return before
        if self.how == "is cut":
            return [*before, rest[0][: len(rest[0]) // 2]]
        if self.how == "reports it":
            return [*before, data_frame(engine_dead().document), DONE]
        choice = {"index": 0, "text": "lost", "delta": {"content": "lost"}, "token_ids": [1]}
        return [*before, data_frame({"choices": [choice | {"finish_reason": "abort"}]}), DONE]


failures = st.builds(
    Failure,
    st.sampled_from((0.0, 0.1, 0.3, 0.5, 0.8, 0.95, 1.0)),
    st.sampled_from(("ends", "is cut", "reports it", "aborts")),
    st.sampled_from((True, True, False)),
)


Reads = Iterator[tuple[int, float]]
"""Of how many events each read is, and where it ends within them if they are many."""


def relay(journal: Journal, events: list[bytes], reads: Reads) -> bytes:
    """What the client gets, as by `Hold` and `Events` in net/request/event_readers.py."""
    begin = next((n for n, each in enumerate(events) if event_kind(each) is not PREAMBLE), None)
    if begin is None or b'"abort"' in events[begin] or b'"error"' in events[begin]:
        return b""  # the request is sent to another engine
    if not events[begin].endswith(b"\n\n"):
        return b""
    sent, rest = journal.events(b"".join(events[: begin + 1])), events[begin + 1 :]
    splitter = EventSplitter()
    while rest and journal.failure is None:
        count, share = next(reads)
        read, rest = b"".join(rest[:count]), rest[count:]
        if count > 2:  # it ends within an event
            cut = 1 + int(share * len(read))
            rest = [left, *rest] if (left := read[cut:]) else rest
            read = read[:cut]
        framed = b"%x\r\n%b\r\n" % (len(read), read)
        is_whole = splitter.is_empty and read.endswith(b"\n\n") and USAGE not in read
        if is_whole and (passed := journal.token(framed, len(read))):
            sent += passed.partition(b"\r\n")[2][:-2]
        elif data := splitter.feed(read):
            sent += journal.events(data)
    return sent


@dataclass
class Shown:
    """What a client reads of a stream."""

    text: str
    finish: list[tuple[str, Any]]
    usage: list[dict[str, int]]
    names: int
    roles: int

    @classmethod
    def by(cls, stream: bytes) -> "Shown":
        documents = [orjson.loads(each[6:]) for each in stream.split(b"\n\n") if b"{" in each]
        choices = [choice for each in documents for choice in each["choices"]]
        deltas = [choice.get("delta", choice) for choice in choices]
        return cls(
            "".join(delta.get("content") or delta.get("text") or "" for delta in deltas),
            [(c["finish_reason"], c["stop_reason"]) for c in choices if c["finish_reason"]],
            [each["usage"] for each in documents if each.get("usage")],
            len({(each["id"], each["created"]) for each in documents}),
            sum("role" in delta for delta in deltas),
        )


def ask(*, is_chat: bool, prompt: str, **body: Any) -> Facts:
    """A streamed request, prepared as `RequestRun.start` does."""
    body |= {"model": "sim", "stream": True}
    if is_chat:
        return request(CHAT, messages=[{"role": "user", "content": prompt}], **body)
    return request(COMPLETIONS, prompt=prompt, **body)


@given(
    is_chat=st.booleans(),
    prompt=st.integers(0, 1 << 40).map(lambda number: f"{SECRET} {number} \u4e16"),
    tokens=st.sampled_from((1, 9, 100, 110, 120)),
    per_event=st.sampled_from((1, 1, 1, 2, 7)),
    usage=st.sampled_from((True, True, False)),
    failed=st.lists(failures, min_size=1, max_size=4),
    stops=st.lists(st.sampled_from(STOPS), max_size=2),
    is_old=st.sampled_from((False, False, False, True)),
    reads=st.lists(
        st.tuples(st.sampled_from((1, 1, 1, 2, 5)), st.floats(0.2, 0.9)), min_size=1, max_size=9
    ).map(itertools.cycle),
)
def test_a_client_gets_the_undisturbed_answer_or_a_clean_part_of_it(
    is_chat: bool,
    prompt: str,
    tokens: int,
    per_event: int,
    usage: bool,
    failed: list[Failure],
    stops: list[str],
    is_old: bool,
    reads: Reads,
) -> None:
    """`is_old`: the engines but the first one are before vLLM 0.32, and ignore a chat's ids."""
    facts = ask(
        is_chat=is_chat,
        prompt=prompt,
        max_tokens=tokens,
        stream_options={"include_usage": usage},
        stop=stops,
    )
    alone = Shown.by(b"".join(engine(dict(facts.body), 0, 1, "0.32.0")))
    journal, got = Journal(facts), b""
    body = with_member(facts.raw, "return_token_ids", b"true")
    for number, failure in enumerate([*failed, Failure(1, "ends")]):
        version = "0.29.0" if number and is_old else "0.32.0"
        events = failure.of(list(engine(orjson.loads(body), number, per_event, version)))
        sent = relay(journal, events, reads)
        got += sent
        if got.endswith(DONE):
            break
        if not sent and journal.failure is None:
            continue
        if ending := journal.ending():
            got += ending
            break
        if journal.reason is not None:
            assert journal.reason == "prompt_ignored"
            assert is_old
            assert is_chat
            break
        if journal.is_partial:
            assert per_event > 1 or stops
            try:
                find(journal, decode)
            except EngineFailed:  # what is held back may begin a stop string
                assert stops
                break
        journal.resume(facts)
        body = with_prompt_ids(facts) if is_chat else facts.raw
    clean = FAILED.sub(b"", got)
    shown = Shown.by(clean)
    assert SECRET not in shown.text
    assert clean == got
    if clean != got or not journal.is_finished:
        assert alone.text.startswith(shown.text)
        assert not shown.finish
        assert DONE not in clean
        return
    assert got.count(DONE) == 1
    assert shown == alone
