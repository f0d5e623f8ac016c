"""Writes JSON that a schema admits and texts that a regular expression matches, as a model does
whose output is constrained.

It implements most of what vLLM's grammar backends do, and refuses the rest in llguidance's words.
oneOf counts as anyOf.
"""

import json
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from random import Random
from typing import Any

from router.simulator.model.language import words

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


Schema = Mapping[str, Any]


class SchemaError(ValueError):
    """No JSON can be written for this schema."""


_LEVELS = 12
"""Most levels of a value."""
_PLENTY = _LEVELS - 3
"""With no more room than this only what is required is written: recursive schemas end soon."""
_MOST = 4_096
"""Most characters of a string, members of an object and items of an array."""

_UNIMPLEMENTED = {
    *("not", "if", "then", "else", "patternProperties", "propertyNames"),
    *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("dependentRequired", "dependentSchemas", "unevaluatedProperties"),
}
_ANNOTATIONS = {
    *("title", "description", "default", "examples", "$schema", "$id", "$defs", "definitions"),
}
_IMPLIED = (
    ("object", {"properties", "required", "additionalProperties"}),
    ("array", {"items", "prefixItems", "minItems", "maxItems"}),
    ("number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
)
_FORMATS = {
    "date-time": "2026-11-{number}T{number}:30:00Z",
    "date": "2026-11-{number}",
    "time": "{number}:30:00Z",
    "duration": "P{number}D",
    "email": "{word}@example.com",
    "hostname": "{word}.example.com",
    "ipv4": "192.0.2.{number}",
    "ipv6": "2001:db8::{number}",
    "uri": "https://example.com/{word}",
    "uuid": "a9d5c8f2-{number}00-4000-8000-0000000000{number}",
}


def write_json(schema: object, random: Random) -> str:
    """A JSON text that the schema admits. Raises SchemaError."""
    try:
        return json.dumps(_Writer(schema, random).value(schema, _LEVELS), ensure_ascii=False)
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise SchemaError(f"Invalid schema: {error}") from error


class _Writer:
    def __init__(self, root: object, random: Random) -> None:
        self._root = root
        self._random = random

    def value(self, given: object, room: int) -> Any:
        """A value of at most `room` levels."""
        schema = self._resolved(given, room)
        if missing := sorted(_UNIMPLEMENTED & schema.keys()):
            raise SchemaError(f"Unimplemented keys: {json.dumps(missing)}")
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(_some(schema["enum"]))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {name: schema[name] for name in schema if name != key}
                return self._any_of(rest, schema[key], room)
        return self._typed(schema, room - 1)

    def _typed(self, schema: Schema, room: int) -> Any:
        kind = self._kind(schema)
        match kind:
            case "object":
                return self._object(schema, room)
            case "array":
                return self._array(schema, room)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return self._random.random() < 0.5
            case "null":
                return None
        raise SchemaError(f"Invalid type: {kind}")

    def _kind(self, schema: Schema) -> object:
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._random.choice([each for each in kind if each != "null"] or _some(kind))
        implied = (name for name, keys in _IMPLIED if keys & schema.keys())
        return next(implied, "string") if kind is None else kind

    def _resolved(self, schema: Any, room: int) -> Schema:
        """The schema, merged with those that it refers to."""
        if schema is True:
            return {}
        if schema is False:
            raise SchemaError("Unsatisfiable schema: schema is false")
        if not isinstance(schema, dict):
            raise SchemaError("schema must be an object or boolean")
        if room <= 0:
            raise SchemaError("Unsatisfiable schema: nested too deeply")
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            parts.append(self._target(schema["$ref"]))
        own = {name: schema[name] for name in schema if name not in ("allOf", "$ref")}
        return reduce(_merged, (self._resolved(part, room - 1) for part in parts), own)

    def _target(self, reference: str) -> Any:
        pointer, found = reference.partition("#")[2], self._root
        for name in pointer.split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise SchemaError(f"Pointer '{pointer}' does not exist")
            found = found[key]
        return found

    def _any_of(self, rest: Schema, branches: Sequence[Any], room: int) -> Any:
        """A value of one of the branches: of null last and, with little room, of the flattest."""
        order = self._random.sample(branches, len(branches))
        order.sort(key=lambda branch: branch == {"type": "null"})
        error = SchemaError("Unsatisfiable schema: anyOf is empty")
        for allowed in [room] if room > _PLENTY else range(1, room + 1):
            for branch in order:
                try:
                    return self.value(_merged(rest, self._resolved(branch, allowed)), allowed)
                except SchemaError as failed:
                    error = failed
        raise error

    def _object(self, schema: Schema, room: int) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required", ())
        others = schema.get("additionalProperties", True)
        members = {
            name: self.value(member, room)
            for name, member in (properties or {}).items()
            if name in required or (room >= _PLENTY and member is not False)
        }
        for name in required:
            if name not in members:
                members[name] = self.value(others, room)
        is_map = properties is None and others is not False and room >= _PLENTY
        count = _count(schema, "Properties", max(len(members), is_map))
        while len(members) < count:
            members["_".join(self._words(2))] = self.value(others, room)
        if len(members) > count:
            raise SchemaError(f"Unimplemented: maxProperties below {len(members)}")
        return members

    def _array(self, schema: Schema, room: int) -> list[Any]:
        first, others = schema.get("prefixItems", []), schema.get("items", True)
        wanted = len(first) or (others is not False and self._random.randint(1, 3))
        count = _count(schema, "Items", wanted if room >= _PLENTY else 0)
        members = [*first, *[others] * (count - len(first))]
        return [self.value(member, room) for member in members[:count]]

    def _string(self, schema: Schema) -> str:
        if "pattern" in schema:
            _count(schema, "Length", 0)
            shortest, longest = schema.get("minLength", 0), schema.get("maxLength", math.inf)
            try:
                return write_match(schema["pattern"], self._random, shortest, longest)
            except PatternError as error:
                raise SchemaError(str(error)) from error
        if "format" in schema:
            if schema["format"] not in _FORMATS:
                raise SchemaError(f"Unknown format: {schema['format']}")
            (word,), number = self._words(1), self._random.randint(10, 23)
            return _FORMATS[schema["format"]].format(word=word, number=number)
        text = " ".join(self._words(self._random.randint(1, 3)))
        count = _count(schema, "Length", len(text))
        while len(text) < count:
            text += " " + self._words(1)[0]
        return text[:count]

    def _words(self, count: int) -> list[str]:
        return words(count, self._random).split()

    def _number(self, schema: Schema, *, whole: bool) -> float:
        low, high = _limits(schema)
        exclusive = {schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")}
        step = schema.get("multipleOf", 1 if whole else None)
        if step is None:
            value: float = low + (high - low) * self._random.randint(1, 9) / 10
            short = round(value, 2)
            value = short if low < short < high else value
        else:
            first, last = math.ceil(low / step), math.floor(high / step)
            first += first * step in exclusive
            last -= last * step in exclusive
            value = self._random.randint(first, last) * step if first <= last else math.nan
        if value in exclusive or math.isnan(value) or (whole and value != int(value)):
            raise SchemaError("Unsatisfiable schema: no number was found")
        return int(value) if whole else value


def _merged(one: Schema, other: Schema) -> Schema:
    """A schema that admits what both admit. Raises SchemaError for what it cannot combine."""
    merged = {**one, **other}
    if _excludes(one, other) or _excludes(other, one):
        raise SchemaError("Unimplemented: additionalProperties at one place, properties at another")
    for key in one.keys() & other.keys() - _ANNOTATIONS:
        if key == "required":
            merged[key] = [*one[key], *other[key]]
        elif key == "properties":
            merged[key] = {
                name: {"allOf": [part[name] for part in (one[key], other[key]) if name in part]}
                for name in {**one[key], **other[key]}
            }
        elif one[key] != other[key]:
            raise SchemaError(f"Unimplemented: two values of {key} at one place")
    return merged


def _excludes(one: Schema, other: Schema) -> bool:
    """Whether one may not admit the properties of the other."""
    unknown = other.get("properties", {}).keys() - one.get("properties", {}).keys()
    return bool(unknown) and one.get("additionalProperties", True) is not True


def _some(values: Sequence[Any]) -> Sequence[Any]:
    if not values:
        raise SchemaError("Unsatisfiable schema: anyOf is empty")
    return values


def _count(schema: Schema, what: str, wanted: int) -> int:
    """The admitted number of characters, items or properties that is closest to `wanted`."""
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}", math.inf)
    _check_order(f"min{what}", least, f"max{what}", most)
    if least > _MOST:
        raise SchemaError(f"Unimplemented: min{what} above {_MOST}")
    return int(min(max(least, wanted), most))


def _limits(schema: Schema) -> tuple[float, float]:
    """The smallest and the largest number, which may be excluded; a range of 100 by default."""
    low = max(_given(schema, ("minimum", "exclusiveMinimum")), default=None)
    high = min(_given(schema, ("maximum", "exclusiveMaximum")), default=None)
    if low is None:
        low = 0.0 if high is None or high >= 0 else high - 100
    if high is None:
        high = low + 100
    _check_order("minimum", low, "maximum", high)
    return low, high


def _given(schema: Schema, keys: Iterable[str]) -> list[float]:
    return [schema[key] for key in keys if key in schema]


def _check_order(lower: str, low: float, upper: str, high: float) -> None:
    if low > high:
        message = f"{lower} ({low:g}) is greater than {upper} ({high:g})"
        raise SchemaError(f"Unsatisfiable schema: {message}")
