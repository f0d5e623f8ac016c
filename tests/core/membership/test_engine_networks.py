"""Engines outside the operator's networks are not admitted."""

from ipaddress import IPv4Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.engine_networks import EngineNetworks

NETWORKS = EngineNetworks(["10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    "url",
    [
        "http://10.1.2.3:8000",
        "https://10.255.255.255/v1",
        "http://[fd00::1]:8000",
        "http://[::ffff:10.0.0.1]:8000",
    ],
)
def test_an_address_in_one_of_them_is_admitted(url: str):
    assert NETWORKS.refusal(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://127.0.0.1:8000",
        "http://11.0.0.1",
        "http://[::1]:8000",
        "http://[fe80::1]",
        "http://[::ffff:127.0.0.1]:8000",
    ],
)
def test_any_other_address_is_not_and_is_named(url: str):
    assert str(NETWORKS.refusal(url)).endswith("is in none of --engine-networks")


@pytest.mark.parametrize("host", ["d0", "localhost", "10.0.0.1.evil.example", "0x0a000001", "10.1"])
def test_a_name_is_not_whatever_it_means_now(host: str):
    assert "by their address" in str(NETWORKS.refusal(f"http://{host}:8000"))


def test_without_networks_engines_may_be_anywhere():
    assert EngineNetworks([]).refusal("http://anywhere") is None


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_exactly_the_networks_addresses_are_admitted(address: IPv4Address, length: int):
    network = ip_network((int(IPv4Address("10.128.0.0")), length), strict=False)
    admitted = EngineNetworks([str(network)]).refusal(f"http://{address}:80") is None
    assert admitted == (address in network)
