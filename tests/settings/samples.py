"""A right and a wrong value for every setting, and what refuses them."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples

from router.core.membership.engine_names import DnsName
from router.settings import Settings, SettingsError, load
from router.settings.engine_values import KVEventSource, Receiver

D0 = {"decode": "http://d0"}
ADMIN = {**D0, "admin_port": "9"}
QUICK = examples(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CA_FILE = Path(__file__).parent.parent / "commands" / "tls" / "certificate.pem"
TLS_KEY_FILE = CA_FILE.with_name("key.pem")
KEY_FILE = Path(__file__).parent.parent / "commands" / "keys"
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
ENGINES = Path(__file__).parent.parent / "engines.json"
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
    "path_prefix": ("/llm/", "/llm", D0),
    "request_deadlines": ("on", "on", D0),
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
    "encode": ("http://e0,http://e1", ("http://e0", "http://e1"), D0),
    "engines_file": (str(ENGINES), ENGINES, {}),
    "engine_leave_timeout": ("60", 60.0, D0),
    "k8s_prefill_selector": (
        "app=vllm, role in (prefill, both)",
        "app=vllm,role in (prefill, both)",
        POD,
    ),
    "k8s_decode_selector": ("app=vllm,!old", "app=vllm,!old", {}),
    "k8s_encode_selector": ("role=encode", "role=encode", POD),
    "k8s_namespace": ("llm", "llm", POD),
    "k8s_port": ("8000,http", (8000, "http"), POD),
    "k8s_config_file": (str(CA_FILE), CA_FILE, POD),
    "dns_prefill": ("P.svc:80,_h._tcp.p", (("p.svc", 80), ("_h._tcp.p", None)), D0),
    "dns_decode": ("d.svc:8000", (("d.svc", 8000),), {}),
    "dns_encode": ("e.svc:8000", (("e.svc", 8000),), D0),
    "routing_threshold": ("4096", 4096, D0),
    "max_itl_impact": ("0.5", 0.5, D0),
    "model_aliases": ("gpt=m, chat=a*9 b", ("gpt=m", "chat=a*9 b"), D0),
    "image_tokens": ('{"m": 256, "n": "32x32"}', {"m": 256, "n": "32x32"}, D0),
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
    "mooncake_bootstrap_port": (
        '{"http://p0:80/": 8999, "*": 9000}',
        {"http://p0": 8999, "*": 9000},
        {**D0, "prefill": "http://p0", "disagg_connector_type": "mooncake"},
    ),
    "moriio_handshake_port": ("6311", {"*": 6311}, {**D0, "disagg_connector_type": "moriio"}),
    "moriio_notify_port": (
        '{"http://d0:80/": 61015}',
        {"http://d0": 61015},
        {**D0, "disagg_connector_type": "moriio"},
    ),
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
    "sse_keep_alive": ("0", 0.0, D0),
    "body_timeout": ("7", 7.0, D0),
    "client_stall_timeout": ("7", 7.0, D0),
    "shutdown_grace": ("0", 0.0, D0),
    "max_body_bytes": ("1024", 1024, D0),
    "api_key_file": (str(KEY_FILE), KEY_FILE, D0),
    "admin_key_file": (str(KEY_FILE), KEY_FILE, ADMIN),
    "data_parallel_ranks": ("off", "off", D0),
    "topology": ("strict", "strict", D0),
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
    "session_header": ("X-Session-ID", "x-session-id", D0),
    "retry_budget": ("1", 1.0, D0),
    "retries_on_5xx": ("0", 0, D0),
    "stream_continuation": ("on", "on", D0),
    "uncontinued_models": ("a,b", ("a", "b"), D0),
    "stored_responses": ("on", "on", D0),
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
    "path_prefix": "llm",
    "request_deadlines": "yes",
    "admin_host": "",
    "admin_port": "65536",
    "engine_header": "yes",
    "prefill": "p0",
    "decode": "d0",
    "encode": "e0",
    "engines_file": "/no/such/file",
    "engine_leave_timeout": "0",
    "routing_threshold": "-1",
    "max_itl_impact": "-1",
    "threshold_on": "tokens",
    "prefix_cache": "lru",
    "kv_events": "{",
    "model_aliases": "gpt=m*0",
    "image_tokens": '{"m": 0}',
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
    "k8s_encode_selector": "role=en code",
    "k8s_namespace": "Default",
    "k8s_port": "8000,0",
    "k8s_config_file": "/no/such/file",
    "dns_prefill": "host",
    "dns_decode": "http://host:8000",
    "dns_encode": "host",
    "disagg_connector_type": "p2p",
    "mooncake_bootstrap_port": "0",
    "moriio_handshake_port": "0",
    "moriio_notify_port": "x",
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
    "topology": "none",
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
    "session_header": "x session",
    "retry_budget": "1.5",
    "retries_on_5xx": "3",
    "stream_continuation": "maybe",
    "uncontinued_models": "a,a",
    "stored_responses": "maybe",
    "max_idle_connections": "-1",
    "log_level": "loud",
    "decision_log_sample": "1.5",
    "log_format": "xml",
    "otlp_traces_endpoint": "grpc://c:4317",
    "trace_sample": "-0.1",
    "shutdown_grace": "-0.1",
    "sse_keep_alive": "-1",
    **dict(
        zip(DURATIONS, cycle(["0", "-1", "nan", "inf", "86401", "soon", "", "1s"]), strict=False)
    ),
}


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


def registry(**changes: Any) -> str:
    entry = {**REGISTRY, **changes}
    return json.dumps({"http://D0:80/": {k: v for k, v in entry.items() if v is not None}})
