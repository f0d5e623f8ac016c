"""Policies and limits by the settings; plans, and the receivers that LMCache's plans name."""

import json
import math
from pathlib import Path

import pytest

from router.core.membership.entry import Entry
from router.core.plans.steps import Call, Stream
from router.core.request_facts import ImageRule
from router.core.values import DIRECT, REMOTE, Decision, Endpoint, Receiver, Role
from router.settings import Settings
from router.web.routing import PlanChoice, exclusion_of, fleet_of, image_rules_of
from tests.core.fixtures import COMPLETIONS as ROUTE
from tests.core.fixtures import D0, D1, P0, read
from tests.net.client import request
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, STREAM
from tests.web.test_reload import reload


def test_engines_return_from_slowness_only_where_their_role_is_balanced_by_speed() -> None:
    both = Settings(decode=["http://d0"])
    prefill = Settings(decode=["http://d0"], decode_load_balancing_strategy="least_loaded")
    assert exclusion_of(both).speed_roles == {Role.PREFILL, Role.DECODE}
    assert exclusion_of(prefill).speed_roles == {Role.PREFILL}


def test_an_alias_has_the_image_tokens_of_its_first_model_that_is_stated() -> None:
    stated = {"m": 256, "n": "32x32", "own": 9}
    aliases = ["a=m*1 n*1", "b=o n", "own=m", "c=o"]
    settings = Settings(decode=["http://d0"], image_tokens=stated, model_aliases=aliases)
    fixed, sized = ImageRule(256, 28 * 28), ImageRule(0, 32 * 32)
    own = ImageRule(9, 28 * 28)
    assert image_rules_of(settings) == {"m": fixed, "n": sized, "own": own, "a": fixed, "b": sized}
    assert image_rules_of(Settings(decode=["http://d0"])) is None


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


IDS = read(ROUTE, b'{"model":"m","prompt":[5,6,7]}')
LATER = Receiver("found", (1,), (2,))


def settings(**hosts: str) -> Settings:
    """LMCache, with the receivers of D0 and D1 on these hosts."""
    urls = {"d0": D0.url, "d1": D1.url}
    registry = {
        urls[name]: {"receiver_host": host, "receiver_init_port": 1, "receiver_alloc_port": 2}
        for name, host in hosts.items()
    }
    return Settings(
        disagg_connector_type="lmcache",
        decode=[urls[name] for name in hosts],
        decoder_registry=json.dumps(registry),
    )


def chooses(given: Settings) -> PlanChoice:
    """With a fleet of its own."""
    return PlanChoice(given, fleet_of(given))


def receiver(choice: PlanChoice) -> str | None:
    """The push host in the prefill request for D0; None without a prefill."""
    plan = choice.plan(IDS, Decision(REMOTE, "at_or_above_threshold"))
    next(plan)
    step = plan.send(D0)
    while not isinstance(step, Call | Stream):
        step = plan.send(P0)
    plan.close()
    if not isinstance(step, Call):
        return None
    host: str = json.loads(step.body)["kv_transfer_params"]["disagg_spec"]["receiver_host"]
    return host


@pytest.mark.parametrize("connector", ["nixl", "mooncake", "moriio", "lmcache", "store"])
def test_a_direct_request_uses_one_engine_with_every_connector(connector: str) -> None:
    given = Settings(decode=[D0.url], disagg_connector_type=connector)
    plan = chooses(given).plan(IDS, Decision(DIRECT, "below_threshold"))
    next(plan)
    assert isinstance(plan.send(D0), Stream)
    plan.close()


def test_a_receiver_that_the_settings_name_comes_before_one_that_was_found() -> None:
    choice = chooses(settings(d1="named"))
    assert receiver(choice) is None
    choice.follow([Entry(D0, 0, receiver=LATER)])
    assert receiver(choice) == "found"
    choice.configure(settings(d0="named"))
    assert receiver(choice) == "named"
    choice.follow([Entry(D0, 0, receiver=LATER)])
    assert receiver(choice) == "named"


def test_a_receiver_that_the_settings_name_no_longer_is_not_used() -> None:
    choice = chooses(settings(d0="named", d1="named"))
    choice.follow([])
    assert receiver(choice) == "named"
    choice.configure(settings(d1="named"))
    assert receiver(choice) is None
    choice.configure(settings(d0="named", d1="named"))
    choice.follow([Entry(D0, 0, receiver=LATER)])
    choice.configure(settings(d1="named"))
    assert receiver(choice) == "found"


async def test_a_reload_that_fails_leaves_the_receivers(harness: Harness, tmp_path: Path) -> None:
    router = await harness.router(await harness.engine(), ready=False)
    router.router.routing.plans = choice = chooses(settings(d0="old"))
    choice.follow([])
    with pytest.raises(OSError, match="No such file"):
        reload(
            router,
            api_key_file=tmp_path / "none",
            decoder_registry=settings(d0="new").decoder_registry,
        )
    assert receiver(choice) == "old"
