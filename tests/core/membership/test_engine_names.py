"""Label selectors, ports of pods and DNS names: valid and refused ones."""

import contextlib
from ipaddress import IPv4Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.engine_names import (
    DnsName,
    EngineNetworks,
    dns_name,
    label_selector,
    pod_port,
)


@pytest.mark.parametrize(
    "selector",
    ["a", "!a", "a=b,c!=d", "x.io/a==b", "a in (b,c),d notin (e)", "a=", "a = b,c"],
)
def test_a_label_selector_is_as_kubectl_takes_it(selector: str) -> None:
    assert label_selector(selector) == selector


def test_space_around_commas_is_ignored() -> None:
    assert label_selector(" a=b , c in (d, e) ") == "a=b,c in (d, e)"


@pytest.mark.parametrize(
    "selector", ["", ",", "a,", "a=b=c", "a in b", "a in ()x", "(a)", "=b", "a b", "-a", "a=-b"]
)
def test_invalid_label_selectors_are_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="must be a label selector"):
        label_selector(selector)


@pytest.mark.parametrize(
    ("given_port", "port"),
    [("8000", 8000), (8000, 8000), ("http", "http"), ("http2", "http2"), ("2-x", "2-x")],
)
def test_a_port_is_a_number_or_a_name(given_port: object, port: int | str) -> None:
    assert pod_port(given_port) == port


@pytest.mark.parametrize("port", ["0", "65536", "-1", "", "HTTP", "1.5", True, "a-name-too-long-x"])
def test_invalid_ports_are_refused(port: object) -> None:
    with pytest.raises(ValueError, match="must be a port's number or name"):
        pod_port(port)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Decode.default.svc:8000", DnsName("decode.default.svc", 8000)),
        ("d.:1", DnsName("d.", 1)),
        ("vllm_decode-0:65535", DnsName("vllm_decode-0", 65535)),
        ("_http._tcp.Decode.svc", DnsName("_http._tcp.decode.svc", None)),
    ],
)
def test_a_dns_name_has_a_port_or_srv_records(text: str, name: DnsName) -> None:
    assert dns_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("host", ":80", "host:0", "host:65536", "host:x", "http://h:80", "a..b:80", "_http.host"),
        *("_h._tcp.x:80", "_h:80", "a b:80", "-a:80", ""),
    ],
)
def test_invalid_dns_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be like|has no valid port"):
        dns_name(text)


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    for read in (label_selector, pod_port, dns_name):
        with contextlib.suppress(ValueError):
            assert read(text)


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
