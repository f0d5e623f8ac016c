"""The journal of one stream: which tokens its client has, and how another engine goes on.

Engines are asked for token ids (`return_token_ids`). The journal cuts them out of each event with
byte searches, since parsing the JSON of each would cost more than relaying it. Text cannot be taken
for a member: within a JSON string each quote is escaped.

Only tokens whose text the client has are carried to the next engine. An engine holds back the bytes
of an incomplete character; if its ids were carried, the next engine's detokenizer would start
within the character, and stream the text of the whole prompt. Later ids are thrown away, and the
next engine makes them again. An event with several tokens (speculative decoding, or an API server
that falls behind) does not show whether its text covers all of them. With stop strings the text
lags behind the tokens. In both cases `find_seam` asks an engine which tokens the text covers.
"""

from typing import Any, Final

import orjson

from router.core.continuation.refusal import LIMITS, is_structured, stop_strings
from router.core.errors import EngineFailed
from router.core.request_facts import Facts
from router.core.values import CHAT, Failure, FailureKind
from router.core.wire import sse
from router.core.wire.api_errors import DROPPED, failed_stream, status_of
from router.core.wire.jsonspan import engine_json, member, value_end

__all__ = ["Journal", "bare"]

IDS: Final = b'"token_ids":['
PROMPT_IDS: Final = b'"prompt_token_ids":['
CHOICE: Final = b'"choices":[{'
TOOL_CALLS: Final = b'"tool_calls":['
ROLE: Final = b'"role":"'
NO_DELTA: Final = b'"delta":{}'
FINISHED: Final = b'"finish_reason":"'
ABORTED: Final = b'"finish_reason":"abort"'
DATA: Final = b"data: {"
ID: Final = DATA + b'"id":"'
CHOICES: Final = b',"choices":['
ERROR: Final = b'data: {"error"'
USAGE: Final = b'"usage":{'

TEXTS: Final = (
    *(b'"content":"', b'"text":"', b'"reasoning":"', b'"reasoning_content":"'),
    b'"arguments":"',
)
"""The beginnings of the text of the answer in a delta or a choice. A tool call is not continued,
but its events pass as quickly."""

IGNORED: Final = Failure(FailureKind.BROKEN, "The next engine ignored the tokens so far.")
"""vLLM before 0.32 ignores the token ids of a chat, and would begin the answer again."""

MISREAD: Final = Failure(FailureKind.BROKEN, "The next engine took reasoning for the answer.")
"""Some parsers of vLLM begin each stream behind the reasoning (mistral, granite, minimax_m3)."""

HARMONY: Final = b",200006,173781"
"""The end of each chat prompt of gpt-oss: `<|start|>assistant` (openai-harmony). vLLM's parser
begins each stream in that place, and shows nothing of an answer that goes on."""

BLANKS: Final = tuple(b"null".ljust(width) for width in range(64))
"""By the width of the list that it replaces, so that a framed chunk keeps its length."""

MIN_WIDTH: Final = len(b"null")

FRAME_END: Final = b"\r\n"
NEWLINE: Final = ord("\n")
OPEN: Final = ord("[")
QUOTE: Final = ord('"')

CONTENT: Final = (b'"content":"', b'"text":"')
"""The beginnings of the text of the answer but for its reasoning."""

REASONING: Final = (b'"reasoning":"', b'"reasoning_content":"')

CONTEXT: Final = 8
"""Tokens before an event that are decoded with its own, which may begin within a character."""

MAX_CHARACTER_TOKENS: Final = 4
"""Most tokens of a character, which has at most four bytes."""

COMPLETION_TOKENS: Final = 16
"""vLLM's `max_tokens` of a completion that states none."""

_USAGE_EVENT = (
    b'data: {%b,"choices":[],'
    b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)


class Journal:
    """What one stream has generated and delivered. `events` is called with complete events, `token`
    with framed chunks."""

    __slots__ = (
        "_asked",
        "_cut",
        "_delivered",
        "_fresh",
        "_head",
        "_identity",
        "_ids",
        "_is_chat",
        "_is_checked",
        "_is_continued",
        "_is_reasoning",
        "_is_structured",
        "_middle",
        "_must_reason",
        "_owed",
        "_prompt",
        "_rests",
        "_shown",
        "_tail",
        "_text",
        "_wants_usage",
        "_width",
        "broken",
        "carried",
        "discarded",
        "failure",
        "held",
        "is_finished",
        "stops",
    )

    def __init__(self, facts: Facts) -> None:
        self._is_chat = facts.route.kind is CHAT
        options = facts.body.get("stream_options")
        self._wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        """Whether the client is to get usage behind the last token."""
        self._asked = facts.raw
        """The client's body."""
        self.stops = (stop_strings(facts.body) or ()) if "stop" in facts.body else ()
        self.held = max(map(len, self.stops)) - 1 if self.stops else 0
        """Characters that engines hold back because they may begin a stop string."""
        self._is_structured = is_structured(facts.body)
        """Whether the answer has to be as a grammar, but for its reasoning."""
        self._owed = b""
        """An event with text that the engine before the present one held back."""
        self._prompt = b""
        """The prompt's ids as JSON writes them, of the first engine's first event."""
        self._ids = bytearray()
        """The generated ids, each followed by a comma or, as the last of its event, a bracket."""
        self._delivered = 0
        """Bytes of `_ids` up to the last token whose text was delivered, or up to the last one of
        its event."""
        self._fresh: list[bytes] = []
        """The ids of later text events. A bytearray would take ten times as long for each."""
        self._text = b""
        """The text of the last text event as JSON writes it; empty if that was the last one."""
        self.carried = 0
        """Tokens that earlier engines generated."""
        self.discarded = 0
        """Tokens that earlier engines generated and another one had to make again."""
        self._is_continued = False
        """Whether the present engine goes on for another one."""
        self._is_checked = True
        """Whether the present engine has named the tokens that it was sent."""
        self._is_reasoning = False
        """Whether the last text event was reasoning."""
        self._must_reason = False
        """Whether the next token has to be reasoning, or its end."""
        self._head = self._middle = self._tail = b""
        """Of the last text event: what precedes the text, what is between text and ids, and what
        follows the ids up to the end of the frame. `_head` is empty if there was none."""
        self._width = 0
        """From the beginning of the ids to their end, in the last of these events."""
        self._rests = [b""]
        """By the width of the ids, what a chunk has from these on, as the client gets it."""
        self._shown = b""
        """`_head` as the client gets it."""
        self._identity = b""
        """The members of the first event before `choices`: id, object, created and model."""
        self._cut: Failure | None = None
        """How the engine has failed, until another one goes on."""
        self.is_finished = False
        """An event with a finish_reason was delivered: nothing may follow but usage and [DONE]."""
        self.failure: Failure | None = None
        """How the engine has failed, according to an event that the client was not sent."""
        self.broken: str | None = None
        """Why the stream can no longer be continued, found in the answer."""

    # While an engine generates.

    def token(self, chunk: bytes, size: int) -> bytes:
        """A framed chunk with `size` bytes of one token's event, its ids noted and blanked at equal
        length. Empty if it is not as the last text event but for text and ids: then `events` has to
        see it."""
        head, middle, tail = self._head, self._middle, self._tail
        if not head:
            return b""
        begin = len(chunk) - size - len(FRAME_END)
        start, close = begin + len(head), len(chunk) - len(tail)
        # Slices cost less than methods, and reading a few bytes less than a search.
        opened = close - self._width
        if opened < start or chunk[opened] != OPEN:
            opened, lowest = close, max(start, close - len(BLANKS) + 2)
            while opened > lowest:
                opened -= 1
                if chunk[opened] == OPEN:
                    break
            self._width = close - opened
        end, width = opened + 1 - len(middle), close + 1 - opened
        if (
            end <= start
            or width < MIN_WIDTH
            or chunk[close:] != tail
            or chunk[end : opened + 1] != middle
            or chunk[begin:start] != head
        ):
            return b""
        text = chunk[start:end]
        if NEWLINE in text:
            return b""
        self._text = text
        self._fresh.append(chunk[opened + 1 : close + 1])
        shown = chunk[:opened]
        if self._is_continued:
            shown = shown[:begin] + self._shown + shown[start:]
        rest = self._rests[width]
        if not rest:
            self._rests[width] = rest = BLANKS[width] + tail[1:]
        return shown + rest

    def events(self, data: bytes) -> bytes:
        """Complete events as the client gets them. Nothing of them once `failure` is set."""
        shown, end = [], 0
        for event in sse.events(data):
            shown.append(self._event(event))
            if self._owed and shown[-1]:
                shown[-1], self._owed = self._owed + shown[-1], b""
            end += len(event)
        return b"".join([*shown, data[end:]])

    def _event(self, event: bytes) -> bytes:
        if self.failure is not None:
            return b""
        if event.find(CHOICE) < 0:  # usage, an error, a comment or [DONE]
            if event.startswith(ERROR) and status_of(event) >= 500 and self._is_hidden:
                self.failure = failed_stream(event)
                return b""
            return self._corrected(self._identified(event))
        is_last = event.find(FINISHED) >= 0
        if is_last and event.find(ABORTED) >= 0 and self._is_hidden:
            self.failure = DROPPED
            return b""
        if not self._is_checked or event.find(PROMPT_IDS) >= 0:
            shown = self._without_prompt(event)
            if not shown:
                return b""
        else:
            shown = event
        if self._must_reason and self._misreads(event):
            return b""
        self.is_finished = self.is_finished or is_last
        return self._token_event(event, self._corrected(self._identified(shown)))

    def _token_event(self, event: bytes, shown: bytes) -> bytes:
        """An event with tokens as the client gets it, their ids noted. `shown`: it has the rest."""
        ids = _list(event, IDS)
        if ids is None:
            if self._is_chat and event.find(ROLE) >= 0:
                return b"" if self._is_continued else shown
            self.broken = "no_ids"
            return shown
        if event.find(TOOL_CALLS) >= 0:
            self.broken = self.broken or "tool_call"
        start = _text_of(event)
        if self._is_structured and _is_answer(event, start):
            self.broken = self.broken or "structured_output"  # the grammar would start anew
        self._note(event, ids, start)
        if (
            start < 0
            and not self.is_finished
            and event.find(NO_DELTA) >= 0
            and event.find(USAGE) < 0
        ):
            return b""  # an engine that is not asked for ids does not report what a parser holds
        return _without(shown, IDS)

    def _without_prompt(self, event: bytes) -> bytes:
        """The first event of an engine, without the ids of the prompt. Empty if they are not those
        that the engine was sent."""
        prompt = _list(event, PROMPT_IDS)
        if prompt and not self._prompt:
            self._prompt = prompt
            if self._is_chat and prompt.endswith(HARMONY):
                self.broken = "harmony"
        elif not self._is_checked and prompt != self._expected():
            self.broken, self.failure = "prompt_ignored", IGNORED
            return b""
        self._is_checked = True
        return bare(event)

    def _misreads(self, event: bytes) -> bool:
        """Whether the engine begins with the answer though the reasoning has not ended. Its end has
        no text of its own. An engine that sends several tokens at once may have ended it rightly,
        which is seldom and cannot be seen."""
        is_misread = _is_answer(event, _text_of(event)) and _text_of(event, REASONING) < 0
        if is_misread:
            self.broken, self.failure = "reasoning_misread", MISREAD
        elif _list(event, IDS):
            self._must_reason = False
        return is_misread

    @property
    def _is_hidden(self) -> bool:
        """Whether the client does not see that the engine fails: the stream could be whole."""
        return self.is_finished or self.reason is None

    def _note(self, event: bytes, ids: bytes, start: int) -> None:
        """Note the ids of an event, and its text, which begins at `start`; -1: there is none."""
        self._note_fresh()
        if ids:
            self._ids += ids + b"]"
        if self.is_finished:
            self._delivered = len(self._ids)
            self._text = b""
        elif start >= 0:
            self._delivered = len(self._ids)
            end = value_end(event, start - 1) - 1
            self._text = event[start:end]
            self._is_reasoning = not _is_answer(event, start)
            self._learn(event, start, end)

    def _note_fresh(self) -> None:
        """Add the ids of the latest text events to the others."""
        if self._fresh:
            self._ids += b"".join(self._fresh)
            self._fresh.clear()
            self._delivered = len(self._ids)

    def _learn(self, event: bytes, start: int, end: int) -> None:
        """Let events that differ from this one in text and ids alone pass by `token`, unless this
        one counts tokens. `start` and `end`: of the text."""
        ids = event.find(IDS) + len(IDS)
        if ids < end:
            return
        head, middle, tail = event[:start], event[end:ids], event[event.find(b"]", ids) :]
        shown = self._identified(head)
        if tail.find(USAGE) < 0 and len(shown) == len(head):
            self._head, self._middle, self._tail = head, middle, tail + FRAME_END
            self._rests = [b""] * len(BLANKS)
            self._shown = shown

    def _identified(self, event: bytes) -> bytes:
        """The event with the first one's id, time and model."""
        if self._identity and not self._is_continued:
            return event
        end = event.find(CHOICES)
        if end < 0 or not event.startswith(ID):
            return event
        if not self._identity:
            self._identity = event[len(DATA) : end]
            return event
        return DATA + self._identity + event[end:]

    def _corrected(self, event: bytes) -> bytes:
        """An event whose usage counts the carried tokens as generated, not as prompt."""
        if not (self.carried or self.is_finished) or event.find(USAGE) < 0:
            return event
        if self.is_finished:
            self._wants_usage = False
        if not self.carried:
            return event
        try:
            document = engine_json(sse.data_of(event))
            usage = document["usage"]
            usage["prompt_tokens"] -= self.carried
            usage["completion_tokens"] += self.carried
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
                details["cached_tokens"] = min(details["cached_tokens"], usage["prompt_tokens"])
            # It counts the tokens of the last engine only.
            usage.pop("completion_tokens_details", None)
            return b"data: %b\n\n" % orjson.dumps(document)
        except (ValueError, LookupError, TypeError):
            return event

    # When the engine has failed.

    @property
    def reason(self) -> str | None:
        """Why the stream cannot be continued now; None if it can."""
        if self.is_finished:
            return "finished"
        if self.broken is None and not self._prompt:
            return "no_ids"
        if self.held and self._text and not self._head.endswith(CONTENT):
            return self.broken or "stop_strings"  # what is held back may be no reasoning
        return self.broken

    def ending(self) -> bytes:
        """What a finished stream lacks: the usage, if the client is to get it, and [DONE]. Empty if
        it is not finished, or the usage is not known."""
        if not self.is_finished or (self._wants_usage and self.broken in ("no_ids", "no_room")):
            return b""
        if not self._wants_usage:
            return sse.DONE
        self._note_fresh()
        prompt, answer = self._prompt.count(b",") + 1, _count(self._ids)
        return _USAGE_EVENT % (self._identity, prompt, prompt + answer, answer) + sse.DONE

    @property
    def size(self) -> int:
        """Bytes that are kept for another engine."""
        self._note_fresh()
        return len(self._asked) + len(self._prompt) + len(self._ids)

    def give_up(self) -> None:
        """Keep nothing for another engine: there is no memory for it. The ids of later tokens are
        kept until the next call."""
        self.broken = self.broken or ("no_room" if self._prompt else "no_ids")
        self._asked = b""
        self._fresh.clear()
        self._ids.clear()
        self._delivered = 0

    @property
    def delivered(self) -> int:
        """Tokens whose text the client has."""
        self._note_fresh()
        return _count(self._ids[: self._delivered])

    @property
    def is_partial(self) -> bool:
        """Whether `find_seam` has to find the last token whose text was delivered."""
        self._note_fresh()
        return bool(self._text) and (self.held > 0 or self._last_count > 1)

    @property
    def last_text(self) -> str:
        """The text of the last event; empty if it is no string."""
        try:
            text = orjson.loads(b'"%b"' % self._text)
        except orjson.JSONDecodeError:
            return ""
        return str(text)

    @property
    def model(self) -> bytes:
        """The model that the client asks for, as JSON."""
        return member(self._asked, "model") or b"null"

    def last_ids(self, left_out: int) -> bytes | None:
        """The ids of the last event and of some tokens before it, as JSON writes them, less some at
        the end. None if the event has no more, or the answer if its engine holds back text."""
        count = self._last_count
        ids = bytes(self._ids[: self._delivered - 1]).replace(b"]", b",").split(b",")
        if left_out >= (len(ids) if self.held else count):
            return None
        window = count + CONTEXT + self.held * MAX_CHARACTER_TOKENS
        return b",".join(ids[-window : len(ids) - left_out])

    @property
    def _last_count(self) -> int:
        """How many tokens the last text event has."""
        end = self._delivered - 1
        return 1 + self._ids.count(b",", self._ids.rfind(b"]", 0, end) + 1, end)

    def forget(self, left_out: int, lacking: str) -> None:
        """Note that the text delivered so far and `lacking`, which the engine held back, are those
        of all tokens but the last `left_out`."""
        if lacking:
            text = orjson.dumps(lacking)[1:-1]
            event = self._shown + text + self._middle[:-1] + b"null" + self._tail[1:-2]
            self._owed = bare(event)
        end = self._delivered - 1
        for _ in range(left_out):
            end = max(self._ids.rfind(b",", 0, end), self._ids.rfind(b"]", 0, end))
        self._ids[end] = ord("]")
        self._delivered = end + 1
        self._text = b""

    def _expected(self) -> bytes:
        """The ids that an engine is sent when nothing has come from it yet."""
        if not self._ids:
            return self._prompt
        return b"%b,%b" % (self._prompt, bytes(self._ids[:-1]).replace(b"]", b","))

    def cut(self, failure: Failure) -> bool:
        """Note that the engine has failed behind the first token. Returns False if the stream
        cannot be continued."""
        if self.reason is not None:
            return False
        self._cut = failure
        return True

    def take_cut(self) -> Failure | None:
        """How the engine has failed since the last call."""
        failure, self._cut = self._cut, None
        return failure

    @property
    def is_continued(self) -> bool:
        """Whether the answer is that of several engines."""
        return self._is_continued

    def resume(self, facts: Facts) -> None:
        """Make `facts` those of the request for the next engine. Undelivered tokens are forgotten.
        Raises EngineFailed if the ids are none, or if orjson cannot write the body: it parses 1024
        levels of nesting and writes 254."""
        self._head = b""
        self._note_fresh()
        self.discarded += _count(self._ids[self._delivered :])
        del self._ids[self._delivered :]
        facts.tokens += self.delivered - self.carried
        self.carried = self.delivered
        self.failure, self._is_checked = None, False
        self._is_continued, self._must_reason = True, self._is_reasoning
        ids = b"[%b]" % self._expected()
        try:
            facts.body = body = self._body(orjson.loads(ids))
            facts.raw = orjson.dumps(body | {"return_token_ids": True})
        except (orjson.JSONEncodeError, orjson.JSONDecodeError) as error:
            raise EngineFailed(f"The engine failed, and no other can go on: {error}.") from None
        if self._is_chat:
            facts.prompt_ids = ids

    def _body(self, ids: list[int]) -> dict[str, Any]:
        """The client's body for the next engine, except for the tokens so far of a chat."""
        count = self.carried
        body: dict[str, Any] = orjson.loads(self._asked)
        if not self._is_chat:
            body["prompt"] = ids
            if body.get("max_tokens") is None:
                body["max_tokens"] = COMPLETION_TOKENS
        for name in LIMITS:
            if isinstance(given := body.get(name), int):
                body[name] = max(0, given - count)
        body.pop("truncate_prompt_tokens", None)  # the ids are those after truncation
        return body


def bare(event: bytes) -> bytes:
    """The event without the ids of the prompt, which may be many."""
    return _without(event, PROMPT_IDS) if event.find(PROMPT_IDS) >= 0 else event


def _list(event: bytes, member: bytes) -> bytes | None:
    """What is within a member's list; None if there is none."""
    start = event.find(member)
    return None if start < 0 else event[start + len(member) : event.find(b"]", start)]


def _without(event: bytes, member: bytes) -> bytes:
    """The event with null in place of a member's list."""
    start = event.find(member) + len(member) - 1
    return event[:start] + b"null" + event[event.find(b"]", start) + 1 :]


def _is_answer(event: bytes, start: int) -> bool:
    """Whether the text that begins at `start` is neither reasoning nor a call; -1: there is
    none."""
    return start >= 0 and event.endswith(CONTENT, 0, start)


def _count(ids: bytearray) -> int:
    """How many ids there are."""
    return ids.count(b",") + ids.count(b"]")


def _text_of(event: bytes, marks: tuple[bytes, ...] = TEXTS) -> int:
    """Where the text of the answer begins in an event; -1 if it has none."""
    for mark in marks:
        start = event.find(mark) + len(mark)
        if start >= len(mark) and event[start] != QUOTE:
            return start
    return -1
