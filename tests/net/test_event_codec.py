import pytest

from router.core.events import Ejected, LegFailed, PrefixesHeld, Probed, Scraped, SharedEvent
from router.core.fleet.fleet import MAX_EVENT_KEYS
from router.core.health import HealthSignal
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, FailureKind, Gauges, Role
from router.net.processes.event_codec import decode, encode
from router.net.processes.shared_state import BUFFER_BYTES

ENGINE = Endpoint("http://127.0.0.1:1", Role.DECODE)


@pytest.mark.parametrize(
    "event",
    [
        Probed(ENGINE, HealthSignal.OK, ({"id": "m", "max_model_len": 131072, "root": None},)),
        Probed(ENGINE, HealthSignal.FAILED),
        Scraped(ENGINE, Gauges(running=3, kv_usage=0.5), own=2),
        Scraped(ENGINE, None, own=0),
        LegFailed(ENGINE, FailureKind.REFUSED, 12.5),
        Ejected(ENGINE, 1.0, 31.0),
        PrefixesHeld(ENGINE, (PrefixKeys((-(1 << 62), 7), (128, 200)),)),
    ],
)
def test_an_event_arrives_as_it_was_sent(event: SharedEvent) -> None:
    arrived = decode(encode(event))
    assert arrived == event
    assert type(arrived) is type(event)


def test_its_roles_and_kinds_are_still_those() -> None:
    arrived = decode(encode(LegFailed(ENGINE, FailureKind.REFUSED)))
    assert arrived.kind is FailureKind.REFUSED
    assert arrived.endpoint.role is Role.DECODE


def test_as_many_prompts_of_60_000_tokens_as_one_event_holds_fit_into_the_sockets_buffer() -> None:
    ends = tuple(range(128, 60_001, 128))
    prefixes = tuple(
        PrefixKeys(tuple(hash((number, end)) for end in ends), ends)
        for number in range(MAX_EVENT_KEYS // len(ends))
    )
    assert len(encode(PrefixesHeld(ENGINE, prefixes))) < BUFFER_BYTES
