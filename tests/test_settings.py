"""Settings: where values come from, which are refused, and what is said about them."""

import json
import os
import re
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import ValidationError

from router.core.discovery_names import DnsName
from router.core.policies import POLICIES
from router.core.urls import origin
from router.settings import (
    ENV_PREFIX,
    Settings,
    SettingsError,
    admin_url,
    examine,
    flag,
    is_reloadable,
    load,
    sources,
)
from router.settings.values import KVEventSource, Receiver, Strategy

D0 = {"decode": "http://d0"}
ADMIN = {**D0, "admin_port": "9"}
QUICK = examples(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "router.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def refusal(flags: dict[str, Any], config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, config)
    return str(caught.value)


def refusal_if_any(flags: dict[str, Any], config: Path | None = None) -> str | None:
    try:
        load(flags, config)
    except SettingsError as error:
        return str(error)
    return None


# Where values come from.

CA_FILE = Path(__file__).parent / "commands" / "tls" / "certificate.pem"
TLS_KEY_FILE = CA_FILE.with_name("key.pem")
KEY_FILE = Path(__file__).parent / "commands" / "keys"
TLS = {"tls_cert_file": str(CA_FILE), "tls_key_file": str(TLS_KEY_FILE)}
ENGINE_TLS = {"engine_cert_file": str(CA_FILE), "engine_key_file": str(TLS_KEY_FILE)}
ADMIN_TLS = {
    "admin_port": "9",
    "admin_tls_cert_file": str(CA_FILE),
    "admin_tls_key_file": str(TLS_KEY_FILE),
}
REGISTRY = {"receiver_host": "r", "receiver_init_port": [7300], "receiver_alloc_port": [7400]}
LMCACHE = {"disagg_connector_type": "lmcache", "decode": "http://d0"}
ONE_RECEIVER = {**LMCACHE, "decoder_host": "r", "decoder_init_port": "1", "decoder_alloc_port": "2"}

ENGINES = Path(__file__).parent / "engines.json"
POD = {"k8s_decode_selector": "app=vllm"}

SAMPLES: dict[str, tuple[str, Any, dict[str, str]]] = {
    "host": ("::", "::", D0),
    "port": ("0", 0, D0),
    "tls_cert_file": (str(CA_FILE), CA_FILE, {**D0, **TLS}),
    "tls_key_file": (str(TLS_KEY_FILE), TLS_KEY_FILE, {**D0, **TLS}),
    "tls_client_ca_file": (str(CA_FILE), CA_FILE, {**D0, **TLS}),
    "admin_tls_cert_file": (str(CA_FILE), CA_FILE, {**D0, **ADMIN_TLS}),
    "admin_tls_key_file": (str(TLS_KEY_FILE), TLS_KEY_FILE, {**D0, **ADMIN_TLS}),
    "admin_tls_client_ca_file": (str(CA_FILE), CA_FILE, {**D0, **ADMIN_TLS}),
    "engine_cert_file": (str(CA_FILE), CA_FILE, {**D0, **ENGINE_TLS}),
    "engine_key_file": (str(TLS_KEY_FILE), TLS_KEY_FILE, {**D0, **ENGINE_TLS}),
    "takeover": ("/tmp/router.sock", Path("/tmp/router.sock"), D0),
    "cors_allow_origin": (
        "https://App.example:443,http://localhost:3000",
        ("https://app.example", "http://localhost:3000"),
        D0,
    ),
    "engine_networks": ("10.0.0.0/8,fd00::/8", ("10.0.0.0/8", "fd00::/8"), D0),
    "workers": ("4", 4, D0),
    "admin_host": ("127.0.0.1", "127.0.0.1", ADMIN),
    "admin_port": ("9", 9, D0),
    "engine_header": ("on", "on", D0),
    "prefix_cache": ("off", "off", D0),
    "kv_events": (
        json.dumps({"http://d0": {"endpoint": "tcp://d0:5557", "topic": "kv"}}),
        {"http://d0": (KVEventSource(endpoint="tcp://d0:5557", topic="kv"),)},
        {**D0, "prefix_cache": "events"},
    ),
    "threshold_on": ("uncached", "uncached", D0),
    "prefill": ("http://p0,http://p1:81/", ("http://p0", "http://p1:81"), D0),
    "decode": ("http://d1", ("http://d1",), {}),
    "engines_file": (str(ENGINES), ENGINES, {}),
    "engine_leave_timeout": ("60", 60.0, D0),
    "k8s_prefill_selector": (
        "app=vllm, role in (prefill, both)",
        "app=vllm,role in (prefill, both)",
        POD,
    ),
    "k8s_decode_selector": ("app=vllm,!old", "app=vllm,!old", {}),
    "k8s_namespace": ("llm", "llm", POD),
    "k8s_port": ("8000,http", (8000, "http"), POD),
    "k8s_config_file": (str(CA_FILE), CA_FILE, POD),
    "dns_prefill": ("P.svc:80,_h._tcp.p", (("p.svc", 80), ("_h._tcp.p", None)), D0),
    "dns_decode": ("d.svc:8000", (("d.svc", 8000),), {}),
    "routing_threshold": ("4096", 4096, D0),
    "max_itl_impact": ("0.5", 0.5, D0),
    "load_balancing_strategy": ("least_loaded", "least_loaded", D0),
    "prefill_load_balancing_strategy": ("least_loaded", "least_loaded", D0),
    "decode_load_balancing_strategy": ("least_loaded", "least_loaded", D0),
    "engine_max_num_seqs": ("64", {"*": 64}, D0),
    "stall_timeout": ("0", 0.0, D0),
    "outlier_consecutive_failures": ("0", 0, D0),
    "outlier_ejection_time": ("7", 7.0, D0),
    "max_excluded_percent": ("100", 100, D0),
    "slow_start": ("0", 0.0, D0),
    "speed_probe_interval": ("0", 0.0, D0),
    "disagg_connector_type": ("lmcache", "lmcache", D0),
    "decoder_host": ("r1", "r1", ONE_RECEIVER),
    "decoder_init_port": ("7300", (7300,), ONE_RECEIVER),
    "decoder_alloc_port": ("7400", (7400,), ONE_RECEIVER),
    "decoder_registry": (
        json.dumps({"http://d0": REGISTRY}),
        {"http://d0": Receiver.model_validate(REGISTRY)},
        LMCACHE,
    ),
    "lmcache_notify_bind": ("tcp://[::]:7500", "tcp://[::]:7500", LMCACHE),
    "lmcache_notify_timeout": ("0.5", 0.5, D0),
    "engine_stats_interval": ("2", 2.0, D0),
    "health_check_interval": ("2", 2.0, D0),
    "health_check_timeout": ("3", 3.0, D0),
    "engine_api_key": ("sk-1", "sk-1", D0),
    "engine_ca_file": (str(CA_FILE), CA_FILE, D0),
    "connect_timeout": ("1e-3", 0.001, D0),
    "prefill_timeout": ("7", 7.0, D0),
    "first_byte_timeout": ("7", 7.0, D0),
    "stream_idle_timeout": ("7", 7.0, D0),
    "body_timeout": ("7", 7.0, D0),
    "client_stall_timeout": ("7", 7.0, D0),
    "shutdown_grace": ("0", 0.0, D0),
    "max_body_bytes": ("1024", 1024, D0),
    "api_key_file": (str(KEY_FILE), KEY_FILE, D0),
    "admin_key_file": (str(KEY_FILE), KEY_FILE, ADMIN),
    "data_parallel_ranks": ("off", "off", D0),
    "epp_port": ("9002", 9002, D0),
    "direct_mode": ("on", "on", D0),
    "trusted_gateways": (
        "10.0.0.0/8,fd00::/8",
        ("10.0.0.0/8", "fd00::/8"),
        {**D0, "direct_mode": "on"},
    ),
    "peers": ("http://r1:9000,http://r2:9000", ("http://r1:9000", "http://r2:9000"), ADMIN),
    "dns_peers": ("routers:9000", (DnsName("routers", 9000),), ADMIN),
    "peer_key": ("k", "k", {**ADMIN, "peers": "http://r1:9000"}),
    "max_buffered_bytes": ("67108864", 64 << 20, D0),
    "max_in_flight": ("1", 1, D0),
    "max_in_flight_per_engine": ("1", 1, D0),
    "queue_size": ("0", 0, D0),
    "queue_timeout": ("7", 7.0, D0),
    "tenant_header": ("X-Tenant", "x-tenant", D0),
    "queue_priority": ("body", "body", D0),
    "retry_budget": ("1", 1.0, D0),
    "max_idle_connections": ("0", 0, D0),
    "idle_connection_timeout": ("1", 1.0, D0),
    "keep_alive_timeout": ("5", 5.0, D0),
    "log_level": ("debug", "debug", D0),
    "decision_log_sample": ("0.5", 0.5, D0),
    "log_format": ("json", "json", D0),
    "otlp_traces_endpoint": ("http://c:4318", "http://c:4318/v1/traces", D0),
    "trace_sample": ("0.25", 0.25, D0),
}
"""A text for each setting, its value, and the flags without which it would be refused."""


def test_every_setting_has_a_sample():
    assert set(SAMPLES) == set(Settings.model_fields)


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_setting_can_be_given_by_every_source(name, source, monkeypatch, write):
    text, value, others = SAMPLES[name]
    others = {key: other for key, other in others.items() if key != name}
    config = None
    match source:
        case "flag":
            others[name] = text
        case "environment":
            monkeypatch.setenv(ENV_PREFIX + name.upper(), text)
        case "file":
            config = write(yaml.safe_dump({name: text}))
    assert getattr(load(others, config), name) == value


@QUICK
@given(
    given_by=st.fixed_dictionaries(
        {},
        optional={source: st.integers(0, 10**6) for source in ("flag", "environment", "file")},
    )
)
def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(given_by, write):
    with pytest.MonkeyPatch.context() as patch:
        if "environment" in given_by:
            patch.setenv("PD_ROUTER_ROUTING_THRESHOLD", str(given_by["environment"]))
        content = {"routing_threshold": given_by["file"]} if "file" in given_by else {}
        flags = {"routing_threshold": str(given_by["flag"])} if "flag" in given_by else {}
        settings = load({**D0, **flags}, write(yaml.safe_dump(content)))
    order = [given_by[source] for source in ("flag", "environment", "file") if source in given_by]
    assert settings.routing_threshold == (order[0] if order else 0)


def test_a_list_is_replaced_by_a_higher_source_never_merged(monkeypatch, write):
    monkeypatch.setenv("PD_ROUTER_DECODE", "http://d1,http://d2")
    config = write("decode: [http://d3]\nprefill: [http://p0]")
    assert load({}, config).decode == ("http://d1", "http://d2")
    assert load({"decode": ["http://d4"]}, config).decode == ("http://d4",)
    assert load({"prefill": [""]}, config).prefill == ()


def test_a_registry_of_the_file_is_replaced_by_a_higher_source_never_merged(monkeypatch, write):
    content = {"http://d0": {**REGISTRY, "receiver_host": "old"}, "http://d1": REGISTRY}
    config = write(yaml.safe_dump({**LMCACHE, "decoder_registry": content}))
    monkeypatch.setenv("PD_ROUTER_DECODER_REGISTRY", json.dumps({"http://d0": REGISTRY}))
    registry = load({}, config).decoder_registry
    assert registry is not None
    assert set(registry) == {"http://d0"}
    assert registry["http://d0"].receiver_host == "r"


def test_an_empty_environment_variable_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("PD_ROUTER_PORT", "")
    assert load(D0).port == 8000


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_is_fine(content, write):
    assert load(D0, write(content)) == load(D0)


def test_a_byte_order_mark_is_no_part_of_the_file(write):
    assert load({}, write(b"\xef\xbb\xbfdecode: http://d0")).decode == ("http://d0",)


def test_a_list_may_be_repeated_comma_separated_or_both():
    wanted = ("http://d0", "http://d1", "http://d2")
    assert load({"decode": list(wanted)}).decode == wanted
    assert load({"decode": ["http://d0 , http://d1,", "http://d2"]}).decode == wanted
    assert load({"decode": " http://d0,,http://d1,http://d2"}).decode == wanted


def test_numbers_in_a_file_may_be_numbers_or_lists_of_them(write):
    config = write(
        "port: 80\ndecoder_init_port: 1\ndecoder_alloc_port: [2]\ndecoder_host: r\n"
        "disagg_connector_type: lmcache"
    )
    settings = load(D0, config)
    assert (settings.port, settings.decoder_init_port) == (80, (1,))
    assert settings.decoder_alloc_port == (2,)


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        setattr(load(D0), "port", 1)  # noqa: B010 - mypy knows better than to allow it


def test_the_strategies_are_the_policies():
    assert set(get_args(Strategy)) == set(POLICIES)


# URLs.


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("http://d0", "http://d0"),
        ("HTTP://D0:80/", "http://d0"),
        ("https://d0:443", "https://d0"),
        ("https://d0.example.com:8443/a/", "https://d0.example.com:8443/a"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[fe80::1]", "http://[fe80::1]"),
        ("http://127.0.0.1:65535", "http://127.0.0.1:65535"),
        ("http://vllm_decode-0", "http://vllm_decode-0"),
    ],
)
def test_single_label_hosts_ipv6_and_https_are_engine_urls(given_url, url):
    settings = load({"decode": given_url, "prefill": given_url.rstrip("/") + "/p"})
    assert settings.decode == (url,)
    assert settings.prefill == (origin(given_url.rstrip("/") + "/p").url,)


@pytest.mark.parametrize(
    "url",
    [
        "d0",
        "d0:8000",
        "ftp://d0",
        "http://",
        "http:///x",
        "http://d0:0",
        "http://d0:65536",
        "http://d0:x",
        "http://::1",
        "http://[::1",
        "http://d 0",
        "http://d\n0",
        "http://d0?a=1",
        "http://d0#a",
        "http://dé0",
        "http://日本/",
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_is_no_engine_url_is_refused_and_named(url, role):
    line = refusal({**D0, role: url})
    assert line.startswith(f"--{role}: ")
    assert repr(url)[1:-1] in line


SPELLINGS = st.sampled_from(
    ["http://d0", "HTTP://d0", "http://D0:80", "http://d0/", "http://d0:80//"]
)


@QUICK
@given(SPELLINGS, SPELLINGS)
def test_two_spellings_of_a_url_are_a_duplicate(one, other):
    assert refusal({"decode": [one, other]}) == "--decode: http://d0 is given twice"
    line = refusal({"decode": one, "prefill": other})
    assert line == "--decode: http://d0 is given as a prefill engine too"


def test_at_least_one_decode_engine_is_needed():
    assert refusal({}) == "--decode: at least one decode engine is needed"
    assert refusal({"decode": ","}).startswith("--decode: ")


# What is refused, and under which name.

MAY_BE_ZERO = ("stall_timeout", "speed_probe_interval")
DURATIONS = [
    name
    for name in Settings.model_fields
    if name.endswith(("_timeout", "_interval")) and name not in MAY_BE_ZERO
]

WRONG = {
    "host": "",
    "port": "65536",
    "tls_cert_file": "/no/such/file",
    "tls_key_file": "/no/such/file",
    "tls_client_ca_file": "/no/such/file",
    "admin_tls_cert_file": "/no/such/file",
    "admin_tls_key_file": "/no/such/file",
    "admin_tls_client_ca_file": "/no/such/file",
    "engine_cert_file": "/no/such/file",
    "engine_key_file": "/no/such/file",
    "takeover": "/no/such/folder/socket",
    "cors_allow_origin": "https://app.example/path",
    "engine_networks": "10.0.0.1/8",
    "workers": "0",
    "admin_host": "",
    "admin_port": "65536",
    "engine_header": "yes",
    "prefill": "p0",
    "decode": "d0",
    "engines_file": "/no/such/file",
    "engine_leave_timeout": "0",
    "routing_threshold": "-1",
    "max_itl_impact": "-1",
    "threshold_on": "tokens",
    "prefix_cache": "lru",
    "kv_events": "{",
    "load_balancing_strategy": "random",
    "prefill_load_balancing_strategy": "random",
    "decode_load_balancing_strategy": "random",
    "engine_max_num_seqs": "0",
    "stall_timeout": "-1",
    "outlier_consecutive_failures": "-1",
    "outlier_ejection_time": "0",
    "max_excluded_percent": "101",
    "slow_start": "-1",
    "speed_probe_interval": "-1",
    "k8s_prefill_selector": "role=pre fill",
    "k8s_decode_selector": "app==vllm,role in prefill",
    "k8s_namespace": "Default",
    "k8s_port": "8000,0",
    "k8s_config_file": "/no/such/file",
    "dns_prefill": "host",
    "dns_decode": "http://host:8000",
    "disagg_connector_type": "mooncake",
    "decoder_host": "",
    "decoder_init_port": "7300,0",
    "decoder_alloc_port": "x",
    "decoder_registry": "{",
    "lmcache_notify_bind": "0.0.0.0:7500",
    "engine_api_key": "two words",
    "engine_ca_file": "/no/such/file",
    "max_body_bytes": "1023",
    "api_key_file": "/no/such/file",
    "admin_key_file": "/no/such/file",
    "data_parallel_ranks": "2",
    "epp_port": "65536",
    "direct_mode": "yes",
    "trusted_gateways": "10.0.0.1/8",
    "peers": "r1:9000",
    "dns_peers": "routers",
    "peer_key": "two words",
    "max_buffered_bytes": "1023",
    "max_in_flight": "0",
    "max_in_flight_per_engine": "0",
    "queue_size": "-1",
    "queue_timeout": "0",
    "tenant_header": "x tenant",
    "queue_priority": "",
    "retry_budget": "1.5",
    "max_idle_connections": "-1",
    "log_level": "loud",
    "decision_log_sample": "1.5",
    "log_format": "xml",
    "otlp_traces_endpoint": "grpc://c:4317",
    "trace_sample": "-0.1",
    "shutdown_grace": "-0.1",
    **dict(
        zip(DURATIONS, cycle(["0", "-1", "nan", "inf", "86401", "soon", "", "1s"]), strict=False)
    ),
}


def test_every_setting_has_a_wrong_value():
    assert set(WRONG) == set(Settings.model_fields)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_under_the_name_by_which_it_was_given(name, monkeypatch, write):
    flags: dict[str, Any] = {**D0, name: WRONG[name]}
    assert refusal(flags).startswith(f"{flag(name)}: ")
    del flags[name]
    config = write(yaml.safe_dump({name: WRONG[name]}))
    assert refusal(flags, config).startswith(f"--config {config}: {name}: ")
    if WRONG[name]:
        monkeypatch.setenv(ENV_PREFIX + name.upper(), WRONG[name])
        assert refusal(flags).startswith(f"{ENV_PREFIX}{name.upper()}: ")


NUMBERS = [
    name for name, field in Settings.model_fields.items() if isinstance(field.default, int | float)
]


@pytest.mark.parametrize("name", [*NUMBERS, "decoder_init_port"])
def test_yes_is_no_number(name, write):
    line = refusal({**ONE_RECEIVER, "decoder_init_port": "1"} | {name: True})
    assert line == f"{flag(name)}: must be a number, not yes or no"
    config = write(f"{name}: yes")
    flags = {key: value for key, value in ONE_RECEIVER.items() if key != name}
    assert "must be a number" in refusal(flags, config)


def test_a_long_wrong_value_is_cut():
    assert len(refusal({**D0, "log_format": "x" * 10_000})) < 300


@QUICK
@given(name=st.sampled_from(sorted(Settings.model_fields)), text=st.text(max_size=30))
def test_any_text_is_taken_or_refused_under_its_flag(name, text):
    line = refusal_if_any({**D0, name: text})
    lmcache = "--decoder-registry" if name == "disagg_connector_type" else flag(name)
    assert line is None or flag(name) in line or lmcache in line


@QUICK
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    name=st.sampled_from(sorted(Settings.model_fields)),
)
def test_any_value_in_a_file_is_taken_or_refused(value, name, write):
    config = write(json.dumps({name: value}))
    line = refusal_if_any({key: item for key, item in D0.items() if key != name}, config)
    assert line is None or name in line or flag(name) in line


# Files.


@QUICK
@given(content=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_file_is_taken_or_refused(content, write):
    line = refusal_if_any(D0, write(content))
    assert line is None or "--config" in line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prefill: {a: b}", "prefill: must be one value or a list, got {'a': 'b'}"),
        ("decoder_registry: [a]", "decoder_registry: must be a mapping, got ['a']"),
        ("port: 1\nport: 2", "port is given twice"),
        ("port: [", "is not YAML"),
        ("a\0b", "is not YAML"),
        (b"\xff\xfe\xff", "not UTF-8"),
        ("- decode", "must hold keys and values"),
        ("decode", "must hold keys and values"),
        ("routing-threshold: 1", "routing-threshold: no such setting, did you mean"),
        ("decod: http://d0", "decod: no such setting, did you mean decode?"),
        ("xyz: 1", "xyz: no such setting"),
        ("1: 2", "1: no such setting"),
        ("_cli_parse_args: true", "_cli_parse_args: no such setting"),
        ("{[1]: 2}", "is not YAML"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
        ("port: 2026-13-45", "month"),
        ("port: " + "9" * 5000, "digits"),
        ("[" * 2000, "nested too deep"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content, said, write):
    config = write(content)
    line = refusal(D0, config)
    assert line.startswith("--config")
    assert str(config) in line
    assert said in line


@pytest.mark.parametrize("kind", ["missing", "directory", "null byte"])
def test_an_unreadable_file_is_named(kind, tmp_path):
    path = {"missing": tmp_path / "no", "directory": tmp_path, "null byte": Path("a\0b")}[kind]
    line = refusal(D0, path)
    assert line.startswith("--config: ")
    assert kind == "null byte" or str(path) in line


def test_the_same_unreadable_files_are_named_by_the_other_flags(tmp_path):
    path = tmp_path / "no"
    assert refusal({**D0, "engine_ca_file": str(path)}).endswith(
        f"cannot read {path}: No such file or directory"
    )
    assert refusal({**LMCACHE, "decoder_registry": f"@{path}"}).endswith(
        f"cannot read {path}: No such file or directory"
    )


def test_a_file_without_certificates_is_refused(write):
    path = write("not a certificate")
    line = refusal({**D0, "engine_ca_file": str(path)})
    assert line == f"--engine-ca-file: {path} holds no PEM certificates"


# What is wrong with all of them.


def test_every_problem_is_told_in_one_go(monkeypatch, write):
    config = write("decode: d0\nrouting_treshold: 1\nport: 70000\nengine_api_key: two words")
    monkeypatch.setenv("PD_ROUTER_PREFIL", "x")
    settings, problems = examine({"queue_timeout": "0"}, config)
    assert settings is None
    assert [problem.split(" ", 3)[:3] for problem in problems[:2]] == [
        ["PD_ROUTER_PREFIL:", "no", "such"],
        ["--config", f"{config}:", "routing_treshold:"],
    ]
    named = {problem.removeprefix(f"--config {config}: ").split(":")[0] for problem in problems[2:]}
    assert named == {"decode", "port", "engine_api_key", "--queue-timeout"}
    assert "two words" not in str(problems)


def test_settings_that_do_not_fit_each_other_are_told_in_one_go():
    flags = {"dns_prefill": "x:1", "admin_host": "::1", "kv_events": "{}", "decoder_host": "r"}
    _, problems = examine(flags)
    assert problems == [
        "--decode: at least one decode engine is needed",
        "--admin-host: needs --admin-port",
        "--kv-events: needs --prefix-cache events",
        "--decoder-host: needs --disagg-connector-type lmcache",
    ]
    assert refusal(flags) == problems[0]


@given(
    flags=st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from([text, WRONG[name]]) for name, (text, *_) in SAMPLES.items()
        },
    )
)
@QUICK
def test_settings_are_had_exactly_if_there_is_no_problem(flags):
    settings, problems = examine(flags)
    assert (settings is None) == bool(problems)
    assert refusal_if_any(flags) == (problems[0] if problems else None)


@pytest.mark.parametrize("kind", ["tls", "admin_tls", "engine"])
def test_a_certificate_needs_its_key_and_the_key_its_certificate(kind):
    cert, key = f"{kind}_cert_file", f"{kind}_key_file"
    others = {**D0, "admin_port": "9"}
    assert refusal({**others, cert: str(CA_FILE)}) == f"{flag(key)}: needed with {flag(cert)}"
    line = refusal({**others, key: str(TLS_KEY_FILE)})
    assert line == f"{flag(cert)}: needed with {flag(key)}"


def test_what_is_no_certificate_with_its_key_is_refused_without_quoting_it(write):
    path = write("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n")
    line = refusal({**D0, **TLS, "tls_key_file": str(path)})
    assert line.startswith(f"--tls-cert-file: {CA_FILE} and {path} must hold")
    assert "c2VjcmV0" not in line


def test_client_certificates_are_asked_for_over_tls_only():
    line = refusal({**D0, "tls_client_ca_file": str(CA_FILE)})
    assert line == "--tls-client-ca-file: needs --tls-cert-file"


def test_two_routers_cannot_share_lmcaches_notifications():
    line = refusal({**LMCACHE, "lmcache_notify_bind": "tcp://[::]:1", "takeover": "/tmp/s"})
    assert line.startswith("--takeover: two routers cannot listen at --lmcache-notify-bind")


# What may change while the router runs.


def test_what_is_bound_forked_or_watched_at_the_start_is_not_reloadable():
    fixed = {name for name in Settings.model_fields if not is_reloadable(name)}
    assert {"host", "port", "admin_port", "workers", "k8s_decode_selector", "dns_decode"} <= fixed
    assert not fixed & {"prefill", "decode", "routing_threshold", "api_key_file", "max_in_flight"}


# The environment.


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PD_ROUTER_PREFIL", ", did you mean PD_ROUTER_PREFILL?"),
        ("PD_ROUTER_CONFIG", "; name the file with --config FILE"),
        ("pd_router_prot", ""),
        ("PD_ROUTER_", ""),
    ],
)
def test_an_unknown_variable_is_refused_and_named(name, near, monkeypatch):
    monkeypatch.setenv(name, "x")
    assert refusal(D0).startswith(f"{name}: no such setting{near}")


@pytest.mark.parametrize("service", ["PD_ROUTER", "PD_ROUTER_METRICS", "PD_ROUTER_PREFILL"])
def test_what_kubernetes_says_of_services_named_like_the_router_is_no_setting(service, monkeypatch):
    for name, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    if service != "PD_ROUTER":
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.1:80")
    assert load(D0).port == 8000


def test_the_one_service_variable_that_is_a_setting_is_explained(monkeypatch):
    monkeypatch.setenv("PD_ROUTER_PORT", "tcp://10.0.0.1:80")
    line = refusal(D0)
    assert line.startswith("PD_ROUTER_PORT=tcp://10.0.0.1:80 ")
    assert "enableServiceLinks" in line


# Secrets.


@pytest.mark.parametrize("key", ["sk secret", "sk-sécret", "sk-secret\x00", "", "  "])
def test_a_key_that_no_header_can_carry_is_refused_unquoted(key):
    line = refusal({**D0, "engine_api_key": key})
    assert line == "--engine-api-key: must be one word of visible ASCII characters"


@pytest.mark.parametrize("value", ["[sk-secret]", "{a: sk-secret}", "1234567"])
def test_a_key_of_the_wrong_kind_is_refused_unquoted(value, write):
    line = refusal(D0, write(f"engine_api_key: {value}"))
    assert "engine_api_key: " in line
    assert "secret" not in line
    assert "1234567" not in line


def test_a_keys_final_newline_is_no_part_of_it():
    assert load({**D0, "engine_api_key": "sk-1\n"}).engine_api_key == "sk-1"


def test_settings_print_without_their_key():
    assert "sk-secret" not in repr(load({**D0, "engine_api_key": "sk-secret"}))
    assert "sk-secret" not in str(load({**D0, "engine_api_key": "sk-secret"}))


def test_another_settings_error_does_not_print_the_key():
    assert "sk-secret" not in refusal({"engine_api_key": "sk-secret"})
    assert "sk-secret" not in refusal({**D0, "engine_api_key": "sk-secret", "port": "x"})


def test_a_file_that_is_not_yaml_is_not_quoted(write):
    line = refusal(D0, write('decode: http://d0\nengine_api_key: "sk-secret'))
    assert "sk-secret" not in line
    assert "line 2" in line


@pytest.mark.parametrize("url", ["http://user:pass@d0", "http://user:pa/ss@d0", "user:pass@d0"])
def test_credentials_in_a_url_are_refused_unquoted(url):
    line = refusal({"decode": url})
    assert line.startswith("--decode: the URL of 'd0' must hold no credentials")
    assert "user" not in line
    assert "pass" not in line


# LMCache.


def registry(**changes: Any) -> str:
    entry = {**REGISTRY, **changes}
    return json.dumps({"http://D0:80/": {k: v for k, v in entry.items() if v is not None}})


def test_one_decoder_is_given_by_host_and_ports():
    settings = load(
        {**LMCACHE, "prefill": "http://p0", "decoder_host": "r"}
        | {"decoder_init_port": "7300,7301", "decoder_alloc_port": "7400, 7401"}
    )
    receiver = settings.receivers["http://d0"]
    assert receiver.receiver_host == "r"
    assert receiver.receiver_init_port == (7300, 7301)
    assert receiver.receiver_alloc_port == (7400, 7401)


def test_several_decoders_are_given_by_a_registry_whose_urls_compare_normalised():
    both = {"HTTP://D0:80/": REGISTRY, "http://d1:8000/": {**REGISTRY, "receiver_host": "r1"}}
    settings = load(
        {**LMCACHE, "decode": "http://d0,http://d1:8000"}
        | {"decoder_registry": json.dumps({**both, "http://d2": REGISTRY})}
    )
    assert list(settings.receivers) == ["http://d0", "http://d1:8000", "http://d2"]  # may join
    assert settings.receivers["http://d1:8000"].receiver_host == "r1"


def test_a_registry_may_come_from_a_json_file_or_as_yaml(tmp_path, write):
    path = tmp_path / "registry.json"
    path.write_text(registry())
    from_json = load({**LMCACHE, "decoder_registry": f"@{path}"})
    config = write(yaml.safe_dump({"decoder_registry": json.loads(registry())}))
    assert from_json.receivers == load(LMCACHE, config).receivers != {}


def test_an_engines_limit_is_its_own_or_that_of_all():
    engines = {"decode": "http://d0,http://d1"}
    stated = json.dumps({"http://d1/": 8, "*": 64})
    settings = load({**engines, "engine_max_num_seqs": stated})
    assert (settings.max_num_seqs("http://d0"), settings.max_num_seqs("http://d1")) == (64, 8)
    assert load(engines).max_num_seqs("http://d0") is None
    only_one = load({**engines, "engine_max_num_seqs": '{"http://d1": 8}'})
    assert only_one.max_num_seqs("http://d0") is None


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ('{"http://d7": 8}', "http://d7 is no decode engine"),
        ('{"http://d0": 8, "http://d0/": 9}', "http://d0 is given twice"),
        ('{"http://d0": 0}', "http://d0: "),
        ("[8]", "*: "),
    ],
)
def test_a_limit_of_no_engine_is_refused(stated, said):
    line = refusal({**D0, "engine_max_num_seqs": stated})
    assert line.startswith(f"--engine-max-num-seqs: {said}")


def test_without_lmcache_there_are_no_receivers():
    assert load(D0).receivers == {}
    assert load(LMCACHE).receivers == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"receiver_alloc_port": [7400, 7401]},
            "http://d0: 1 init and 2 alloc ports",
        ),
        ({"receiver_hots": "r", "receiver_host": None}, "http://d0: receiver_hots: no such key"),
        ({"receiver_query_prt": [1]}, "http://d0: receiver_query_prt: no such key"),
        ({"receiver_host": None}, "http://d0: receiver_host: is missing"),
        ({"receiver_host": ""}, "http://d0: receiver_host: "),
        ({"receiver_host": 7}, "http://d0: receiver_host: "),
        ({"receiver_init_port": []}, "http://d0: receiver_init_port: "),
        ({"receiver_init_port": [65536]}, "http://d0: receiver_init_port: "),
        ({"receiver_init_port": [True]}, "http://d0: receiver_init_port: must be a number"),
    ],
)
def test_a_wrong_receiver_is_named_down_to_its_key(changes, said):
    line = refusal({**LMCACHE, "decoder_registry": registry(**changes)})
    assert line.startswith(f"--decoder-registry: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deep"),
        ('"d0"', "must be a mapping"),
        ("[]", "must be a mapping"),
        ('{"http://d0": 7}', "http://d0: "),
        ('{"d0": {}}', "'d0' must start with http://"),
        ('{"http://u:p@d0": {}}', "must hold no credentials"),
        ('{"http://d0": {}, "http://d0": {}}', "http://d0 is given twice"),
        ('{"http://d0": {}, "http://D0:80/": {}}', "http://d0 is given twice"),
        ("{}", "decode engine http://d0 is not in it"),
        (registry().replace("D0", "D1"), "decode engine http://d0 is not in it"),
    ],
)
def test_a_wrong_registry_is_refused(text, said):
    line = refusal({**LMCACHE, "decoder_registry": text})
    assert line.startswith("--decoder-registry: ")
    assert said in line


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


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:7500", "tcp://*:1", "tcp://[::]:65535"])
def test_an_address_to_listen_on_for_notifications(address):
    assert load({**LMCACHE, "lmcache_notify_bind": address}).lmcache_notify_bind == address


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7500",
        "tcp://:7500",
        "tcp://a",
        "tcp://a:0",
        "tcp://a:65536",
        "udp://a:1",
        "tcp://a:٣",
    ],
)
def test_what_is_no_address_to_listen_on_is_refused(address):
    line = refusal({**LMCACHE, "lmcache_notify_bind": address})
    assert line.startswith("--lmcache-notify-bind: must be like tcp://0.0.0.0:7500")


# Words.


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_in_sentences_what_it_is(name):
    text = Settings.model_fields[name].description
    assert text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.default, float)
        and not name.endswith(("_sample", "_impact"))
        and name != "retry_budget"
    ],
)
def test_every_duration_names_its_unit(name):
    assert re.search(r"\bseconds\b", Settings.model_fields[name].description or "", re.IGNORECASE)


def test_where_settings_come_from_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources({}) == "defaults"
    monkeypatch.setenv("PD_ROUTER_DECODE", "http://d0")
    assert sources({"port": 1}, tmp_path / "r.yaml") == f"flags, environment, {tmp_path}/r.yaml"
    assert sources({}) == "environment"


def test_a_threshold_on_what_is_not_cached_needs_to_know_what_is() -> None:
    line = refusal({"decode": "http://d0", "threshold_on": "uncached", "prefix_cache": "off"})
    assert line == "--threshold-on: uncached needs --prefix-cache history or events"


@pytest.mark.parametrize("value", ["auto", 4096, "4096", "0"])
def test_a_threshold_is_a_number_or_auto(value):
    given = load({**D0, "routing_threshold": value}).routing_threshold
    assert given == ("auto" if value == "auto" else int(value))


@pytest.mark.parametrize("value", ["-1", "1.5", "1e3", "Auto", "", 1.5, -1])
def test_a_threshold_is_nothing_else(value):
    with pytest.raises(SettingsError, match="--routing-threshold: must be a number of tokens, 0"):
        load({**D0, "routing_threshold": value})


def test_with_discovery_no_decode_engine_need_be_known():
    assert not load(D0).discovers
    settings = load({"engines_file": str(ENGINES), "engine_max_num_seqs": '{"http://later": 4}'})
    assert (settings.decode, settings.discovers) == ((), True)


def test_a_mistake_in_the_engines_file_is_told_at_the_start(tmp_path):
    path = tmp_path / "engines.json"
    path.write_text('{"decode": ["d0"]}')
    line = refusal({"engines_file": str(path)})
    assert line.startswith(f"--engines-file: {path}: decode[0]: 'd0' must start with http")


def test_discovered_engines_need_a_registry_for_lmcache():
    options = {"disagg_connector_type": "lmcache", "engines_file": str(ENGINES)}
    assert refusal(options).startswith("--decoder-registry: discovered decode engines need")
    known = load({**options, "decoder_registry": json.dumps({"http://d9": REGISTRY})})
    assert list(known.receivers) == ["http://d9"]


def test_the_admin_listener_of_this_environment(monkeypatch):
    assert admin_url() is None
    monkeypatch.setenv("PD_ROUTER_ADMIN_PORT", "9000")
    assert admin_url() == "http://127.0.0.1:9000"


EVENTS = {"decode": "http://d0", "prefix_cache": "events"}


def test_sources_of_events_are_by_engine_and_rank() -> None:
    ranks = [{"endpoint": f"tcp://[::1]:{port}", "replay_endpoint": None} for port in (5557, 5558)]
    settings = load({**EVENTS, "kv_events": json.dumps({"http://d0/": ranks})})
    assert settings.kv_events is not None
    [found] = settings.kv_events.values()
    assert [source.endpoint for source in found] == ["tcp://[::1]:5557", "tcp://[::1]:5558"]
    assert load({**EVENTS, "kv_events": "auto"}).kv_events is None


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"http://d1": {"endpoint": "tcp://d1:1"}}, "http://d1 is no engine"),
        ({"http://d0": {"endpoint": "ipc:///tmp/kv"}}, "must be like tcp://host:5557"),
        ({"http://d0": {"endpoint": "tcp://*:5557"}}, None),
        ({"http://d0": {"endpoint": "tcp://d0:0"}}, "must be like tcp://host:5557"),
        ({"http://d0": {"port": 1}}, "no such key"),
        ([1], "must be a mapping"),
    ],
)
def test_sources_that_cannot_be_are_refused(sources: Any, words: str | None) -> None:
    line = refusal({**EVENTS, "kv_events": json.dumps(sources)})
    assert line.startswith("--kv-events")
    assert words is None or words in line


def test_sources_without_use_for_them_are_refused() -> None:
    sources = json.dumps({"http://d0": {"endpoint": "tcp://d0:5557"}})
    line = refusal({"decode": "http://d0", "kv_events": sources})
    assert line == "--kv-events: needs --prefix-cache events"


# Discovery.


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({**D0, "k8s_prefill_selector": "a=b"}, "--k8s-prefill-selector: needs --k8s-decode-sel"),
        ({**D0, "k8s_namespace": "llm"}, "--k8s-namespace: needs --k8s-decode-selector"),
        ({**D0, "k8s_port": "80"}, "--k8s-port: needs --k8s-decode-selector"),
        ({**POD, "k8s_prefill_selector": "app=vllm"}, "--k8s-decode-selector: it is --k8s-pref"),
        ({"dns_prefill": "x:80"}, "--decode: at least one"),
        ({"dns_prefill": "x:80,y:80", "dns_decode": "y:80"}, "--dns-decode: y:80 is given for"),
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


def test_engines_that_are_found_may_have_limits_of_their_own():
    settings = load({**POD, "engine_max_num_seqs": '{"http://10.0.0.1:8000": 64}'})
    assert settings.max_num_seqs("http://10.0.0.1:8000") == 64
