"""JSON documents as text, in every spelling that a parser must accept: hypothesis strategies.

`json.dumps` writes one spelling only; these write any white space, escapes where none are needed,
integers of any size and members that come twice.
"""

import json
from collections.abc import Sequence

from hypothesis import strategies as st

__all__ = ["Pair", "keys", "objects", "pairs", "values", "write_object"]

Pair = tuple[str, str]
"""A member's name and its value, both as JSON text."""

spaces = st.text(" \t\r\n", max_size=2)

# Everything but surrogates, which no UTF-8 can hold.
characters = st.characters(exclude_categories=["Cs"])
plain_texts = st.text(characters, max_size=8) | st.sampled_from(
    [
        '"kv_transfer_params":{"remote_host":"h"}',
        ',"kv_transfer_params":null}',
        'kv_transfer_params"',
        "\\",
        '\\"',
        'a\\"kv_transfer_params":1,',
        "}{][,:",
        "data: x\n\n",
    ]
)


@st.composite
def strings(draw: st.DrawFn, texts: st.SearchStrategy[str] = plain_texts) -> str:
    """A JSON string, quoted; any character may be written as an escape."""
    text = draw(texts)
    style = draw(st.sampled_from(["plain", "ascii", "escaped"]))
    if style != "escaped":
        return json.dumps(text, ensure_ascii=style == "ascii")
    units = text.encode("utf-16-be")
    return (
        '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2)) + '"'
    )


numbers = (
    st.integers().map(str)
    | st.integers(min_value=2**63, max_value=2**200).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
    | st.sampled_from(["0", "-0", "-0.0", "1E+2", "1e-7", "0.10", "18446744073709551616"])
)
scalars = numbers | strings() | st.sampled_from(["true", "false", "null"])
keys = strings(
    st.sampled_from(["a", "b", "model", "n", "", "é", "kv", "transfer_params"]) | plain_texts
)


def write_object(pairs: Sequence[Pair], gaps: Sequence[str]) -> str:
    """An object's text. `gaps` are used in turn wherever JSON allows white space."""
    turn = 0

    def gap() -> str:
        nonlocal turn
        turn += 1
        return gaps[turn % len(gaps)]

    members = [f"{gap()}{key}{gap()}:{gap()}{value}{gap()}" for key, value in pairs]
    return "{" + (",".join(members) or gap()) + "}"


gaps = st.lists(spaces, min_size=1, max_size=5)


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = st.builds(
        lambda items, space: "[" + f"{space},{space}".join(items) + space + "]",
        st.lists(inner, max_size=3),
        spaces,
    )
    return arrays | st.builds(write_object, st.lists(st.tuples(keys, inner), max_size=3), gaps)


values: st.SearchStrategy[str] = st.recursive(scalars, _containers, max_leaves=8)
pairs = st.lists(st.tuples(keys, values), max_size=5)
objects = st.builds(write_object, pairs, gaps)
