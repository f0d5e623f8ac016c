"""The journal of one stream: which tokens its client has, and how another engine goes on.

Engines are asked for token ids (`return_token_ids`). The journal cuts them out of each event with
byte searches, since parsing the JSON of each would cost more than relaying it. Text cannot be taken
for a member: within a JSON string each quote is escaped.

Only tokens whose text the client has are carried to the next engine. An engine holds back the bytes
of an incomplete character; if its ids were carried, the next engine's detokenizer would start
within the character, and stream the text of the whole prompt. Later ids are thrown away, and the
next engine makes them again. Of an event with several tokens (speculative decoding, or an API
server that falls behind) nothing shows whether its text is that of all of them. The stream cannot
be continued there, but again from the next text of a single token on.
"""

import re
from typing import Any, Final

import orjson

from router.core.continuation.refusal import LIMITS
from router.core.errors import EngineFailed
from router.core.request_facts import Facts
from router.core.values import CHAT, Endpoint, Failure, FailureKind
from router.core.wire import sse
from router.core.wire.api_errors import DROPPED, failed_stream, status_of
from router.core.wire.jsonspan import engine_json, value_end

__all__ = ["LEFT", "Journal"]

IDS: Final = b'"token_ids":['
PROMPT_IDS: Final = b'"prompt_token_ids":['
CHOICE: Final = b'"choices":[{'
TOOL_CALLS: Final = b'"tool_calls":['
ABORTED: Final = b'"finish_reason":"abort"'
JSON_EVENT: Final = b"data: {"
ERROR: Final = b'data: {"error"'
USAGE: Final = b'"usage":{'

VISIBLE: Final = ("content", "reasoning", "reasoning_content", "text")
"""Members of a delta or a choice that are text of the answer."""

LEFT: Final = Failure(FailureKind.BROKEN, "The engine was drained.")
"""In place of a failure, for an engine that has not failed."""

IGNORED: Final = Failure(FailureKind.BROKEN, "The next engine ignored the tokens so far.")
"""vLLM before 0.32 ignores the token ids of a chat, and would begin the answer again."""

BLANKS: Final = tuple(b"null".ljust(width) for width in range(64))
"""By the width of the list that it replaces, so that a framed chunk keeps its length."""

MIN_WIDTH: Final = len(b"null")

FRAME_END: Final = b"\r\n"
NEWLINE: Final = ord("\n")
COMMA: Final = ord(",")

COMPLETION_TOKENS: Final = 16
"""vLLM's `max_tokens` of a completion that states none."""

_IDENTITY = re.compile(rb'"id":"[^"]*","object":"[^"]*","created":\d+(,"model":"(?:[^"\\]|\\.)*")?')
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
        "_head",
        "_identity",
        "_ids",
        "_is_chat",
        "_is_checked",
        "_is_continued",
        "_is_partial",
        "_middle",
        "_prompt",
        "_shown",
        "_tail",
        "_wants_usage",
        "broken",
        "carried",
        "cut_at",
        "discarded",
        "engine",
        "engines",
        "failure",
        "is_finished",
        "pause",
    )

    engine: Endpoint
    """The decode engine that was leased last."""

    def __init__(self, facts: Facts) -> None:
        self._is_chat = facts.route.kind is CHAT
        options = facts.body.get("stream_options")
        self._wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        """Whether the client is to get usage behind the last token."""
        self._asked = facts.raw
        """The client's body."""
        self._prompt = b""
        """The prompt's ids as JSON writes them, of the first engine's first event."""
        self._ids = bytearray()
        """The generated ids, each followed by a comma or, as the last of its event, a bracket."""
        self._delivered = 0
        """Bytes of `_ids` up to the last token whose text was delivered."""
        self._is_partial = False
        """Whether of the last of these tokens a part of the text may be held back."""
        self.carried = 0
        """Tokens that earlier engines generated."""
        self.discarded = 0
        """Tokens that earlier engines generated and another one had to make again."""
        self.pause = 0.0
        """Seconds from the failures of engines to the next ones' first tokens."""
        self.cut_at: float | None = None
        """When the engine failed or was left, in monotonic seconds; None once another one has sent
        a token."""
        self._is_continued = False
        """Whether the present engine goes on for another one."""
        self._is_checked = True
        """Whether the present engine has named the tokens that it was sent."""
        self._head = self._middle = self._tail = b""
        """Of the last text event: what precedes the text, what is between text and ids, and what
        follows the ids up to the end of the frame. `_head` is empty if there was none."""
        self._shown = b""
        """`_head` as the client gets it."""
        self._identity = b""
        """The members id, object, created and model of the first event."""
        self._cut: Failure | None = None
        """How the engine has failed, until another one goes on."""
        self.engines: frozenset[Endpoint] = frozenset()
        """Those that have failed the request, and the present one."""
        self.is_finished = False
        """An event with a finish_reason was delivered: nothing may follow but usage and [DONE]."""
        self.failure: Failure | None = None
        """How the engine has failed, according to an event that the client was not sent."""
        self.broken: str | None = None
        """Why the stream can no longer be continued, found in the answer."""

    def leased(self, engine: Endpoint) -> None:
        """Note the lease of a decode engine."""
        self.engine = engine
        self.engines |= {engine}

    # While an engine generates.

    def token(self, chunk: bytes, size: int) -> bytes:
        """A framed chunk with `size` bytes of one token's event, its ids noted and blanked at equal
        length. Empty if it is not as the last text event but for text and ids: then `events` has to
        see it."""
        head, middle, tail = self._head, self._middle, self._tail
        if not head:
            return b""
        # Methods with one argument and slices cost half as much as `find` and `startswith`.
        before, _, rest = chunk.rpartition(b"[")
        begin = len(chunk) - size - len(FRAME_END)
        start, end = begin + len(head), len(before) - len(middle)
        last = len(rest) - len(tail)
        width = last + 2
        if end <= start or not MIN_WIDTH <= width < len(BLANKS):
            return b""
        if (
            before[begin:start] != head
            or before[end:] != middle
            or rest[last:] != tail
            or NEWLINE in before[start:end]
        ):
            return b""
        ids = rest[: last + 1]
        self._ids += ids
        self._delivered = len(self._ids)
        self._is_partial = COMMA in ids
        if self._is_continued:
            before = before[:begin] + self._shown + before[start:]
        return before + BLANKS[width] + rest[last + 1 :]

    def events(self, data: bytes) -> bytes:
        """Complete events as the client gets them. Nothing of them once `failure` is set."""
        found = sse.events(data)
        rest = data[sum(map(len, found)) :]
        return b"".join([*map(self._event, found), rest])

    def _event(self, event: bytes) -> bytes:
        if self.failure is not None or self._fails(event):
            return b""
        if not event.startswith(JSON_EVENT):  # a comment or [DONE]
            return event
        prompt = _list(event, PROMPT_IDS)
        bare = event if prompt is None else _without(event, PROMPT_IDS)
        choice = _choice(bare)
        if choice is None:  # usage, or an error
            return self._corrected(self._identified(event))
        if prompt and not self._prompt:
            self._prompt = prompt
        elif not self._is_checked and prompt != self._expected():
            self.broken, self.failure = "prompt_ignored", IGNORED
            return b""
        self._is_checked = True
        delta = choice.get("delta") if self._is_chat else choice
        if not isinstance(delta, dict):
            delta = {}
        is_role = self._is_chat and "role" in delta and event.find(IDS) < 0
        if is_role and self._is_continued:
            return b""
        raw, event = event, self._identified(bare)
        if not is_role:
            is_last = choice.get("finish_reason") is not None
            event = self._token_event(raw, event, delta, is_last=is_last)
        return self._corrected(event)

    def _learn(self, event: bytes, name: str) -> None:
        """Let events that differ from this one in text and ids alone pass by `token`, unless this
        one counts tokens. `name`: the member with the text."""
        mark = b'"%b":"' % name.encode()
        start, ids = event.find(mark), event.find(IDS)
        if not 0 <= start < ids:  # the text is no string, or follows the ids
            return
        text = start + len(mark)
        ids += len(IDS)
        head, tail = event[:text], event[event.find(b"]", ids) :]
        middle = event[value_end(event, text - 1) - 1 : ids - 1]
        shown = self._identified(head)
        if tail.find(USAGE) < 0 and len(shown) == len(head):
            self._head, self._middle, self._tail = head, middle, tail + FRAME_END
            self._shown = shown

    def _fails(self, event: bytes) -> bool:
        """Whether an event ends a stream that could be whole."""
        if self.reason is not None and not self.is_finished:
            return False
        if event.find(ABORTED) >= 0:
            self.failure = DROPPED
        elif event.startswith(ERROR) and status_of(event) >= 500:
            self.failure = failed_stream(event)
        return self.failure is not None

    def _token_event(
        self, raw: bytes, event: bytes, delta: dict[str, Any], *, is_last: bool
    ) -> bytes:
        """An event with tokens, its ids noted. `raw`: as the engine has sent it; `delta`: with the
        text; `is_last`: whether it has a finish_reason."""
        ids = _list(event, IDS)
        if ids is None:
            self.broken = "no_ids"
        elif event.find(TOOL_CALLS) >= 0:
            self.broken = self.broken or "tool_call"
        self.is_finished = self.is_finished or is_last
        if ids is None:
            return event
        if ids:
            self._ids += ids + b"]"
        name = next((name for name in VISIBLE if delta.get(name)), None)
        if is_last or name is not None:
            self._delivered = len(self._ids)
            self._is_partial = not is_last and COMMA in ids
        if ids and name is not None:
            self._learn(raw, name)
        if self._is_chat and not delta and not is_last and event.find(USAGE) < 0:
            return b""  # an engine that is not asked for ids does not report what a parser holds
        return _without(event, IDS)

    def _identified(self, event: bytes) -> bytes:
        """The event with the first one's id and time."""
        if self._is_continued:
            return _IDENTITY.sub(lambda _: self._identity, event, count=1)
        if not self._identity and (found := _IDENTITY.search(event)):
            self._identity = found[0]
        return event

    def _corrected(self, event: bytes) -> bytes:
        """An event whose usage counts the carried tokens as generated, not as prompt."""
        if self.is_finished and event.find(USAGE) >= 0:
            self._wants_usage = False
        if not self.carried or event.find(USAGE) < 0:
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
        return self.broken or ("several_tokens" if self._is_partial else None)

    def ending(self) -> bytes:
        """What a finished stream lacks: the usage, if the client is to get it, and [DONE]. Empty if
        it is not finished, or the usage is not known."""
        if not self.is_finished or (self._wants_usage and self.broken in ("no_ids", "no_room")):
            return b""
        if not self._wants_usage:
            return sse.DONE
        prompt, answer = self._prompt.count(b",") + 1, _count(self._ids)
        return _USAGE_EVENT % (self._identity, prompt, prompt + answer, answer) + sse.DONE

    @property
    def size(self) -> int:
        """Bytes that are kept for another engine."""
        return len(self._asked) + len(self._prompt) + len(self._ids)

    def give_up(self) -> None:
        """Keep nothing for another engine: there is no memory for it. The ids of later tokens are
        kept until the next call."""
        self.broken = self.broken or "no_room"
        self._asked = b""
        self._ids.clear()
        self._delivered = 0

    @property
    def delivered(self) -> int:
        """Tokens whose text the client has."""
        return _count(self._ids[: self._delivered])

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

    def leave(self) -> bool:
        """Note that the engine is left although it has not failed, so that it may be used again.
        Returns False if the stream cannot be continued."""
        if not self.cut(LEFT):
            return False
        self.engines -= {self.engine}
        return True

    def take_cut(self, now: float) -> Failure | None:
        """How the engine has failed since the last call. `now`: monotonic seconds."""
        failure, self._cut = self._cut, None
        if failure is not None and self.cut_at is None:
            self.cut_at = now
        return failure

    @property
    def is_continued(self) -> bool:
        """Whether the answer is that of several engines."""
        return self._is_continued

    def begun(self, now: float) -> None:
        """Note a token of the engine that goes on, at `now` in monotonic seconds."""
        if self.cut_at is not None:
            self.pause += now - self.cut_at
            self.cut_at = None

    def resume(self, facts: Facts) -> None:
        """Make `facts` those of the request for the next engine. Undelivered tokens are forgotten.
        Raises EngineFailed if the ids are none, or if orjson cannot write the body: it parses 1024
        levels of nesting and writes 254."""
        self._head = b""
        self.discarded += _count(self._ids[self._delivered :])
        del self._ids[self._delivered :]
        facts.tokens += self.delivered - self.carried
        self.carried = self.delivered
        self.failure, self._is_checked = None, False
        self._is_continued = True
        facts.tried = self.engines
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


def _list(event: bytes, member: bytes) -> bytes | None:
    """What is within a member's list; None if there is none."""
    start = event.find(member)
    return None if start < 0 else event[start + len(member) : event.find(b"]", start)]


def _without(event: bytes, member: bytes) -> bytes:
    """The event with null in place of a member's list."""
    start = event.find(member) + len(member) - 1
    return b"%bnull%b" % (event[:start], event[event.find(b"]", start) + 1 :])


def _count(ids: bytearray) -> int:
    """How many ids there are."""
    return ids.count(b",") + ids.count(b"]")


def _choice(event: bytes) -> dict[str, Any] | None:
    """The only choice of a chunk; None for other events."""
    if event.find(CHOICE) < 0:
        return None
    try:
        choice = engine_json(sse.data_of(event))["choices"][0]
    except (ValueError, LookupError, TypeError):
        return None
    return choice if isinstance(choice, dict) else None
