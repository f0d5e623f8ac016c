"""The nouns have exactly their fields."""

import orjson
import pytest

from router.core.routes import ROUTES
from router.core.values import Endpoint, Receiver, Reply, Role, RouteKind
from tests.core.fixtures import D0


@pytest.mark.parametrize("kind", RouteKind)
def test_all_routes_except_pass_through_generate(kind: RouteKind) -> None:
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


def test_a_receiver_writes_lmcaches_disagg_spec() -> None:
    receiver = Receiver("d0.kv", (7300, 7301), (7400, 7401))
    assert receiver.ranks == 2
    assert orjson.dumps(receiver.spec("t1")) == (
        b'{"req_id":"t1","receiver_host":"d0.kv","receiver_init_port":[7300,7301],'
        b'"receiver_alloc_port":[7400,7401]}'
    )
