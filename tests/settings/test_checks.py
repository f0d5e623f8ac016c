"""Settings that do not fit each other are refused."""

import json

import pytest

from router.settings import flag, load
from tests.settings.samples import (
    ADMIN_TLS,
    CA_FILE,
    D0,
    ENGINES,
    LMCACHE,
    ONE_RECEIVER,
    POD,
    REGISTRY,
    TLS,
    TLS_KEY_FILE,
    refusal,
    registry,
)


def test_at_least_one_decode_engine_is_needed():
    assert refusal({}) == "--decode: at least one decode engine is needed"
    assert refusal({"decode": ","}).startswith("--decode: ")


def test_with_discovery_no_decode_engine_need_be_known():
    assert not load(D0).discovers
    settings = load({"engines_file": str(ENGINES), "engine_max_num_seqs": '{"http://later": 4}'})
    assert (settings.decode, settings.discovers) == ((), True)


@pytest.mark.parametrize(
    ("flags", "names_prefill"),
    [
        (D0, False),
        ({**D0, "prefill": "http://p0"}, True),
        ({**POD, "k8s_prefill_selector": "role=prefill"}, True),
        ({"dns_decode": "d:80", "dns_prefill": "p:80"}, True),
        (POD, False),
    ],
)
def test_settings_decide_whether_prefill_engines_are_expected(
    flags: dict[str, str], names_prefill: bool
) -> None:
    assert load(flags).names_prefill is names_prefill


def test_discovered_engines_need_a_registry_for_lmcache():
    options = {"disagg_connector_type": "lmcache", "engines_file": str(ENGINES)}
    assert refusal(options).startswith("--decoder-registry: discovered decode engines need")
    known = load({**options, "decoder_registry": json.dumps({"http://d9": REGISTRY})})
    assert list(known.receivers) == ["http://d9"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({**D0, "k8s_prefill_selector": "a=b"}, "--k8s-prefill-selector: needs --k8s-decode-sel"),
        ({**D0, "k8s_encode_selector": "a=b"}, "--k8s-encode-selector: needs --k8s-decode-sele"),
        ({**POD, "k8s_encode_selector": "app=vllm"}, "--k8s-encode-selector: it is that of other"),
        (
            {**POD, "k8s_prefill_selector": "a=b", "k8s_encode_selector": "a=b"},
            "--k8s-encode-selector: it is that of other engines",
        ),
        ({**D0, "k8s_namespace": "llm"}, "--k8s-namespace: needs --k8s-decode-selector"),
        ({**D0, "k8s_port": "80"}, "--k8s-port: needs --k8s-decode-selector"),
        ({**POD, "k8s_prefill_selector": "app=vllm"}, "--k8s-decode-selector: it is --k8s-pref"),
        ({"dns_prefill": "x:80"}, "--decode: at least one"),
        ({"dns_prefill": "x:80,y:80", "dns_decode": "y:80"}, "--dns-decode: y:80 is given for"),
        ({"dns_decode": "x:80,y:80", "dns_encode": "y:80"}, "--dns-encode: y:80 is given"),
        ({"dns_decode": "x:80", "disagg_connector_type": "lmcache"}, "--dns-decode: lmcache needs"),
        ({**ONE_RECEIVER, **POD}, "--decoder-host: pods say it by annotations"),
        (
            {**POD, **D0, "k8s_prefill_selector": "a=b", "disagg_connector_type": "lmcache"},
            "--decoder-registry (or --decoder-host): lmcache needs a receiver",
        ),
    ],
)
def test_sources_that_do_not_fit_are_refused(flags, said):
    assert refusal(flags).startswith(said)


def test_bootstrap_ports_are_those_of_mooncakes_prefill_engines() -> None:
    """Each on its engine's host, without TLS and path."""
    mooncake = {**D0, "disagg_connector_type": "mooncake"}
    assert refusal({**D0, "mooncake_bootstrap_port": "9000"}) == (
        "--mooncake-bootstrap-port: needs --disagg-connector-type mooncake"
    )
    ports = {"mooncake_bootstrap_port": '{"http://p1": 9000}'}
    assert refusal({**mooncake, **ports, "prefill": "http://p0"}) == (
        "--mooncake-bootstrap-port: http://p1 is no prefill engine"
    )
    twins = {"prefill": "http://p0:80,http://p0:81"}
    assert refusal({**mooncake, **twins}) == (
        "--mooncake-bootstrap-port: http://p0 and http://p0:81 need a port each"
    )
    known = load({**mooncake, **ports, "prefill": "http://p1,https://[::1]:8443/p2"})
    assert known.bootstrap("http://p1") == "http://p1:9000"
    assert known.bootstrap("https://[::1]:8443/p2") == "http://[::1]:8998"
    assert load({**mooncake, **ports, **POD}).bootstrap("http://p9") == "http://p9:8998"


def test_moriios_ports_are_those_of_decode_engines() -> None:
    """Each on its engine's host."""
    moriio = {**D0, "disagg_connector_type": "moriio"}
    assert refusal({**D0, "moriio_notify_port": "9000"}) == (
        "--moriio-notify-port: needs --disagg-connector-type moriio"
    )
    ports = {"moriio_handshake_port": '{"http://d1": 9000}'}
    assert refusal({**moriio, **ports}) == "--moriio-handshake-port: http://d1 is no decode engine"
    known = load({**moriio, **ports, "decode": "http://d1,https://[::1]:8443/p2"})
    assert known.target("http://d1") == ("d1", 9000, 61005)
    assert known.target("https://[::1]:8443/p2") == ("::1", 6301, 61005)


def test_a_threshold_on_uncached_tokens_needs_prefix_cache_tracking() -> None:
    line = refusal({"decode": "http://d0", "threshold_on": "uncached", "prefix_cache": "off"})
    assert line == "--threshold-on: uncached needs --prefix-cache history or events"


@pytest.mark.parametrize("kind", ["tls", "admin_tls", "engine"])
def test_a_certificate_needs_its_key_and_the_key_its_certificate(kind):
    cert, key = f"{kind}_cert_file", f"{kind}_key_file"
    others = {**D0, "admin_port": "9"}
    assert refusal({**others, cert: str(CA_FILE)}) == f"{flag(key)}: needed with {flag(cert)}"
    line = refusal({**others, key: str(TLS_KEY_FILE)})
    assert line == f"{flag(cert)}: needed with {flag(key)}"


def test_invalid_certificate_pairs_are_refused_without_quoting_them(write):
    path = write("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n")
    line = refusal({**D0, **TLS, "tls_key_file": str(path)})
    assert line.startswith(f"--tls-cert-file: {CA_FILE} and {path} must hold")
    assert "c2VjcmV0" not in line


def test_client_certificates_need_tls():
    line = refusal({**D0, "tls_client_ca_file": str(CA_FILE)})
    assert line == "--tls-client-ca-file: needs --tls-cert-file"


def test_two_routers_cannot_share_lmcaches_notifications():
    line = refusal({**LMCACHE, "lmcache_notify_bind": "tcp://[::]:1", "takeover": "/tmp/sock"})
    assert line.startswith("--takeover: two routers cannot listen at --lmcache-notify-bind")


def test_a_file_is_no_place_to_take_over_at(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("decode: http://d0")
    assert "is no socket" in refusal({**D0, "takeover": str(file)})


def test_peers_that_dns_finds_cannot_be_reached_by_tls():
    line = refusal({**D0, **ADMIN_TLS, "dns_peers": "r:9000"})
    assert line.startswith("--dns-peers: finds http:// only")


def test_nor_can_they_share_a_port_for_envoy():
    line = refusal({**D0, "epp_port": 9002, "takeover": "/tmp/sock"})
    assert line == "--takeover: two routers cannot listen on --epp-port; leave one out"


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"decoder_alloc_port": "2,3"}, "--decoder-alloc-port: 2 ports"),
        ({"decoder_alloc_port": ""}, "--decoder-alloc-port: "),
        ({"decoder_init_port": ""}, "--decoder-init-port: "),
        ({"decoder_host": None}, "--decoder-host: "),
        ({"decode": "http://d0,http://d1"}, "--decoder-registry: several"),
        ({"decoder_registry": registry()}, "--decoder-registry: give it or --decoder-host"),
    ],
)
def test_one_decoders_flags_must_agree(changes, culprit):
    assert refusal({**ONE_RECEIVER, **changes}).startswith(culprit)


def test_lmcache_prefill_needs_a_receiver():
    line = refusal({**LMCACHE, "prefill": "http://p0"})
    assert line == "--decoder-registry (or --decoder-host): lmcache needs a receiver"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decoder_host", "r"),
        ("decoder_init_port", "1"),
        ("decoder_alloc_port", "1"),
        ("decoder_registry", registry()),
        ("lmcache_notify_bind", "tcp://*:7500"),
    ],
)
def test_lmcache_settings_without_lmcache_are_a_mistake(name, value):
    line = refusal({**D0, name: value})
    assert line == f"{flag(name)}: needs --disagg-connector-type lmcache"
