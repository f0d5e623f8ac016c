"""Lists and events in any order end in the set that a fresh list gives."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from router.discovery.kubernetes import PodStore
from router.discovery.pods import Pod
from tests.discovery.pods import read

POD = read()


def at(version: int, uid: str = "a", name: str = "decode-0") -> Pod:
    """A pod at a version."""
    return replace(POD, uid=uid, version=version, name=name)


@dataclass(frozen=True)
class Event:
    """The events of a watch."""

    pod: Pod
    is_there: bool


def take(store: PodStore, *events: Event) -> None:
    """Events, in this order."""
    for event in events:
        (store.put if event.is_there else store.remove)(event.pod)


def test_events_update_the_list() -> None:
    store = PodStore()
    store.replace([at(1, "a"), at(2, "b")], 5)
    take(store, Event(at(6, "c"), True), Event(at(7, "a"), False))
    assert set(store.pods) == {at(2, "b"), at(6, "c")}


def test_1091_a_list_removes_pods_without_a_delete_event() -> None:
    """production-stack knew of removals by events only: 22 hours of requests to a pod that was
    deleted while the watch was down."""
    store = PodStore()
    store.replace([at(1, "a"), at(2, "b")], 5)
    store.replace([at(2, "b")], 9)
    assert store.pods == (at(2, "b"),)


def test_a_late_event_of_an_old_pod_does_not_take_away_its_successor() -> None:
    store = PodStore()
    store.replace([], 1)
    take(store, Event(at(3, "new"), True), Event(at(2, "old"), False))
    assert store.pods == (at(3, "new"),)


def test_a_pod_that_the_selector_takes_again_is_back() -> None:
    store = PodStore()
    store.replace([at(1)], 1)
    take(store, Event(at(2), False), Event(at(3), True))
    assert store.pods == (at(3),)


def test_those_that_are_gone_are_forgotten_with_the_next_list() -> None:
    store = PodStore()
    for version in range(1, 1000):
        take(store, Event(at(version, f"uid-{version}"), False))
    store.replace([], 1000)
    assert not store._known


STATES = st.sampled_from(["there", "changed", "gone"])
HISTORIES = st.lists(st.tuples(st.sampled_from("abcd"), STATES), max_size=25)


@given(history=HISTORIES, data=st.data())
def test_events_in_any_order_end_in_the_state_of_a_fresh_list(
    history: list[tuple[str, str]], data: st.DataObject
) -> None:
    now: dict[str, Pod] = {}
    listed_after = data.draw(st.integers(0, len(history)), label="listed after")
    store, events = PodStore(), list[Event]()
    if not listed_after:
        store.replace([], 0)
    for version, (uid, state) in enumerate(history, start=1):
        seen = at(version, uid, name=state)
        if state == "gone":
            now.pop(uid, None)
        else:
            now[uid] = seen
        events.append(Event(seen, state != "gone"))
        if version == listed_after:
            store.replace(now.values(), version)
    repeated = events + data.draw(
        st.lists(st.sampled_from(events), max_size=10) if events else st.just([])
    )
    take(store, *data.draw(st.permutations(repeated), label="events"))
    fresh = PodStore()
    fresh.replace(now.values(), len(history))
    assert set(store.pods) == set(fresh.pods)
