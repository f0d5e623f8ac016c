"""The text of an alias, and what it must not be."""

import pytest

from router.core.model_alias import ModelAlias, check_aliases, parse


@pytest.mark.parametrize(
    ("text", "alias"),
    [
        ("gpt=m", ModelAlias("gpt", (("m", 1),))),
        (" gpt = org/m:8b*3 ", ModelAlias("gpt", (("org/m:8b", 3),))),
        ("gpt=a*95 b*5", ModelAlias("gpt", (("a", 95), ("b", 5)))),
        ("gpt=a by X-User", ModelAlias("gpt", (("a", 1),), "x-user")),
        ("gpt=a else b", ModelAlias("gpt", (("a", 1),), None, "b")),
        ("gpt=a*9 b by x-user else c", ModelAlias("gpt", (("a", 9), ("b", 1)), "x-user", "c")),
    ],
)
def test_a_text_names_models_weights_header_and_fallback(text: str, alias: ModelAlias) -> None:
    assert parse(text) == alias


def test_targets_include_the_fallback() -> None:
    assert parse("x=a b").targets == ("a", "b")
    assert parse("x=a b else c").targets == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpt", "NAME=MODEL"),
        ("=m", "NAME=MODEL"),
        ("gpt= ", "NAME=MODEL"),
        ("gpt=a*0 b", "weight of 1 to"),
        ("gpt=a*-1", "weight of 1 to"),
        ("gpt=a*10001", "weight of 1 to"),
        ("gpt=a*1.5", "weight of 1 to"),
        ("gpt=*5", "weight of 1 to"),
        ("gpt=a a*2", "given twice"),
        ("gpt=a else b by x", "are followed by"),
        ("gpt=a by", "are followed by"),
        ("gpt=a by x:y", "no header's name"),
    ],
)
def test_another_text_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("*", r"\*")):
        parse(text)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (("a=m", "a=n"), "a is given twice"),
        (("a=b", "b=m"), "a: b is an alias itself"),
        (("a=a",), "a: a is an alias itself"),
        (("a=m else b", "b=a"), "is an alias itself"),
    ],
)
def test_no_alias_stands_for_another(texts: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_aliases(map(parse, texts))


def test_several_aliases_may_stand_for_one_model() -> None:
    check_aliases(map(parse, ("a=m", "b=m n")))
