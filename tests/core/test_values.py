"""The nouns say what they are, and no more."""

from dataclasses import replace
from typing import Any

import pytest

from router.core.routes import ROUTES
from router.core.values import STEP_TOKENS, Endpoint, Facts, Reply, Role, RouteKind
from tests.core.fixtures import COMPLETIONS, D0, candidate, request


@pytest.mark.parametrize(
    ("query", "path"),
    [
        (b"", "/v1/completions"),
        (b"a=1", "/v1/completions?a=1"),
        (b"a=%20\xe9", "/v1/completions?a=%20\u00e9"),
    ],
)
def test_a_request_target_keeps_the_query_as_it_came(query: bytes, path: str) -> None:
    facts = Facts(ROUTES[COMPLETIONS], None, False, 0, "", None, b"", query=query)
    assert facts.path == path


@pytest.mark.parametrize("kind", RouteKind)
def test_all_but_pass_through_routes_generate(kind: RouteKind) -> None:
    routes = [route for route in ROUTES.values() if route.kind is kind]
    assert {route.generates for route in routes} == {kind is not RouteKind.PASS_THROUGH}


def test_an_address_in_two_roles_is_two_endpoints() -> None:
    there = Endpoint(D0.url, Role.PREFILL)
    assert there != D0
    assert {there: 1, D0: 2}[Endpoint(D0.url, Role.DECODE)] == 2


def test_a_role_is_found_by_its_name() -> None:
    assert {"decode": 1}[Role.DECODE] == 1
    assert {Role.DECODE: 1}["decode"] == 1  # type: ignore[index]


def test_bodies_stay_out_of_logs() -> None:
    assert "secret" not in repr(Reply(200, (), b"secret"))


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": "a", "n": 4}, 4),
        ({"messages": [], "n": 2}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
        *(({"prompt": "a", "n": n}, 1) for n in (0, -1, True, 2.0, "2", None, 10**9)),
    ],
)
def test_a_request_is_as_many_sequences_as_answers(body: dict[str, Any], sequences: int) -> None:
    assert replace(request(prompt="a"), body=body).sequences == sequences


class HalfDone:
    """A prefill that is said to be half through a long prompt."""

    def progress(self, now: float) -> float:
        """Its tokens by `now`."""
        return 2.0 * STEP_TOKENS


@pytest.mark.parametrize(
    ("pending", "left"), [(5 * STEP_TOKENS, 3 * STEP_TOKENS), (STEP_TOKENS, STEP_TOKENS), (0, 0)]
)
def test_of_prompts_for_one_step_nothing_is_taken_to_be_computed(pending: int, left: int) -> None:
    """Whatever is said, as by a worker process that has not heard yet that a prompt is complete."""
    engine = candidate(D0)
    engine.prefill = HalfDone()
    engine.load.add(0, 0, pending)
    assert engine.pending(0.0) == left
