"""The models that engines list."""

import pytest

from router.core.events import Probed
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal
from router.core.judge.member import Member
from router.core.judge.pool_judge import model_groups
from router.core.values import Role
from tests.core.fixtures import D0, D1, P0, candidate
from tests.core.fleets import NO_ENDPOINTS, card, fleet_of, fleet_up, up


def test_the_known_models_follow_the_lists() -> None:
    fleet = fleet_up(D0)
    assert fleet.models.known() == fleet.models.known() == frozenset()
    fleet.observe(up(D0, card("m")), 0.0)
    fleet.observe(up(D0, card("m")), 1.0)
    assert fleet.models.known() == {"m"}


def test_the_first_usable_engine_that_lists_a_model_names_it() -> None:
    fleet = fleet_of(D0, D1, P0)
    fleet.observe(up(D0, card("a", owner=0), card("b", owner=0)), 0.0)
    fleet.observe(up(D1, card("b", owner=1), card("c", owner=1)), 0.0)
    fleet.observe(up(P0, card("p")), 0.0)
    assert {name: it["owner"] for name, it in fleet.models.cards().items()} == {
        "a": 0,
        "b": 0,
        "c": 1,
    }


def test_an_engine_that_is_away_lists_nothing_and_is_still_known() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(Probed(D0, HealthSignal.UNAVAILABLE), 0.0)
    assert fleet.models.cards() == {}
    assert fleet.models.known() == {"a"}


def test_an_engine_with_unknown_models_lists_none() -> None:
    fleet = fleet_up(D0)
    assert fleet.models.cards() == {}
    assert fleet.models.known() == frozenset()
    assert fleet.models.base() == frozenset()


def test_aliases_and_adapters_are_one_base_model() -> None:
    fleet = fleet_of(D0, D1)
    cards = (
        card("tiny", root="/models/tiny", parent=None),
        card("alias", root="/models/tiny", parent=None),
        card("adapter", root="/adapters/a", parent="tiny"),
    )
    fleet.observe(up(D0, *cards), 0.0)
    fleet.observe(up(D1, *cards), 0.0)
    assert fleet.models.base() == {"/models/tiny"}


def test_models_without_a_root_are_compared_by_name() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a"), card("b", root=None)), 0.0)
    assert fleet.models.base() == {"a", "b"}


def as_told(second: int, **more: object) -> Probed:
    """As vLLM answers: the time, and ids, are new each time."""
    permission = [{"id": f"modelperm-{second}", "created": second}]
    return up(D0, card("m", root="/m", created=second, permission=permission, **more))


def test_a_card_that_was_made_anew_is_the_same() -> None:
    fleet = fleet_up(D0)
    fleet.observe(as_told(1), 0.0)
    kept = Selection(fleet).candidates(Role.DECODE, "m", NO_ENDPOINTS, 0.0)
    fleet.observe(as_told(2), 5.0)
    assert (
        Selection(fleet).candidates(Role.DECODE, "m", NO_ENDPOINTS, 5.0) is kept
    )  # nothing was looked up
    fleet.observe(as_told(3, max_model_len=1), 10.0)
    assert fleet.models.cards()["m"]["max_model_len"] == 1
    assert Selection(fleet).candidates(Role.DECODE, "m", NO_ENDPOINTS, 10.0) is not kept


@pytest.mark.parametrize(
    ("listed", "groups"),
    [
        (("a", "a", "b"), [[0, 1], [2]]),
        (("a", "b", "ab", "c"), [[0, 1, 2], [3]]),  # one that serves both is compared with all
        (("ax", "ay", "b"), [[0, 1], [2]]),  # adapters of one base model
        (("ab", "cd", "bc", "ef", "ed"), [[0, 1, 2, 3, 4]]),
        (("", "a", None, None, ""), [[0, 4], [1], [2, 3]]),
    ],
)
def test_engines_are_rivals_of_those_with_which_they_have_a_model_in_common(
    listed: tuple[str | None, ...], groups: list[list[int]]
) -> None:
    members = [Member(candidate(D0)) for _ in listed]
    for member, models in zip(members, listed, strict=True):
        member.models = None if models is None else frozenset(models)
    number = {id(member): place for place, member in enumerate(members)}
    places = [[number[id(each)] for each in group] for group in model_groups(members)]
    assert sorted(sorted(group) for group in places) == groups


def test_an_engine_that_lists_another_model_is_compared_with_others_from_then_on() -> None:
    fleet = fleet_of(D0, D1)
    for endpoint, gap in ((D0, 0.02), (D1, 0.04)):
        fleet.observe(up(endpoint, card("m")), 0.0)
        speed = fleet.member(endpoint).speed
        speed.was_reliable, speed.per_token = True, gap
    fleet.tick(0.25)
    assert fleet.member(D1).verdict.median == 0.02
    fleet.observe(up(D1, card("other")), 0.5)
    fleet.tick(0.5)
    assert fleet.member(D1).verdict.median == 0.04


@pytest.mark.parametrize(
    ("versions", "all_take"),
    [
        ((), False),
        (("0.32.0", "0.33.1+cu129"), True),
        (("0.32.0", "0.31.9"), False),
        (("0.32.0", None), False),  # it lists models, and is no vLLM
        ((None, None), False),
    ],
)
def test_token_ids_of_chats_are_taken_by_engines_that_are_known_to(
    versions: tuple[str | None, ...], all_take: bool
) -> None:
    fleet = fleet_of(P0, D0, D1)
    fleet.observe(Probed(P0, HealthSignal.OK, version="0.9.0"), 0.0)
    for endpoint, version in zip((D0, D1), versions, strict=False):
        fleet.observe(Probed(endpoint, HealthSignal.OK, (card("m"),), version=version), 0.0)
    assert fleet.models.all_take_prompt_ids == all_take


def test_an_engine_that_is_no_vllm_is_not_known_to_take_them_whatever_its_version() -> None:
    fleet = fleet_of(D0, D1)
    for endpoint, owner in ((D0, "vllm"), (D1, "tensorrt_llm")):
        cards = (card("m", owned_by=owner),)
        fleet.observe(Probed(endpoint, HealthSignal.OK, cards, version="1.2.0"), 0.0)
        assert fleet.models.all_take_prompt_ids == (owner == "vllm")
