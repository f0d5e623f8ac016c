"""Which plan serves a request, and which receivers LMCache's plans name."""

import json
from pathlib import Path

import pytest

from router.core.membership.entry import Entry
from router.core.plans.steps import Call, Stream
from router.core.values import DIRECT, REMOTE, Decision, Receiver
from router.settings import Settings
from router.web.plan_choice import PlanChoice
from tests.core.fixtures import COMPLETIONS, D0, D1, P0, read
from tests.net.harness import Harness
from tests.web.test_reload import reload

IDS = read(COMPLETIONS, b'{"model":"m","prompt":[5,6,7]}')
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


@pytest.mark.parametrize("connector", ["nixl", "lmcache"])
def test_a_direct_request_uses_one_engine_with_every_connector(connector: str) -> None:
    given = Settings(decode=[D0.url], disagg_connector_type=connector)
    plan = PlanChoice(given, notifies=False).plan(IDS, Decision(DIRECT, "below_threshold"))
    next(plan)
    assert isinstance(plan.send(D0), Stream)
    plan.close()


def test_a_receiver_that_the_settings_name_comes_before_one_that_was_found() -> None:
    choice = PlanChoice(settings(d1="named"), notifies=False)
    assert receiver(choice) is None
    choice.follow([Entry(D0, 0, receiver=LATER)])
    assert receiver(choice) == "found"
    choice.configure(settings(d0="named"))
    assert receiver(choice) == "named"
    choice.follow([Entry(D0, 0, receiver=LATER)])
    assert receiver(choice) == "named"


def test_a_receiver_that_the_settings_name_no_longer_is_not_used() -> None:
    choice = PlanChoice(settings(d0="named", d1="named"), notifies=False)
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
    router.router.clients.plans = choice = PlanChoice(settings(d0="old"), notifies=False)
    choice.follow([])
    with pytest.raises(OSError, match="No such file"):
        reload(
            router,
            api_key_file=tmp_path / "none",
            decoder_registry=settings(d0="new").decoder_registry,
        )
    assert receiver(choice) == "old"
