"""The name of a request's key, and the format of a file of keys."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import Unauthorized
from router.core.limits.api_keys import ApiKeys, check_key, first_key, presented_key
from router.core.limits.key_limits import NO_LIMITS, KeyLimits

KEY = "sk-0123456789abcdef"
HASH = hashlib.sha256(b"another key").hexdigest()
TEXT = f"# teams\n\n  team-a   {KEY}\nteam_b sha256:{HASH}\n"


def test_a_key_is_known_by_its_name() -> None:
    keys = ApiKeys(TEXT)
    assert keys.names == {"team-a", "team_b"}
    assert keys.name_of(KEY.encode()) == "team-a"
    assert keys.name_of(b"another key") == "team_b"


@given(st.binary() | st.none())
def test_nothing_else_is(key: bytes | None) -> None:
    assert ApiKeys(TEXT).name_of(key) is None


def test_only_hashes_are_kept() -> None:
    keys = ApiKeys(TEXT)
    assert KEY not in repr([getattr(keys, name) for name in dir(keys)])


def test_limits_stand_behind_a_key_and_belong_to_its_name() -> None:
    keys = ApiKeys(
        f"a {KEY} tokens=5 requests=2 streams=1\na {KEY}x requests=2 streams=1 tokens=5\nb {KEY}y"
    )
    assert keys.limits == {"a": KeyLimits(2.0, 5.0, 1), "b": NO_LIMITS}
    assert keys.name_of(KEY.encode()) == keys.name_of(f"{KEY}x".encode()) == "a"


WRONG = {
    "a limit that is none": (f"a {KEY} speed=5", "line 1: behind a key"),
    "a limit of nothing": (f"a {KEY} streams=0", "line 1: behind a key"),
    "a limit twice": (f"a {KEY} streams=1 streams=2", "line 1: behind a key"),
    "two limits of one name": (f"a {KEY} streams=1\na {KEY}x", "line 2: a has other limits"),
    "nothing": ("", "no key"),
    "comments only": ("# x\n", "no key"),
    "no name": (f"x {KEY}\n{KEY}", "line 2"),
    "a name that is none": (f'a"b {KEY}', "line 1"),
    "three words": (f"a {KEY} b", "line 1"),
    "a short key": ("a 0123456789abcde", "16 characters"),
    "no hash": ("a sha256:xyz", "64 hexadecimal"),
    "a short hash": ("a sha256:abcd", "64 hexadecimal"),
    "twice": (f"a {KEY}\nb {KEY}", "line 2: this key is given twice"),
}


@pytest.mark.parametrize(("text", "problem"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_wrong_is_refused_without_quoting_a_key(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        ApiKeys(text)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({b"authorization": b"Bearer abc"}, b"abc"),
        ({b"authorization": b"bearer  abc "}, b"abc"),
        ({b"x-api-key": b"abc"}, b"abc"),
        ({b"authorization": b"Basic abc", b"x-api-key": b"x"}, b"x"),
        ({b"authorization": b"abc"}, None),
        ({}, None),
    ],
)
def test_clients_send_it_as_those_of_openai_or_anthropic(
    fields: dict[bytes, bytes], key: bytes | None
) -> None:
    assert presented_key(fields) == key


@pytest.mark.parametrize(
    ("fields", "text"), [({}, "required"), ({b"x-api-key": b"wrong"}, "not valid")]
)
def test_an_invalid_key_is_refused_without_quoting_it(
    fields: dict[bytes, bytes], text: str
) -> None:
    with pytest.raises(Unauthorized, match=text) as caught:
        check_key(ApiKeys(TEXT), fields)
    assert "wrong" not in caught.value.message
    assert check_key(ApiKeys(TEXT), {b"x-api-key": KEY.encode()}) == "team-a"


def test_the_first_key_that_is_no_hash_is_that_to_ask_with() -> None:
    hashed = f"a sha256:{'0' * 64}\n"
    assert (
        first_key(f"# x y\n\n{hashed}b a-key-of-sixteen streams=1\nc another-key-of-it\n")
        == "a-key-of-sixteen"
    )
    assert first_key(hashed) is None
