"""Settings lead to sources, and a missing extra is named."""

import sys

import pytest

from router.discovery.dns import DnsSource
from router.discovery.kubernetes import KubernetesSource
from router.settings import SettingsError, load
from router.web.discovery_sources import discovery_sources

POD = {"k8s_decode_selector": "role=decode"}
DNS = {"dns_decode": "decode.default.svc:8000"}


def test_none_is_built_unless_it_is_asked_for() -> None:
    assert discovery_sources(load({"decode": "http://d0"})) == []


def test_those_that_are_asked_for_are_built() -> None:
    kinds = [type(each) for each in discovery_sources(load({**POD, **DNS}))]
    assert kinds == [KubernetesSource, DnsSource]


@pytest.mark.parametrize(
    ("flags", "module", "extra"),
    [(POD, "kubernetes_asyncio", "kubernetes"), (DNS, "dns.asyncresolver", "dns")],
)
def test_a_missing_extra_is_named(
    flags: dict[str, str], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=rf"pip install 'pd-router\[{extra}\]'"):
        discovery_sources(load(flags))
