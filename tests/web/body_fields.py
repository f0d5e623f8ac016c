"""The members of a client's body that the router reads: as tests list them, and as the code has
them."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import router
from router.core.continuation import refusal
from router.core.plans import first_token, prefill
from router.core.prefix import keys
from router.core.wire import facts, tokens
from tests.net.payloads import CHAT, COMPLETIONS, EMBEDDINGS, GENERATE, MESSAGES, RESPONSES

__all__ = ["fields_of", "read_in_router"]

OWN: Final[dict[str, tuple[str, ...]]] = {
    COMPLETIONS: (
        *first_token._SUPPORTED,
        *first_token._ALIKE,
        *first_token._OFF,
    ),
    CHAT: ("messages", "tools", "tool_choice", "max_completion_tokens", "top_logprobs"),
    RESPONSES: (
        *("input", "instructions", "previous_response_id", "previous_input_messages"),
        *("background", "store", "max_output_tokens", "request_id"),
    ),
    MESSAGES: ("messages", "system", "tools", "tool_choice", "stop_sequences", "thinking"),
    GENERATE: ("token_ids", "features", "content_parts"),
}

COMMON: Final = (
    *("model", "stream", "stream_options", "n", "max_tokens", "min_tokens", "priority", "user"),
    *("vllm_xargs", "return_token_ids", "temperature", "seed", "store", "ignore_eos"),
    *facts.TRANSFER_KEYS,
    *facts._SPECIAL_KEYS,
    *keys.SHAPING_KEYS,
    *prefill._DROP,
    *tokens.UNCOUNTED,
    *refusal._RULES,
    *refusal._GRAMMARS,
    *refusal._BESIDE_STOPS,
    "stop",
)
"""On every route that generates."""

PASSED: Final = ("input", "model", "stream", "n", "vllm_xargs", *facts.TRANSFER_KEYS)
"""Where only the model is read."""


def fields_of(path: str) -> list[str]:
    """The members that are read on a route."""
    return list(dict.fromkeys(PASSED if path == EMBEDDINGS else (*OWN[path], *COMMON)))


# As the code has them.

LAYERS: Final = ("core", "net", "web")


def read_in_router() -> dict[str, str]:
    """Each member of a body that the code names, and the module that does."""
    root = Path(router.__file__).parent
    found: dict[str, str] = {}
    for path in sorted(each for layer in LAYERS for each in (root / layer).rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        found |= dict.fromkeys(_read_in(ast.parse(path.read_text()), name), name)
    return found


def _read_in(tree: ast.AST, module: str) -> Iterator[str]:
    """The members of what is called `body` that are asked for by name, or by a constant of the
    module."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(held, "get" | "pop"), [name, *_]) if _is_body(held):
                yield from _texts(name)
            case ast.Subscript(held, name) if _is_body(held):
                yield from _texts(name)
            case ast.Compare(name, [ast.In() | ast.NotIn()], [held]) if _is_body(held):
                yield from _texts(name)
            case ast.Call(ast.Attribute(ast.Name(name), _), [held]) if _is_body(held):
                yield from _constant(module, name)  # NAMES.isdisjoint(body)
            case ast.Call(ast.Name("map"), [ast.Attribute(held), ast.Name(name)]):
                if _is_body(held):
                    yield from _constant(module, name)  # map(body.get, NAMES)


def _is_body(node: ast.AST) -> bool:
    match node:
        case ast.Name("body") | ast.Attribute(_, "body"):
            return True
    return False


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _constant(module: str, name: str) -> Iterator[str]:
    value = getattr(import_module(module), name, ())
    if isinstance(value, tuple | frozenset):
        yield from (each for each in value if isinstance(each, str))
