from random import Random

import pytest

from router.simulator.faults import NO_FAULTS, FaultError, FaultPlan, Faults

PATH = "/v1/completions"


def plan(**faults) -> FaultPlan:
    return FaultPlan(Faults(**faults), Random(1))


def taken(faults: FaultPlan, path: str = PATH, leg: str = "plain") -> bool:
    return faults.take(path, lambda: leg) is not NO_FAULTS


def test_a_fault_befalls_the_next_so_many_requests():
    faults = plan(status=503, next=2)
    assert [taken(faults) for _ in range(4)] == [True, True, False, False]


def test_a_fault_befalls_a_share_of_the_requests():
    faults = plan(hang=True, rate=0.25)
    assert 180 <= sum(taken(faults) for _ in range(1000)) <= 320


def test_a_fault_befalls_its_paths_only():
    assert taken(plan(status=500))
    assert not taken(plan(status=500), "/health")
    assert taken(plan(status=500, paths=("/health",)), "/health")
    assert not taken(plan(status=500, paths=("/",)), "/sim/faults")


def test_a_fault_befalls_its_leg_only():
    faults = plan(status=500, only="prefill", next=1)
    assert not taken(faults, leg="decode")
    assert taken(faults, leg="prefill")


def test_a_fault_befalls_the_bodies_with_its_text_only():
    faults = plan(status=500, containing="poison")
    assert faults.take(PATH, lambda: "plain", b'{"prompt": "poison"}') is not NO_FAULTS
    assert faults.take(PATH, lambda: "plain", b'{"prompt": "water"}') is NO_FAULTS


def test_the_body_is_not_looked_at_without_need():
    def never() -> str:
        raise AssertionError

    assert plan().take(PATH, never) is NO_FAULTS
    assert plan(status=500).take("/health", never) is NO_FAULTS


def test_control_messages_take_no_request():
    assert not taken(plan(slow=2.0, stall=True, refuse=True, reset="accept", next=3))


def test_resets_of_new_connections_are_counted_too():
    faults = plan(reset="accept", next=1)
    assert [faults.take_reset(), faults.take_reset()] == [True, False]
    assert not plan(reset="request").take_reset()


def test_kv_loads_fail_at_the_requested_rate():
    faults = plan(fail_kv_loads=1)
    assert [faults.take_kv_failure(), faults.take_kv_failure()] == [True, False]


def test_references_are_lost_at_the_requested_rate():
    faults = plan(expire_references=1)
    assert [faults.take_expiry(), faults.take_expiry()] == [True, False]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"stall": True, "sl": 1}, "sl"),
        ({"reset": "often"}, "reset"),
        ({"reset": "wire"}, "reset"),
        ({"only": "x"}, "only"),
        ({"rate": 2}, "rate"),
        ({"slow": 0}, "slow"),
        ({"status": 200}, "status"),
        ({"wire": "\u0100"}, "wire"),
        ([], "object"),
        ({"slow": "fast"}, "'<=' not supported"),
        ({"paths": 3}, "not iterable"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_by_name(document, field):
    with pytest.raises(FaultError, match=field):
        Faults.parse(document)


def test_faults_come_back_from_json_as_they_went():
    faults = Faults(status=429, next=3, paths=("/v1/chat", "/health"), only="decode")
    assert Faults.parse(FaultPlan(faults, Random()).as_json()) == faults
