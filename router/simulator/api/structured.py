"""What a request demands of the answer's form: a JSON schema, a regular expression or a choice."""

from collections.abc import Callable, Mapping
from json import loads
from random import Random
from typing import Any

from router.simulator.api.errors import bad_request, invalid, not_valid
from router.simulator.model.json_schema import write_json
from router.simulator.model.pattern import write_match
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
