"""What a request demands of the answer's form: a JSON schema, a regular expression, a choice or a
tool call; and how a call is read from the text.

The model writes calls as Hermes models do, <tool_call>{"name": ..., "arguments": ...}</tool_call>,
and the server reads them from its text, as vLLM's parser does.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from json import loads
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

from router.simulator.api.errors import ApiError, bad_request, invalid, not_valid
from router.simulator.model.json_schema import write_json, write_match
from router.simulator.model.sequence import Grammar

Body = Mapping[str, Any]


def checked(write: Callable[[Random], str]) -> Grammar:
    """A grammar that can be written. Raises the 400 for one that cannot."""
    try:
        write(Random(0))
    except (ValueError, TypeError, IndexError) as error:
        raise bad_request(f"Grammar error: {error}") from None
    return lambda seed: write(Random(seed))


def read_grammar(api: str, body: Body) -> Grammar | None:
    """The grammar of the answer. None: any text. Raises ApiError.

    Removed fields such as guided_json are ignored, as in vLLM 0.32.
    """
    demands = _object(body, "structured_outputs").items()
    given = {key: value for key, value in demands if value is not None and value is not False}
    if sum(key in given for key in ("json", "regex", "choice")) > 1:
        message = (
            "You can only use one kind of constraints for structured outputs"
            " ('json', 'regex' or 'choice')."
        )
        raise invalid("structured_outputs", message)
    given |= _format(api, body)
    if "json" in given:
        schema = given["json"]
        is_text = isinstance(schema, str)
        return checked(lambda random: write_json(loads(schema) if is_text else schema, random))
    if "json_object" in given:
        return checked(lambda random: write_json({"type": "object"}, random))
    if "regex" in given:
        return checked(lambda random: write_match(given["regex"], random))
    if "choice" in given:
        return checked(lambda random: str(random.choice(given["choice"])))
    if given.keys() & {"grammar", "structural_tag"}:
        raise bad_request("Grammar error: simulated engines have no grammars and structural tags")
    return None


def _format(api: str, body: Body) -> dict[str, Any]:
    """The response format, as a member of vLLM's structured_outputs."""
    name, *inner = _PLACES[api]
    wanted = _object(body, name)
    for key in inner:
        wanted = _object(wanted, key)
    kind = wanted.get("type", "text")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        message = "Input should be 'text', 'json_object' or 'json_schema'"
        raise not_valid("literal_error", f"body.{'.'.join(_PLACES[api])}.type", message, kind)
    holder = _object(wanted, "json_schema") if name == "response_format" else wanted
    if "schema" not in holder:
        message = (
            "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        )
        raise invalid("response_format", message)
    return {"json": holder["schema"]}


_PLACES = {
    "chat": ("response_format",),
    "completions": ("response_format",),
    "responses": ("text", "format"),
    "messages": ("output_config", "format"),
}


def _object(body: Body, name: str) -> Body:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise not_valid("dict_type", f"body.{name}", "Input should be a valid dictionary", value)
    return value or {}


_HEAD = re.compile(r'<tool_call>\n\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')
_END = "}\n</tool_call>"


class ToolCall(NamedTuple):
    """The call that answers a request."""

    grammar: Grammar
    choice: str
    """auto, required or named."""


def read_tool_call(api: str, body: Body) -> ToolCall | None:
    """The call, of the tool that the request names or of the first one. None: a text is due.

    If the model may choose, it calls a tool when a user speaks, and answers a tool's result with a
    text. Raises ApiError.
    """
    tools, (choice, name) = _tools(api, body), _choice(body.get("tool_choice"))
    if choice == "none" or not tools:
        if choice in ("required", "named"):
            message = "When using `tool_choice`, `tools` must be set."
            raise invalid("tool_choice", message)
        return None
    if choice == "named" and name not in tools:
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise invalid("tool_choice", message)
    if choice == "auto" and not _is_user_speaking(api, body):
        return None
    called = name if name in tools else next(iter(tools))

    def write(random: Random) -> str:
        head = f'<tool_call>\n{{"name": {json.dumps(called)}, "arguments": '
        schema = {"type": "object", "properties": {}, **(tools[called] or {})}
        return head + write_json(schema, random) + _END

    try:
        return ToolCall(checked(write), choice)
    except ApiError:
        if choice == "auto":  # then vLLM has no grammar
            return None
        raise


def _tools(api: str, body: Body) -> dict[str, Any]:
    """The schemas of the tools' arguments by name."""
    given = body.get("tools")
    if given == [] and api in ("chat", "messages"):
        message = (
            "`tools` must not be an empty array."
            " Either provide at least one tool or omit the field entirely."
        )
        raise invalid("tools", message)
    found = {}
    for place, tool in enumerate(given or ()):
        function = tool.get("function") if api == "chat" and isinstance(tool, dict) else tool
        if not isinstance(function, dict):
            raise not_valid("missing", f"body.tools.{place}.function", "Field required", tool)
        if isinstance(function.get("name"), str):  # others are built-in tools, such as web search
            found[function["name"]] = function.get(_SCHEMA.get(api, "parameters"))
    return found


_SCHEMA = {"messages": "input_schema"}


def _choice(given: object) -> tuple[str, str | None]:
    """What `tool_choice` means in any API: none, auto, required or named, and the name."""
    if isinstance(given, dict):
        function = given.get("function")
        name = function.get("name") if isinstance(function, dict) else given.get("name")
        if name is not None:
            return "named", name
        given = {"any": "required"}.get(given.get("type", ""), given.get("type"))
    if given is None:
        return "auto", None
    if given not in ("none", "auto", "required"):
        message = (
            f"Invalid value for `tool_choice`: {given}!"
            ' Only named tools, "none", "auto" or "required" are supported.'
        )
        raise invalid("tool_choice", message)
    return str(given), None


def _is_user_speaking(api: str, body: Body) -> bool:
    turns = body.get("input" if api == "responses" else "messages")
    if isinstance(turns, str):
        return True
    last = turns[-1] if isinstance(turns, Sequence) and turns else None
    if not isinstance(last, dict) or last.get("role") != "user":
        return False
    content = last.get("content")
    parts = content if isinstance(content, list) else []
    return not any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)


class CallReader:
    """Reads a call from the text of an answer, as it grows."""

    def __init__(self, call: ToolCall) -> None:
        self.choice = call.choice
        self.id = f"chatcmpl-tool-{uuid4().hex[:16]}"
        self.name = ""
        self.arguments = ""
        """As far as they are known."""
        self.is_complete = False

    def read(self, text: str) -> tuple[bool, str]:
        """Read the text so far. Whether it now has the name, and what it adds to the arguments."""
        head = _HEAD.match(text)
        if head is None:
            return False, ""
        is_new, self.name = not self.name, json.loads(head[1])
        self.is_complete = text.endswith(_END)
        # Behind the arguments is a closing brace, which the last character may be.
        known = text[head.end() :].partition("\n")[0][:-1]
        added, self.arguments = known[len(self.arguments) :], known
        return is_new, added
