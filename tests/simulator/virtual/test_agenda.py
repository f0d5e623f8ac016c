"""Virtual time: what happens when."""

import pytest

from router.simulator.virtual.agenda import Agenda, Event


def test_events_happen_in_order_of_time_and_then_of_planning():
    agenda = Agenda()
    seen: list[tuple[float, str]] = []

    def note(name: str) -> Event:
        return lambda now: seen.append((now, name))

    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        agenda.at(when, note(name))
    agenda.run_while(lambda: len(seen) < 3, until=10.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert (agenda.now, agenda.events) == (2.0, 3)


def test_what_repeats_goes_on():
    agenda = Agenda()
    seen: list[float] = []
    agenda.every(0.5, 1.0, seen.append)
    agenda.run_while(lambda: len(seen) < 3, until=10.0)
    assert seen == [1.0, 1.5, 2.0]


def test_what_does_not_end_is_an_error():
    agenda = Agenda()
    agenda.every(1.0, 0.0, lambda _: None)
    with pytest.raises(RuntimeError, match="did not end within 5"):
        agenda.run_while(lambda: True, until=5.0)
