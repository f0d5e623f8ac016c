"""JSON and texts that schemas and regular expressions admit."""

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.simulator.model.json_schema import PatternError, SchemaError, write_json, write_match

Schema = dict[str, Any]
names = st.sampled_from(["city", "unit", "days", "a/b", "~"])
sizes = st.integers(0, 4)
leaves = st.one_of(
    st.sampled_from([True, {"const": None}, {"enum": [1, "two", [3]]}, {"type": "boolean"}]),
    st.builds(lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, sizes, sizes),
    st.sampled_from(["date-time", "date", "email", "ipv4", "ipv6", "uuid", "duration"]).map(
        lambda name: {"type": "string", "format": name}
    ),
    st.builds(
        lambda kind, low, span: {"type": kind, "exclusiveMinimum": low, "maximum": low + span},
        st.sampled_from(["integer", "number"]),
        st.integers(-20, 20),
        st.integers(1, 9),
    ),
    st.sampled_from([{"type": ["null", "integer"], "multipleOf": 5}, {"minimum": 1.5}]),
    st.sampled_from([{"type": "string", "pattern": p} for p in (r"^[A-Z]{2}-\d+$", "a|bc")]),
)


def _objects(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    def build(properties: Schema, required: list[str], others: bool | Schema) -> Schema:
        known = [name for name in required if name in properties or others is not False]
        return {
            "type": "object",
            "properties": properties,
            "required": known,
            "additionalProperties": others,
        }

    return st.builds(
        build,
        st.dictionaries(names, members, max_size=3),
        st.lists(names, unique=True, max_size=3),
        st.one_of(st.booleans(), members),
    )


def _branches(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        _objects(members),
        st.dictionaries(st.just("additionalProperties"), members, min_size=1),
        st.builds(
            lambda items, least, more: {
                "items": items,
                "minItems": least,
                "maxItems": least + more,
            },
            members,
            sizes,
            sizes,
        ),
        st.lists(members, min_size=1, max_size=3).map(lambda each: {"prefixItems": each}),
        st.lists(members, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
        st.builds(
            lambda one, more: {"allOf": [one, {"properties": more, "required": list(more)}]},
            _objects(members),
            st.dictionaries(names, st.sampled_from([{}, {"type": "string"}]), max_size=2),
        ),
    )


schemas = st.recursive(leaves, _branches, max_leaves=12)


@given(schemas, schemas, st.integers(0, 2**32))
def test_written_output_is_valid(schema: Any, shared: Any, seed: int) -> None:
    root = {"$defs": {"s": shared}, "anyOf": [schema, {"$ref": "#/$defs/s"}]}
    try:
        text = write_json(root, Random(seed))
    except SchemaError as error:
        assert str(error).startswith(("Unimplemented", "Unsatisfiable"))  # noqa: PT017
        return
    jsonschema.validate(
        json.loads(text), root, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def test_the_same_seed_writes_the_same_and_another_one_something_else() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
    assert write_json(schema, Random(1)) == write_json(schema, Random(1))
    assert write_json(schema, Random(1)) != write_json(schema, Random(2))


@pytest.mark.parametrize("branches", ["anyOf", "oneOf"])
@pytest.mark.parametrize("seed", range(20))
def test_a_schema_that_contains_itself_ends(branches: str, seed: int) -> None:
    tree = {"$ref": "#/$defs/tree"}
    node = {
        "type": "object",
        "properties": {"left": tree, "right": tree, "notes": {"type": "array", "items": tree}},
        "required": ["left", "right"],
    }
    schema = {"$defs": {"tree": {branches: [{"type": "integer"}, node]}}, **tree}
    text = write_json(schema, Random(seed))
    assert len(text) < 10_000
    jsonschema.validate(json.loads(text), schema)


REFUSED = {
    'Unimplemented keys: ["not"]': {"not": {}},
    'Unimplemented keys: ["contains", "uniqueItems"]': {"uniqueItems": True, "contains": {}},
    "Invalid type: nonsense": {"type": "nonsense"},
    "Unknown format: nonsense": {"format": "nonsense"},
    "Pointer '/$defs/no' does not exist": {"$ref": "#/$defs/no"},
    "schema is false": False,
    "schema must be an object or boolean": 5,
    "nested too deeply": {"$ref": "#"},
    "anyOf is empty": {"enum": []},
    "minimum (5) is greater than maximum (3)": {"minimum": 5, "maximum": 3},
    "minLength (2) is greater than maxLength (1)": {"minLength": 2, "maxLength": 1, "pattern": "a"},
    "minItems (3) is greater than maxItems (2)": {"minItems": 3, "maxItems": 2},
    "no number": {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    "minItems above": {"minItems": 10**9},
    "two values of type": {"allOf": [{"type": "string"}, {"type": "null"}]},
    "Invalid schema": {"properties": 5},
    "maxProperties": {"maxProperties": 0, "required": ["a"]},
    "invalid regex": {"pattern": "(a"},
    "no text was found": {"pattern": "aa", "maxLength": 1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_unencodable_values_are_refused(message: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(message)):
        write_json(REFUSED[message], Random(0))


PATTERNS = (
    r"^\d{3}-\d{4}$",
    r"(yes|no)[!?]*",
    r"[^a-z\s]{2,}x?",
    r"\w+@\w+\.(com|org)",
    r"a.c[\-\]]",
    r"[à-é]|é",
    r"(?P<year>20\d\d)(?:-(0[1-9]|1[0-2]))?",
    r"a+?b*",
    r"\$\(\D\S\W",
)


@given(st.sampled_from(PATTERNS), st.integers(0, 2**32))
def test_a_text_matches_its_pattern_as_a_whole(pattern: str, seed: int) -> None:
    assert re.fullmatch(pattern, write_match(pattern, Random(seed)))


@pytest.mark.parametrize("pattern", ["a(?=b)b", "(a", r"(a)\1", "b{5000}", "a^"])
def test_patterns_that_are_not_simple_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        write_match(pattern, Random(0))
