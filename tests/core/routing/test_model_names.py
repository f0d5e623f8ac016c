"""Which model an alias stands for: shares, headers, and engines that are down."""

from collections import Counter

from router.core.fleet.fleet import Fleet
from router.core.model_alias import parse
from router.core.routing.model_names import ModelNames
from tests.core.fixtures import D0, D1
from tests.core.fleets import card, down, fleet_of, up

REQUESTS = 10_000


def a_and_b() -> Fleet:
    """D0 serves a, D1 serves b."""
    fleet = fleet_of(D0, D1)
    fleet.observe(up(D0, card("a", owned_by="x")), 0.0)
    fleet.observe(up(D1, card("b")), 0.0)
    return fleet


def names(*texts: str, fleet: Fleet | None = None) -> ModelNames:
    """These aliases."""
    return ModelNames(map(parse, texts), fleet or a_and_b())


def problems(*texts: str, fleet: Fleet | None = None, is_fixed: bool = True) -> list[str]:
    """What conflicts with the engines' models."""
    return list(names(*texts, fleet=fleet).problems(is_fixed=is_fixed))


def test_shares_are_exact_over_ten_thousand_requests() -> None:
    chosen = names("x=a*95 b*5")
    counts = Counter(chosen.model("x", {}) for _ in range(REQUESTS))
    assert counts == {"a": 9500, "b": 500}


def test_the_smaller_share_is_spread_evenly() -> None:
    chosen = names("x=a*9 b*1")
    for _ in range(REQUESTS // 10):
        assert Counter(chosen.model("x", {}) for _ in range(10)) == {"a": 9, "b": 1}


def test_aliases_take_turns_independently() -> None:
    chosen = names("x=a b", "y=a b")
    assert [chosen.model(name, {}) for name in "xyxy"] == ["a", "a", "b", "b"]


def test_a_header_determines_the_model_in_every_process() -> None:
    one, other = names("x=a*3 b*1 by x-user"), names("x=a*3 b*1 by x-user")
    users = [{b"x-user": b"%d" % number} for number in range(REQUESTS)]
    models = [one.model("x", user) for user in users]
    assert [other.model("x", user) for user in reversed(users)] == models[::-1]
    assert abs(models.count("b") / REQUESTS - 0.25) < 0.02


def test_two_aliases_divide_the_values_differently() -> None:
    chosen = names("x=a b by x-user", "y=a b by x-user")
    users = [{b"x-user": b"%d" % number} for number in range(100)]
    assert [chosen.model("x", u) for u in users] != [chosen.model("y", u) for u in users]


def test_values_move_only_into_the_share_that_grows() -> None:
    before, after = names("x=a*95 b*5 by x-user"), names("x=a*80 b*20 by x-user")
    users = [{b"x-user": b"%d" % number} for number in range(1000)]
    moves = Counter((before.model("x", u), after.model("x", u)) for u in users)
    assert moves["b", "a"] == 0
    assert moves["a", "b"] > 100


def test_requests_without_the_header_take_turns() -> None:
    chosen = names("x=a b by x-user")
    assert [chosen.model("x", {}) for _ in range(4)] == ["a", "b", "a", "b"]


def test_the_fallback_serves_while_all_engines_of_a_model_are_down() -> None:
    fleet = a_and_b()
    chosen = names("x=a else b", "y=a", fleet=fleet)
    assert chosen.model("x", {}) == "a"
    down(fleet, D0)
    assert chosen.model("x", {}) == "b"
    assert chosen.model("y", {}) == "a"
    fleet.observe(up(D0, card("a")), 1.0)
    assert chosen.model("x", {}) == "a"


def test_aliases_are_listed_with_the_card_of_a_model_that_is_up() -> None:
    fleet = a_and_b()
    chosen = names("x=a b", "y=a", fleet=fleet)
    assert chosen.cards()["x"] == {**card("a", owned_by="x"), "id": "x"}
    down(fleet, D0)
    assert chosen.cards() == {"b": card("b"), "x": card("x")}


def test_names_and_models_are_compared_with_those_of_engines() -> None:
    assert problems("x=a b") == []
    assert problems("a=b") == ["a is the name of a model that engines serve"]
    assert problems("x=a c else d") == ["x: no engine serves c", "x: no engine serves d"]


def test_a_model_may_come_with_engines_that_are_not_known_yet() -> None:
    assert problems("x=c", is_fixed=False) == []
    assert problems("x=c", fleet=fleet_of(D0)) == []
    unlisted = fleet_of(D0)
    unlisted.observe(up(D0), 0.0)
    assert problems("x=c", fleet=unlisted) == []
