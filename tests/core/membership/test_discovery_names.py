"""Label selectors, ports of pods and DNS names: what is taken, and what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.discovery_names import DnsName, dns_name, label_selector, pod_port


@pytest.mark.parametrize(
    "selector",
    ["a", "!a", "a=b,c!=d", "x.io/a==b", "a in (b,c),d notin (e)", "a=", "a = b,c"],
)
def test_a_label_selector_is_as_kubectl_takes_it(selector: str) -> None:
    assert label_selector(selector) == selector


def test_space_around_commas_is_left_out() -> None:
    assert label_selector(" a=b , c in (d, e) ") == "a=b,c in (d, e)"


@pytest.mark.parametrize(
    "selector", ["", ",", "a,", "a=b=c", "a in b", "a in ()x", "(a)", "=b", "a b", "-a", "a=-b"]
)
def test_what_is_no_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="must be a label selector"):
        label_selector(selector)


@pytest.mark.parametrize(
    ("given_port", "port"),
    [("8000", 8000), (8000, 8000), ("http", "http"), ("http2", "http2"), ("2-x", "2-x")],
)
def test_a_port_is_a_number_or_a_name(given_port: object, port: int | str) -> None:
    assert pod_port(given_port) == port


@pytest.mark.parametrize("port", ["0", "65536", "-1", "", "HTTP", "1.5", True, "a-name-too-long-x"])
def test_what_is_no_port_is_refused(port: object) -> None:
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
def test_what_is_no_dns_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be like|has no valid port"):
        dns_name(text)


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    for read in (label_selector, pod_port, dns_name):
        with contextlib.suppress(ValueError):
            assert read(text)
