"""What a pod's annotations say of its engine."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.values import Receiver
from router.discovery.annotations import (
    NO_ANNOTATIONS,
    PREFIX,
    Annotations,
    WrongAnnotation,
    read_annotations,
)

HOST = "10.0.0.1"
PORTS = {"pd-router/lmcache-init-ports": "7300,7301", "pd-router/lmcache-alloc-ports": "7400, 7401"}


def test_annotations_of_other_programs_are_ignored() -> None:
    assert (
        read_annotations({"prometheus.io/port": "x", "kubernetes.io/y": ""}, HOST) is NO_ANNOTATIONS
    )


def test_the_port_of_kv_events_is_read() -> None:
    given_ = {"pd-router/kv-events-port": "5557"}
    assert read_annotations(given_, HOST) == Annotations(kv_events_port=5557)


def test_a_receiver_is_the_pod_itself_unless_it_names_another_host() -> None:
    own = read_annotations(PORTS, HOST)
    assert own.receiver == Receiver(HOST, (7300, 7301), (7400, 7401))
    other = read_annotations({**PORTS, "pd-router/lmcache-host": "rdma-0"}, HOST)
    assert other.receiver == Receiver("rdma-0", (7300, 7301), (7400, 7401))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"pd-router/kv-event-port": "1"}, "pd-router/kv-event-port is unknown"),
        ({"pd-router/kv-events-port": "tcp"}, "'tcp' is no port"),
        ({"pd-router/kv-events-port": "0"}, "'0' is no port"),
        ({"pd-router/kv-events-port": "65536"}, "'65536' is no port"),
        ({"pd-router/lmcache-init-ports": "1"}, "pd-router/lmcache-alloc-ports"),
        ({"pd-router/lmcache-host": "r"}, "pd-router/lmcache-init-ports"),
        ({**PORTS, "pd-router/lmcache-alloc-ports": "7400"}, "1 ports and .* 2"),
        ({**PORTS, "pd-router/lmcache-alloc-ports": "1," * 64 + "1"}, "more than 64 ports"),
        ({**PORTS, "pd-router/lmcache-host": "x" * 254}, "longer than 253"),
    ],
)
def test_the_error_is_named(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(WrongAnnotation, match=named):
        read_annotations(wrong, HOST)


@given(st.dictionaries(st.sampled_from([*PORTS, f"{PREFIX}kv-events-port", "x"]), st.text()))
def test_any_text_is_read_or_refused(given_: dict[str, str]) -> None:
    with contextlib.suppress(WrongAnnotation):
        read_annotations(given_, HOST)
