"""What the settings make of the parts that route."""

import math

from router.core.values import Endpoint, Role
from router.settings import Settings
from router.web.routing_parts import exclusion_of, fleet_of
from tests.net.client import request
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, STREAM


def test_engines_return_from_slowness_only_where_their_role_is_balanced_by_speed() -> None:
    both = Settings(decode=["http://d0"])
    prefill = Settings(decode=["http://d0"], decode_load_balancing_strategy="least_loaded")
    assert exclusion_of(both).speed_roles == frozenset(Role)
    assert exclusion_of(prefill).speed_roles == {Role.PREFILL}


def test_a_stated_limit_is_that_of_decode_engines_and_of_each_of_their_ranks() -> None:
    settings = Settings(
        prefill=["http://p0"],
        decode=["http://d0", "http://d1"],
        engine_max_num_seqs={"http://d0": 8, "*": 64},
    )
    slots = {
        Endpoint("http://d0", Role.DECODE): 8,
        Endpoint("http://d0#1", Role.DECODE): 8,
        Endpoint("http://d1", Role.DECODE): 64,
        Endpoint("http://p0", Role.PREFILL): math.inf,
    }
    fleet = fleet_of(settings, endpoints=list(slots))
    assert {endpoint: fleet.member(endpoint).capacity.slots for endpoint in slots} == slots


async def test_a_stated_limit_is_used_whatever_the_engine_would_run(harness: Harness) -> None:
    """Both engines would run any number: that of a single stated slot gets a single stream."""
    small, large = await harness.engine(), await harness.engine()
    limits = {small.url: 1, large.url: 8}
    router = await harness.router(small, large, engine_max_num_seqs=limits)
    told = (await (await router.client()).get("/endpoints")).json
    assert {entry["url"]: entry["slots"] for entry in told} == limits
    members = {url: router.router.fleet.member(Endpoint(url, Role.DECODE)) for url in limits}
    # Policies get it at the next tick.
    await eventually(lambda: {url: m.view.slots for url, m in members.items()} == limits)
    for _ in range(4):
        await (await router.client()).send(request(COMPLETIONS, STREAM))
    await eventually(lambda: sum(m.view.in_flight for m in members.values()) == 4)
    assert [members[url].view.in_flight for url in limits] == [1, 3]
