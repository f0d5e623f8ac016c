"""What an engine's error answer says, for the log: short, and without its clients' text."""

import re
from typing import Any, Final

import orjson

__all__ = ["engine_error"]

MAX_CHARACTERS: Final = 200
MAX_BYTES: Final = 1 << 16
"""Longer answers are not parsed: a validation error may quote a whole prompt."""

# vLLM's validation errors quote what was wrong: `'input': {...}`, `input_value='...'`.
_INPUT: Final = re.compile(r"""(['"]input['"]\s*:|input_value\s*=).*""", re.DOTALL)


def engine_error(role: str, status: int, body: bytes) -> str:
    """One line of an engine's answer with an error status."""
    text = _INPUT.sub("...", _message(body))
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    return f"the {role} engine answered {status}: {text or 'no message'}"


def _message(body: bytes) -> str:
    """OpenAI's `error.message`, vLLM's old `message`, or FastAPI's `detail`; else nothing."""
    try:
        document = orjson.loads(body) if len(body) <= MAX_BYTES else None
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(document, dict):
        return ""
    error: Any = document.get("error")
    inner = error.get("message") if isinstance(error, dict) else error
    for found in (inner, document.get("message"), document.get("detail")):
        if found:
            return str(found)
    return ""
