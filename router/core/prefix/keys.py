"""Keys of a prompt's prefixes: two prompts that begin alike have the same first keys.

No tokenizer is needed: text is cut into chunks of 512 characters, some eight blocks of vLLM's KV
cache, and each message begins a new chunk, so that a conversation keeps its keys when it goes on.
So does what a tool is called with, what it answers, and a thought. Whatever else shapes the prompt
(model, tools, template arguments, `cache_salt`) is part of the first key, images and the like are
part of their message's. `cache_control` shapes nothing: engines do without, and clients move it.
Nor does the billing header of Claude Code's system prompts.

A key is Python's own hash, seeded at random: outsiders cannot make two prompts collide, and the
worker processes of a host, which are forks of one process, have the same keys. So have replicas
that were started with the same seed.
"""

from array import array
from collections.abc import Mapping
from typing import Any, Final

import orjson

from router.core.routes import ROUTES
from router.core.values import CHAT, COMPLETIONS, MESSAGES, NO_KEYS, RESPONSES, Facts, PrefixKeys
from router.core.wire.contents import (
    BILLING_HEADER,
    beside_content,
    json_text,
    text_member,
    text_of,
    unbilled,
)
from router.core.wire.tokens import CHARACTERS_PER_TOKEN, NAMED_MEMBERS, prompts

__all__ = ["CHUNK_TOKENS", "MIN_TOKENS", "prefix_keys", "scheme"]

CHUNK_CHARACTERS: Final = 512
CHUNK_TOKENS: Final = CHUNK_CHARACTERS // CHARACTERS_PER_TOKEN

ID_BYTES: Final = 4

MIN_TOKENS: Final = CHUNK_TOKENS
"""Prompts of fewer estimated tokens have no keys: engines compute them in a part of one step. The
first turns of conversations have more, as a rule, and the second turn is to find the first."""

MAX_STEPS: Final = 8192
"""Chunks, messages and other parts of a prompt that are looked at: 4 million characters, more than
any model takes. What is behind them counts as new."""

CACHE_CONTROL: Final = "cache_control"
"""A member of parts and messages that clients move from one to the next, and that no prompt
holds."""

SHAPING_PARTS: Final = {"reasoning": "effort", "output_config": "effort", "thinking": "type"}
"""Members of a body of which one member changes its prompt; the others change what is generated."""

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
    """The keys of a request's prompt; none where it is short, or not a single prompt, or holds what
    cannot be compared."""
    if facts.tokens < MIN_TOKENS:
        return NO_KEYS
    try:
        chain = _chain(facts)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes
        return NO_KEYS
    return PrefixKeys(tuple(chain.keys), tuple(chain.ends))


def _chain(facts: Facts) -> "_Chain":
    body, kind = facts.body, facts.route.kind
    chain = _Chain(_root(facts))
    if kind is COMPLETIONS:
        given = prompts(body.get("prompt"))
        if len(given) == 1:
            chain.add_prompt(given[0])
    elif kind is CHAT:
        chain.add_messages(body.get("messages"))
    elif kind is MESSAGES:
        chain.add_system(body.get("system"))
        chain.add_messages(body.get("messages"))
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
    """Two processes in which this is the same make the same keys: they cut prompts alike, and hash
    with the same seed."""
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
    """A number for what a member makes of the prompt."""
    value, part = body[key], SHAPING_PARTS.get(key)
    return _digest(value.get(part) if part is not None and isinstance(value, dict) else value)


def _digest(value: object) -> int:
    """A number for a part of the body that is compared as a whole."""
    if value is None:
        return 0
    if isinstance(value, str):
        return hash(value)
    return hash(orjson.dumps(value))


def _digest_rest(item: Mapping[str, Any], *names: str | None) -> int:
    """A number for all members of a message, item or part but those of these names."""
    return hash(orjson.dumps([member for member in item.items() if member[0] not in names]))


class _Chain:
    """Keys in the making. It takes no more when it has had `MAX_STEPS` chunks and other parts."""

    __slots__ = ("_characters", "_key", "_left", "ends", "keys")

    def __init__(self, root: int) -> None:
        self.keys: list[int] = []
        self.ends: list[int] = []
        self._key = root
        self._characters = 0
        self._left = MAX_STEPS

    def add_text(self, text: str) -> None:
        """Add text, in chunks of its own."""
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
        except (TypeError, OverflowError):  # the engine will say what is wrong with them
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
                    self._add_held(held)

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
        """`are_inner`: those of a tool's answer, which hold no further parts."""
        for part in parts:
            if self._left <= 0:
                return
            text = text_of(part)
            if text is not None:
                self.add_text(text)
            elif isinstance(part, dict):
                name = None if are_inner else text_member(part)
                self._mix(_digest_rest(part, name, CACHE_CONTROL))
                if name is not None:
                    self._add_held(part.get(name))
            else:
                self._mix(_digest(part))

    def _add_held(self, held: object) -> None:
        """Add a tool call's input, a tool's answer or a thought."""
        text = json_text(held) if isinstance(held, dict) else held
        if isinstance(text, str) and text:
            self.add_text(text)
        elif isinstance(held, list):
            self._add_parts(held, are_inner=True)
        elif held is not None:
            self._mix(_digest(held))

    def _mix(self, number: int) -> None:
        """Make what follows depend on `number`, which is no text."""
        self._key = hash((self._key, number))
        self._left -= 1
