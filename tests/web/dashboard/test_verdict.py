"""Whether all is well, in one sentence."""

from typing import Any

import pytest

from router.core.health import State
from router.core.judge.verdict import Exclusion
from router.core.values import Role
from router.web.dashboard.figures import MAX_NAMED, severity, verdict


def entries(*statuses: State | Exclusion) -> list[dict[str, Any]]:
    """Decode engines as a sample has them."""
    return [
        {
            "role": "decode",
            "url": f"http://d{number}",
            "status": status,
            "severity": severity(status),
            "speed_probes_fail": False,
        }
        for number, status in enumerate(statuses)
    ]


def told(*statuses: State | Exclusion, usable: int = 1) -> tuple[str, int, str]:
    """The verdict on them."""
    found = verdict(entries(*statuses), usable)
    return found["severity"], found["troubles"], found["text"]


def test_all_is_well_when_all_are_up() -> None:
    assert told(State.UP, State.UP) == ("good", 0, "All engines are up")


def test_without_a_usable_decode_engine_nothing_is_well() -> None:
    assert told(usable=0) == ("bad", 1, "No decode engine can take requests")
    draining = "No decode engine can take requests; decode d0 is draining"
    assert told(State.DRAINING, usable=0) == ("bad", 2, draining)


def test_without_a_usable_prefill_engine_decode_engines_do_all() -> None:
    found = verdict(entries(State.UP), 1, lacks_prefill=True)
    assert found["severity"] == "warn"
    found = verdict(entries(State.DOWN), 0, lacks_prefill=True)
    assert (found["severity"], found["troubles"]) == ("bad", 3)
    assert found["text"] == (
        "No decode engine can take requests; No prefill engine can take requests; decode d0 is down"
    )


def test_a_panic_is_named_first() -> None:
    found = verdict(entries(State.DOWN), 1, panics=[Role.DECODE])
    assert (found["severity"], found["troubles"]) == ("bad", 1)
    assert (
        found["text"]
        == "Panic: decode engines that are not in order get requests; decode d0 is down"
    )


@pytest.mark.parametrize("status", [State.DOWN, Exclusion.EJECTED, Exclusion.STALLED])
def test_one_that_should_serve_and_does_not_is_bad(status: State | Exclusion) -> None:
    assert told(State.UP, status) == ("bad", 1, f"decode d1 is {status}")


@pytest.mark.parametrize("status", [State.STARTING, State.DRAINING, Exclusion.SLOW])
def test_one_that_will_serve_or_need_not_is_a_warning(status: State | Exclusion) -> None:
    assert told(State.UP, status) == ("warn", 1, f"decode d1 is {status}")


def test_an_engine_whose_speed_probes_fail_is_a_warning_even_if_it_is_up() -> None:
    engines = entries(State.UP, Exclusion.SLOW, State.DOWN)
    for each in engines[:2]:
        each["speed_probes_fail"] = True
        each["severity"] = severity(each["status"], speed_probes_fail=True)
    found = verdict(engines, 1)
    assert (found["severity"], found["troubles"]) == ("bad", 3)
    assert found["text"] == (
        "decode d2 is down; decode d0 is up, and its speed probes fail; "
        "decode d1 is slow, and its speed probes fail"
    )


def test_of_many_troubles_the_worst_are_named_and_all_are_counted() -> None:
    statuses = [Exclusion.SLOW] * MAX_NAMED + [State.DOWN]
    level, troubles, text = told(*statuses)
    assert (level, troubles) == ("bad", MAX_NAMED + 1)
    assert text.startswith(f"decode d{MAX_NAMED} is down; decode d0 is slow; ")
    assert text.endswith("; and 1 more")
