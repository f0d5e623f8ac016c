"""Writes texts that a regular expression matches."""

import math
import re
import string
from importlib import import_module
from random import Random
from typing import Any

# Private, and as it is since Python 3.11: hypothesis depends on it for the same purpose.
_parser: Any = import_module("re._parser")

_TRIES = 100
_MOST = 4_096
"""Most repetitions."""
_CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " "


class PatternError(ValueError):
    """No text can be written for this pattern."""


def write_match(
    pattern: str, random: Random, shortest: float = 0, longest: float = math.inf
) -> str:
    """A text of that length that the pattern matches as a whole. Raises PatternError."""
    try:
        parsed = _parser.parse(pattern)
        for _ in range(_TRIES):
            text = _write(parsed, random)
            if shortest <= len(text) <= longest and re.fullmatch(pattern, text):
                return text
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"invalid regex {pattern!r}: {error}") from error
    raise PatternError(f"no text was found for the regex {pattern!r}")


def _write(parsed: Any, random: Random) -> str:
    return "".join(_piece(str(kind), value, random) for kind, value in parsed)


def _piece(kind: str, value: Any, random: Random) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "ANY" | "NOT_LITERAL":
            return random.choice(_CHARACTERS.replace(chr(value or 0), ""))
        case "IN":
            literals = "".join(chr(code) for name, code in value if str(name) == "LITERAL")
            admitted = [each for each in _CHARACTERS + literals if _is_in(value, each)]
            return random.choice(admitted) if admitted else ""
        case "BRANCH":
            return _write(random.choice(value[1]), random)
        case "SUBPATTERN":
            return _write(value[3], random)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, what = value
            if least > _MOST:
                raise PatternError(f"more than {_MOST} repetitions")
            count = random.randint(least, min(int(most), least + 3))
            return "".join(_write(what, random) for _ in range(count))
        case "AT":
            return ""
    raise PatternError(f"{kind.lower().replace('_', ' ')} in a regex is not supported")


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def _is_in(members: Any, character: str) -> bool:
    """Whether a character is in a class, such as [^a-c]."""
    is_negated = str(members[0][0]) == "NEGATE"
    return is_negated != any(_is_one_of(str(kind), value, character) for kind, value in members)


def _is_one_of(kind: str, value: Any, character: str) -> bool:
    match kind:
        case "LITERAL":
            return ord(character) == int(value)
        case "RANGE":
            return int(value[0]) <= ord(character) <= int(value[1])
        case "CATEGORY":
            return re.match(_CATEGORIES[str(value)], character) is not None
    return False
