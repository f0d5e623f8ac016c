"""Routers that are configured by files: LiteLLM's proxy, llm-d's endpoint picker and nginx."""

from collections.abc import Sequence

from router.commands.migrate.rows import (
    Other,
    aliases,
    by_itself,
    each,
    engine_url,
    lost,
    mebibytes,
    nginx_bytes,
    nginx_seconds,
    to,
)

__all__ = ["LITELLM", "LLM_D", "NGINX"]

SED = "shortest_expected_delay"


def one_key(words: Sequence[str]) -> str | None:
    """The key, if it is the same for all engines and in the file."""
    [*keys] = {*words}
    return None if len(keys) != 1 or keys[0].startswith("os.environ/") else keys[0]


LITELLM = Other(
    "litellm",
    "LiteLLM's proxy, its documents of 2026-08 (github.com/BerriAI/litellm-docs)",
    (
        to("api_base", "decode", engine_url, "Of `hosted_vllm/` and `openai/` models."),
        to("model_name", "model_aliases", aliases, "Where it differs from the engine's name."),
        to("api_key", "engine_api_key", one_key, "From the environment: PD_ROUTER_ENGINE_API_KEY."),
        lost("provider", "Only engines are routed to. Keep LiteLLM in front for this model."),
        by_itself("rpm tpm weight order", "Of equal engines: speed and load are measured."),
        lost("litellm_params.*", "Clients send parameters themselves."),
        by_itself("model_info", "Read from each engine's `/v1/models`."),
        to(
            "router_settings.routing_strategy",
            "load_balancing_strategy",
            dict.fromkeys(
                (
                    *("simple-shuffle", "least-busy", "latency-based-routing"),
                    *("usage-based-routing", "usage-based-routing-v2", "cost-based-routing"),
                ),
                SED,
            ),
        ),
        to("router_settings.model_group_alias", "model_aliases", aliases),
        to("router_settings.timeout litellm_settings.request_timeout", "first_byte_timeout"),
        to("router_settings.stream_timeout", "first_byte_timeout"),
        to("router_settings.num_retries litellm_settings.num_retries", "retries_on_5xx"),
        to(
            "router_settings.allowed_fails litellm_settings.allowed_fails",
            "outlier_consecutive_failures",
            note="In a row, not per minute.",
        ),
        to("router_settings.cooldown_time", "outlier_ejection_time"),
        to("router_settings.disable_cooldowns", "outlier_consecutive_failures", {"True": 0}),
        lost(
            "router_settings.fallbacks litellm_settings.fallbacks *.default_fallbacks",
            "While a model's engines are down: `else MODEL` in `model_aliases` (docs/models.md).",
        ),
        lost("*.context_window_fallbacks *.content_policy_fallbacks", "The client sees the error."),
        by_itself("router_settings.enable_pre_call_checks", "Engines check the length."),
        lost("router_settings.redis_* router_settings.cache_*", "Replicas report to --peers."),
        by_itself("litellm_settings.drop_params", "Engines get the body as it is."),
        to("litellm_settings.json_logs", "log_format", {"True": "json"}),
        lost("litellm_settings.*callback* callback_settings*", "Traces: `otlp_traces_endpoint`."),
        lost("litellm_settings.cache*", "Answers are not stored. Engines cache prefixes."),
        lost("general_settings.master_key", "A line `NAME KEY` in a file for `api_key_file`."),
        to("general_settings.global_max_parallel_requests", "max_in_flight"),
        to("general_settings.max_parallel_requests", "max_in_flight_per_engine"),
        to("general_settings.max_request_size_mb", "max_body_bytes", mebibytes),
        to("general_settings.health_check_interval", "health_check_interval"),
        by_itself("general_settings.background_health_checks", "Always, by `/health`."),
        lost("general_settings.database_* general_settings.*spend*", "There is no database."),
        lost("environment_variables.*", "Set them where the router starts."),
        lost(
            "general_settings.* litellm_settings.* router_settings.* worker_registry*",
            "There is none.",
        ),
    ),
    {"port": 4000},
)

DECODE_PODS = "llm-d.ai/role in (decode,prefill-decode,both,encode-prefill-decode)"
PREFILL_PODS = "llm-d.ai/role in (prefill,encode-prefill)"

LLM_D = Other(
    "llm-d",
    "llm-d's inference scheduler of 2026-05 (github.com/llm-d/llm-d-inference-scheduler)",
    (
        to(
            "EndpointPickerConfig",
            "epp_port",
            {"": 9002},
            "For Envoy, as with `pd-router epp`. Without a gateway clients use `port`.",
        ),
        to(
            "EndpointPickerConfig",
            "k8s_decode_selector",
            {"": DECODE_PODS},
            "Add the labels of your InferencePool's selector.",
        ),
        to("prefill-filter", "k8s_prefill_selector", {"": PREFILL_PODS}, "Others decode only."),
        by_itself("decode-filter", "Its pods are those of `k8s_decode_selector`."),
        to("label-selector-filter by-label", "k8s_decode_selector", {}, "Write the selectors."),
        by_itself(
            "*-profile-handler *-profile-handler.* *-picker *-picker.* disagg-headers-handler "
            "prefill-header-handler",
            "Mode and engines are chosen together. Ranks are found by `/metrics`.",
        ),
        to(
            "prefix-based-pd-decider.nonCachedTokens",
            "routing_threshold",
            note="Without it `auto`: the mode with the earlier expected first token.",
        ),
        to(
            "prefix-based-pd-decider.nonCachedTokens",
            "threshold_on",
            lambda _: "uncached",
        ),
        to("always-disagg-pd-decider", "routing_threshold", {"": 0}),
        by_itself("prefix-based-pd-decider", "Its parameters count."),
        to("prefix-cache-scorer approx-prefix-cache-producer", "prefix_cache", {"": "history"}),
        to("precise-prefix-cache-scorer", "prefix_cache", {"": "events"}, "docs/kv-events.md"),
        by_itself(
            "prefix-cache-scorer.* approx-prefix-cache-producer.* precise-prefix-cache-scorer.*",
            "Blocks and capacity are measured, or announced by engines.",
        ),
        to(
            "session-affinity-scorer",
            "session_header",
            {"": "x-session-id"},
            "Not x-session-token.",
        ),
        by_itself(
            "queue-scorer kv-cache-utilization-scorer running-requests-size-scorer "
            "load-aware-scorer* active-request-scorer* token-load-scorer* latency-scorer* "
            "no-hit-lru-scorer* context-length-aware* "
            "prefix-cache-affinity-filter* slo-headroom-tier-filter*",
            "One score, the expected delay, is measured for each engine.",
        ),
        by_itself("lora-affinity-scorer", "Engines that have the adapter loaded are preferred."),
        lost(
            "encode-filter always-disagg-multimodal-decider",
            "The endpoint picker names no encode engines.",
        ),
        by_itself(
            "token-producer token-producer.* tokenizer tokenizer.* *-data-source *-extractor "
            "*-notification-source *-parser inflight-load-producer* predicted-latency-producer* "
            "request-attribute-reporter*",
            "Gauges are scraped; prompts are estimated from bytes.",
        ),
        lost(
            "latency-slo-admitter* slo-deadline-ordering-policy*",
            "`request_deadlines: on` refuses what would begin after its `x-slo-ttft-ms`.",
        ),
        lost(
            "probabilistic-admitter* concurrency-detector* utilization-detector* *-policy* "
            "*-eviction-filter",
            "Envoy limits requests. Without it: `max_in_flight` (docs/overload.md).",
        ),
        lost("featureGates", "There is none."),
    ),
    {},
)

NGINX = Other(
    "nginx",
    "nginx 1.29 (nginx.org), vLLM's documents (docs/deployment/nginx.md)",
    (
        to("upstream.server", "decode", each),
        by_itself("server.weight zone random", "Speed and load are measured."),
        to("least_conn", "load_balancing_strategy", {"": SED}),
        to(
            "hash",
            "session_header",
            lambda words: (
                words[0].removeprefix("$http_").replace("_", "-")
                if words[0].startswith("$http_")
                else None
            ),
            "Of a header only; a preference, weighed against load.",
        ),
        lost("ip_hash sticky", "`session_header`: a header that names the session."),
        to("server.max_fails", "outlier_consecutive_failures"),
        to("server.fail_timeout", "outlier_ejection_time", nginx_seconds),
        to("server.max_conns", "max_in_flight_per_engine", note="Further requests wait."),
        to("server.slow_start", "slow_start", nginx_seconds),
        lost("server.backup", "All engines are used. A reserve: `else MODEL` (docs/models.md)."),
        lost("server.down", "Such an engine is left out."),
        lost("server.resolve server.service", "--dns-decode."),
        to("keepalive", "max_idle_connections"),
        by_itself("keepalive_requests keepalive_time", "Connections are used until they idle."),
        to("listen", "port", lambda words: int(words[0].rpartition(":")[2])),
        to("ssl_certificate", "tls_cert_file"),
        to("ssl_certificate_key", "tls_key_file"),
        to("ssl_client_certificate", "tls_client_ca_file"),
        to("proxy_ssl_trusted_certificate", "engine_ca_file"),
        to("proxy_connect_timeout", "connect_timeout", nginx_seconds),
        to("proxy_read_timeout", "first_byte_timeout", nginx_seconds),
        to("proxy_read_timeout", "stream_idle_timeout", nginx_seconds),
        to("send_timeout", "client_stall_timeout", nginx_seconds),
        to("keepalive_timeout", "keep_alive_timeout", nginx_seconds),
        to("client_max_body_size", "max_body_bytes", nginx_bytes),
        to("client_body_timeout", "body_timeout", nginx_seconds),
        by_itself(
            "proxy_next_upstream", "Another engine is asked if that is safe (docs/errors.md)."
        ),
        to("proxy_next_upstream", "retries_on_5xx", {"off": 0}),
        to("worker_processes", "workers"),
        by_itself(
            "proxy_pass proxy_http_version proxy_buffering proxy_cache proxy_request_buffering "
            "chunked_transfer_encoding tcp_* server_name proxy_set_header.* proxy_next_upstream_* "
            "proxy_send_timeout worker_connections",
            "Answers are passed on at once.",
        ),
        to(
            "location",
            "path_prefix",
            lambda words: None if "/v1" in words[-1] else words[-1].rstrip("/"),
            "One path below which all routes are; single routes are fixed (README).",
        ),
        lost("limit_req* limit_conn*", "Limits are per API key: --api-key-file."),
        by_itself(
            "user pid include default_type sendfile gzip gzip_* types_* server_tokens",
            "Nothing of it is about requests.",
        ),
        lost("ssl_protocols ssl_ciphers ssl_*", "TLS 1.2 or newer."),
        lost("access_log error_log log_format", "A line per request, on standard error."),
    ),
    {"port": 80},
)
