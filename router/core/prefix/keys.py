"""Keys of a prompt's prefixes: prompts with a common beginning have the same first keys.

No tokenizer is needed. Text is cut into chunks of 512 characters (about eight blocks of vLLM's KV
cache). Each message begins a new chunk, so that a conversation keeps its keys when it continues; so
do tool call inputs, tool results and thinking blocks. Everything else that changes the prompt
(model, tools, template arguments, `cache_salt`) is hashed into the first key. An image or the like
ends a chunk, whose key is a hash of its content. `cache_control` is ignored, because engines do not
use it and clients move it between messages. So is the billing header of Claude Code's system
prompts.

A key is Python's own hash, randomly seeded, so that clients cannot construct collisions. The worker
processes of a host are forks of one process and have the same keys; so have replicas that were
started with the same hash seed.
"""

from array import array
from collections.abc import Mapping
from typing import Any, Final

import orjson

from router.core.request_facts import NO_KEYS, Facts, ImageRule, PrefixKeys
from router.core.routes import ROUTES
from router.core.values import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from router.core.wire.contents import (
    BILLING_HEADER,
    beside_content,
    json_text,
    text_member,
    text_of,
    unbilled,
)
from router.core.wire.media import MAX_MEDIA_TOKENS, media_tokens
from router.core.wire.tokens import CHARACTERS_PER_TOKEN, NAMED_MEMBERS, prompts, sole_ids

__all__ = ["CHUNK_TOKENS", "MIN_TOKENS", "prefix_keys", "scheme"]

CHUNK_CHARACTERS: Final = 512
CHUNK_TOKENS: Final = CHUNK_CHARACTERS // CHARACTERS_PER_TOKEN

ID_BYTES: Final = 4

MIN_TOKENS: Final = CHUNK_TOKENS
"""Prompts with fewer estimated tokens have no keys: engines compute them in a fraction of a step.
First turns of conversations usually have more, so that the second turn finds the first."""

MAX_STEPS: Final = 8192
"""Most chunks, messages and other parts of a prompt that get keys: 4 million characters, more than
any model takes. The rest counts as not cached."""

CACHE_CONTROL: Final = "cache_control"
"""A member that clients move between parts and messages, and that is not part of the prompt."""

SHAPING_PARTS: Final = {"reasoning": "effort", "output_config": "effort", "thinking": "type"}
"""Objects in a body of which only the named member changes the prompt."""

SHAPING_KEYS: Final = frozenset(
    {
        *("tools", "tool_choice", "functions", "documents", "cache_salt", "mm_processor_kwargs"),
        *("chat_template", "chat_template_kwargs", "reasoning_effort", "media_io_kwargs"),
        *("add_special_tokens", "truncate_prompt_tokens", "truncation_side", *SHAPING_PARTS),
    }
)
"""Members of a body that change its prompt from its beginning on, or whether engines share its
blocks with others. Some change only its end, and are left out: `add_generation_prompt` and
`continue_final_message`."""


def prefix_keys(facts: Facts) -> PrefixKeys:
    """The keys of a request's prompt; none if it is short, is not a single prompt, or cannot be
    serialised for comparison."""
    if facts.tokens < MIN_TOKENS:
        return NO_KEYS
    try:
        chain = _chain(facts)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes
        return NO_KEYS
    return PrefixKeys(tuple(chain.keys), tuple(chain.ends))


def _chain(facts: Facts) -> "_Chain":
    body, kind = facts.body, facts.route.kind
    chain = _Chain(_root(facts), facts.image_rule)
    if kind is COMPLETIONS:
        given = prompts(body.get("prompt"))
        if len(given) == 1:
            chain.add_prompt(given[0])
    elif kind is CHAT:
        chain.add_messages(body.get("messages"))
    elif kind is MESSAGES:
        chain.add_system(body.get("system"))
        chain.add_messages(body.get("messages"))
    elif kind is GENERATE:
        ids = sole_ids(body)
        if ids is not None:
            chain.add_prompt(ids)
    elif kind is RESPONSES and body.get("previous_response_id") is None:
        chain.add_content(body.get("instructions"))
        chain.add_messages(body.get("previous_input_messages"))
        given_input = body.get("input")
        if isinstance(given_input, str):
            chain.add_text(given_input)
        else:
            chain.add_messages(given_input)
    return chain


SAMPLE: Final[dict[str, Any]] = {
    **dict.fromkeys(SHAPING_KEYS, "sample"),
    "tools": [{"type": "function"}],
    "reasoning": {"effort": "low", "summary": "auto"},
    "messages": [
        {"role": "system", "content": f"{BILLING_HEADER}: a\n" + "You are a sample. " * 50},
        {"role": "user", "name": "a", "content": [{"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "user", "content": [{"type": "tool_result", "content": "An answer."}]},
    ],
}


def scheme() -> str:
    """Identifies how keys are made (chunking and hash seed): processes with the same value make the
    same keys."""
    route = ROUTES["/v1/chat/completions"]
    facts = Facts(route, None, False, MIN_TOKENS, "", None, b"", SAMPLE)
    return f"{hash(prefix_keys(facts)) & (1 << 64) - 1:016x}"


def _root(facts: Facts) -> int:
    body = facts.body
    model = facts.model or ""  # before Python 3.12 the hash of None is another in each process
    if SHAPING_KEYS.isdisjoint(body):
        return hash((facts.route.path, model))
    shaping = [(key, _shape(body, key)) for key in sorted(SHAPING_KEYS.intersection(body))]
    return hash((facts.route.path, model, *shaping))


def _shape(body: Mapping[str, Any], key: str) -> int:
    """A hash of what a member of the body contributes to the prompt."""
    value, part = body[key], SHAPING_PARTS.get(key)
    return _digest(value.get(part) if part is not None and isinstance(value, dict) else value)


def _digest(value: object) -> int:
    """A hash of a part of the body that is compared as a whole."""
    if value is None:
        return 0
    if isinstance(value, str):
        return hash(value)
    return hash(orjson.dumps(value))


def _digest_rest(item: Mapping[str, Any], *names: str | None) -> int:
    """A hash of all members of a message, item or part except those named."""
    return hash(orjson.dumps([member for member in item.items() if member[0] not in names]))


class _Chain:
    """Builds the keys, from at most `MAX_STEPS` chunks and other parts."""

    __slots__ = ("_characters", "_image_rule", "_key", "_left", "_media_left", "ends", "keys")

    def __init__(self, root: int, image_rule: ImageRule) -> None:
        self.keys: list[int] = []
        self.ends: list[int] = []
        self._key = root
        self._image_rule = image_rule
        self._characters = 0
        self._left = MAX_STEPS
        self._media_left = MAX_MEDIA_TOKENS

    def add_text(self, text: str) -> None:
        """Add text, in chunks that hold nothing else."""
        if len(text) > CHUNK_CHARACTERS * self._left:
            text = text[: CHUNK_CHARACTERS * max(0, self._left)]
        if not text:
            return
        key = self._key
        begun, end = self._characters, self._characters + len(text)
        if len(text) > CHUNK_CHARACTERS:
            append = self.keys.append
            for start in range(0, len(text), CHUNK_CHARACTERS):
                key = hash((key, text[start : start + CHUNK_CHARACTERS]))
                append(key)
            before_last = (len(text) - 1) // CHUNK_CHARACTERS
            first = begun // CHARACTERS_PER_TOKEN + CHUNK_TOKENS
            self.ends += range(first, first + before_last * CHUNK_TOKENS, CHUNK_TOKENS)
            self._left -= before_last
        else:  # most messages are short
            key = hash((key, text))
            self.keys.append(key)
        self.ends.append(end // CHARACTERS_PER_TOKEN)
        self._key, self._characters = key, end
        self._left -= 1

    def add_prompt(self, prompt: Any) -> None:
        """Add a completion's prompt: a text, or a list of token ids."""
        if isinstance(prompt, str):
            self.add_text(prompt)
            return
        ids = prompt[: CHUNK_TOKENS * self._left]
        try:
            data = array("I", ids).tobytes()
        except (TypeError, OverflowError):  # the engine answers with the error
            return
        key = self._key
        for start in range(0, len(data), ID_BYTES * CHUNK_TOKENS):
            key = hash((key, data[start : start + ID_BYTES * CHUNK_TOKENS]))
            self.keys.append(key)
            self.ends.append(min(start // ID_BYTES + CHUNK_TOKENS, len(ids)))

    def add_messages(self, messages: object) -> None:
        """Add a conversation."""
        if not isinstance(messages, list):
            return
        for message in messages:
            if self._left <= 0 or not isinstance(message, dict):
                return
            role, content = message.get("role"), message.get("content")
            own = hash(role) if isinstance(role, str) else _digest(role)
            shaping = len(message)
            if shaping > NAMED_MEMBERS and CACHE_CONTROL in message:
                shaping -= 1
            is_usual = shaping <= NAMED_MEMBERS and role is not None and content is not None
            if not is_usual:
                rest = _digest_rest(message, "role", "content", text_member(message), CACHE_CONTROL)
                own = hash((own, rest))
            self._key = hash((self._key, own))
            self._left -= 1
            if role == "system":
                self.add_system(content)
            elif isinstance(content, str):
                self.add_text(content)
            else:
                self.add_content(content)
            if not is_usual:
                for held in beside_content(message):
                    self._add_tool_content(held)

    def add_system(self, content: object) -> None:
        """Add a system prompt, as engines read it."""
        if isinstance(content, list):
            self.add_content([unbilled(part) for part in content[:MAX_STEPS]])
        else:
            self.add_content(unbilled(content))

    def add_content(self, content: object) -> None:
        """Add a message's content: a text, or a list of parts."""
        if isinstance(content, str):
            self.add_text(content)
        elif isinstance(content, list):
            self._add_parts(content)
        elif content is not None:
            self._mix(_digest(content))

    def _add_parts(self, parts: list[Any], *, are_inner: bool = False) -> None:
        """`are_inner`: parts of a tool result, which hold no further parts."""
        for part in parts:
            if self._left <= 0:
                return
            text = text_of(part)
            if text is not None:
                self.add_text(text)
            elif isinstance(part, dict):
                name = None if are_inner else text_member(part)
                self._mix(_digest_rest(part, name, CACHE_CONTROL))
                if name is None:
                    self._end_media(media_tokens(part, self._image_rule))
                if name is not None:
                    self._add_tool_content(part.get(name))
            else:
                self._mix(_digest(part))

    def _add_tool_content(self, held: object) -> None:
        """Add a tool call's input, a tool result or a thinking block."""
        text = json_text(held) if isinstance(held, dict) else held
        if isinstance(text, str) and text:
            self.add_text(text)
        elif isinstance(held, list):
            self._add_parts(held, are_inner=True)
        elif held is not None:
            self._mix(_digest(held))

    def _end_media(self, tokens: int) -> None:
        """End a chunk behind media that have just been mixed in; nothing without tokens."""
        if tokens:
            tokens = min(tokens, self._media_left)
            self._media_left -= tokens
            self._characters += CHARACTERS_PER_TOKEN * tokens
            self.keys.append(self._key)
            self.ends.append(self._characters // CHARACTERS_PER_TOKEN)

    def _mix(self, number: int) -> None:
        """Hash `number`, of something that is not text, into all following keys."""
        self._key = hash((self._key, number))
        self._left -= 1
