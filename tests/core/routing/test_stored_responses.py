"""The id of a response: the same on both legs of a remote prefill, and the name of the engine that
stores it."""

import orjson
import pytest

from router.core.health import HealthSignal
from router.core.plans.direct import direct
from router.core.plans.nixl import nixl
from router.core.plans.steps import Call, Plan
from router.core.request_facts import Destinations, Facts
from router.core.routing.stored_responses import keepers, response_id
from router.core.values import Endpoint, Failure, FailureKind, Role
from tests.core.fixtures import D0, D1, LOAD_FAILED, P0, P1, RESPONSES, request
from tests.core.routing.run_shell import PREFILLED, Shell

NAME = orjson.loads(response_id(1, D0))
RANKS = [Endpoint(f"{D0.url}#{rank}", Role.DECODE) for rank in range(2)]


def test_an_id_names_its_engine_and_no_other() -> None:
    assert keepers(NAME, [D0, D1]) == (D0,)
    assert keepers(NAME, [D1]) == ()


def test_each_id_is_another_one_in_vllms_form() -> None:
    names = {response_id(unique, D0) for unique in (0, 1, 2**96 - 1)}
    assert len(names) == 3
    assert all(name.startswith(b'"resp_') and len(name) == len(b'"resp_"') + 32 for name in names)


def test_the_ranks_of_an_engine_share_its_responses() -> None:
    assert keepers(NAME, [*RANKS, D1]) == tuple(RANKS)
    assert keepers(orjson.loads(response_id(1, RANKS[1])), RANKS) == tuple(RANKS)


@pytest.mark.parametrize(
    "name", [None, 1, "", "resp_", "resp_zzzzzzzz", NAME[5:], NAME[:-1], NAME.upper(), ["resp_"]]
)
def test_other_ids_name_no_engine(name: object) -> None:
    assert keepers(name, [D0, D1]) == ()


REFUSED = Failure(FailureKind.REFUSED, "refused")


def shell(facts: Facts, *, follows_stored: bool = True) -> Shell:
    """A run of this request, with two engines in each pool that are chosen in turn."""
    made = Shell(P0, P1, D1, D0, facts=facts, follows_stored=follows_stored)
    made.run.decided(made.scheduler.decide(facts, 0.0))
    return made


def name_at(made: Shell) -> object:
    """The id of the response that the engine is given."""
    return orjson.loads(made.run.step.body).get("request_id")


def test_each_engine_that_is_tried_gets_an_id_of_its_own() -> None:
    facts = request(RESPONSES, input="x")
    made = shell(facts)
    first = made.start(direct(facts))
    assert keepers(name_at(made), [D0, D1]) == (first,)
    other = made.fails(REFUSED)
    assert keepers(name_at(made), [D0, D1]) == (other,)
    assert {first, other} == {D0, D1}


def test_a_request_with_an_id_and_one_of_another_route_are_left_as_they_are() -> None:
    for facts in (request(RESPONSES, input="x", request_id="mine"), request(prompt="x")):
        made = shell(facts)
        made.start(direct(facts))
        assert made.run.step.body == facts.raw


def test_questions_beside_a_request_get_no_id() -> None:
    made = shell(request(RESPONSES, input="x"))
    made.start(iter_call())
    assert made.run.step.body == b"{}"


def iter_call() -> Plan:
    """A plan of one call that is no prefill."""
    yield Call(P0, RESPONSES, b"{}", is_prefill=False)


@pytest.mark.parametrize("follows_stored", [False, True])
def test_both_legs_have_one_id_and_each_prefill_another(follows_stored: bool) -> None:
    """vLLM's NixlPushConnector matches them by it, and ignores X-Request-Id there."""
    facts = request(RESPONSES, input="x" * 4000)
    made = shell(facts, follows_stored=follows_stored)
    assert made.start(nixl(facts)) == P0
    names = [name_at(made)]
    made.fails(REFUSED)
    names.append(name_at(made))
    decode = made.replies(PREFILLED)
    assert name_at(made) == names[-1]
    assert made.replies(LOAD_FAILED).role is Role.PREFILL
    names.append(name_at(made))
    assert made.replies(PREFILLED).role is Role.DECODE
    assert name_at(made) == names[-1]
    assert len({str(name) for name in names}) == 3
    assert keepers(names[0], [D0, D1]) == ((decode,) if follows_stored else ())


def test_another_decode_engine_gets_the_id_of_the_prefill_too() -> None:
    facts = request(RESPONSES, input="x" * 4000)
    made = shell(facts, follows_stored=False)
    made.start(nixl(facts))
    first = made.replies(PREFILLED)
    name = name_at(made)
    assert made.fails(REFUSED) not in (first, P0, P1)
    assert name_at(made) == name


def test_where_it_stores_the_response_it_gets_a_prefill_of_its_own() -> None:
    facts = request(RESPONSES, input="x" * 4000)
    made = shell(facts)
    made.start(nixl(facts))
    first = made.replies(PREFILLED)
    assert made.fails(REFUSED).role is Role.PREFILL
    other = made.replies(PREFILLED)
    assert {first, other} == {D0, D1}
    assert keepers(name_at(made), [D0, D1]) == (other,)


def test_an_engine_that_computes_the_prompt_makes_the_id() -> None:
    facts = request(RESPONSES, input="x" * 4000)
    made = shell(facts, follows_stored=False)
    made.start(nixl(facts))
    assert made.fails(REFUSED) == P1
    assert made.fails(REFUSED).role is Role.DECODE
    assert made.run.step.body == facts.raw


def test_the_clients_id_stays_that_of_both_legs() -> None:
    facts = request(RESPONSES, input="x" * 4000, request_id="mine")
    made = shell(facts)
    made.start(nixl(facts))
    assert made.run.step.body.count(b"request_id") == 1
    made.replies(PREFILLED)
    assert made.run.step.body.count(b"request_id") == 1
    assert name_at(made) == "mine"


@pytest.mark.parametrize(("times", "name"), [(0, None), (1, None), (2, "mine")])
def test_the_next_request_goes_where_the_response_is(times: int, name: str | None) -> None:
    facts = request(RESPONSES, input="x", previous_response_id=NAME, request_id=name)
    made = shell(facts)
    for _ in range(times):  # whichever engine has its turn
        made.scheduler.lease(Role.DECODE, request(prompt="x"), frozenset(), 0.0)
    assert made.start(direct(facts)) == D0


def test_where_that_engine_is_down_another_one_answers() -> None:
    facts = request(RESPONSES, input="x", previous_response_id=NAME)
    made = shell(facts)
    for _ in range(3):
        made.up(D0, HealthSignal.FAILED)
    assert made.start(direct(facts)) == D1


def test_a_gateways_choice_comes_first() -> None:
    facts = request(RESPONSES, input="x", previous_response_id=NAME)
    facts.destinations = Destinations((), (D1,))
    assert shell(facts).start(direct(facts)) == D1


def test_by_default_nothing_is_followed() -> None:
    facts = request(RESPONSES, input="x", previous_response_id=NAME)
    made = shell(facts, follows_stored=False)
    assert made.start(direct(facts)) == D1
    assert made.run.step.body == facts.raw
