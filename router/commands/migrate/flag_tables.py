"""Routers that are configured by flags: vllm-router, smg and production-stack's router."""

from router.commands.migrate.rows import (
    Other,
    aliases,
    by_itself,
    each,
    first,
    labels,
    lost,
    only,
    room,
    to,
)

__all__ = ["PRODUCTION_STACK", "SMG", "VLLM_ROUTER"]

SED = "shortest_expected_delay"

POLICIES = {
    "round_robin": "round_robin",
    "cache_aware": SED,
    "kv_aware": SED,
    "power_of_two": SED,
    "least_load": SED,
    "prefix_hash": SED,
    "bucket": SED,
    "consistent_hash": SED,
    "consistent_hashing": SED,
    "sticky_least_loaded": SED,
    "manual": SED,
}
"""shortest_expected_delay knows prefix caches and load at once."""

NO_RANDOM = "random, passthrough: the default strategy instead."

LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "error",
}

FAMILY = (
    to("--host", "host"),
    to("--port", "port"),
    to("--worker-urls", "decode", each, "A pool of whole engines is one without prefill engines."),
    to(
        "--prefill",
        "prefill",
        first,
        "A bootstrap port behind the URL: `mooncake_bootstrap_port`; NIXL has none.",
    ),
    to("--decode", "decode", each),
    to("--policy", "load_balancing_strategy", POLICIES, NO_RANDOM),
    to("--prefill-policy", "prefill_load_balancing_strategy", POLICIES, NO_RANDOM),
    to("--decode-policy", "decode_load_balancing_strategy", POLICIES, NO_RANDOM),
    by_itself(
        "--cache-threshold --balance-abs-threshold --balance-rel-threshold --eviction-interval* "
        "--max-tree-size",
        "Cached tokens and load are weighed in seconds, without thresholds.",
    ),
    to("--max-payload-size", "max_body_bytes"),
    to("--max-payload-size", "max_buffered_bytes", room, "Room for one such body."),
    to("--request-timeout-secs", "first_byte_timeout", note="A stream may take longer in all."),
    to("--max-concurrent-requests", "max_in_flight", note="Requests in progress, not a rate."),
    to("--queue-size", "queue_size"),
    to("--queue-timeout-secs", "queue_timeout"),
    lost("--rate-limit-tokens-per-second", "Rates are per API key: `requests=` in --api-key-file."),
    to("--cors-allowed-origins", "cors_allow_origin", each, "Without it: none."),
    to("--api-key", "engine_api_key"),
    to("--log-level", "log_level", LEVELS),
    lost("--log-dir", "Logs go to standard error."),
    to("--prometheus-port", "admin_port", note="`/metrics` is there; by default on `--port`."),
    to("--prometheus-host", "admin_host"),
    lost("--request-id-headers", "It is `x-request-id`, passed on or made."),
    by_itself("--service-discovery", "The selectors switch it on."),
    to("--selector", "k8s_decode_selector", labels),
    to("--prefill-selector", "k8s_prefill_selector", labels),
    to("--decode-selector", "k8s_decode_selector", labels),
    to("--service-discovery-port", "k8s_port"),
    to(
        "--service-discovery-namespace",
        "k8s_namespace",
        note="Without it: the namespace of the router's pod, not all.",
    ),
    by_itself("--worker-startup-*", "Absent engines join when they come up."),
    by_itself("--enable-igw", "Each engine's models are read from its `/v1/models`."),
    by_itself("--retry-*", "Without back-off: another engine is asked at once (docs/errors.md)."),
    to("--disable-retries", "retries_on_5xx", {"": 0}),
    to("--cb-failure-threshold", "outlier_consecutive_failures"),
    to("--cb-timeout-duration-secs", "outlier_ejection_time"),
    by_itself(
        "--cb-success-threshold --cb-window-duration-secs", "Returning engines start slowly."
    ),
    to("--disable-circuit-breaker", "outlier_consecutive_failures", {"": 0}),
    to("--health-check-timeout-secs", "health_check_timeout"),
    to("--health-check-interval-secs", "health_check_interval"),
    by_itself(
        "--health-failure-threshold --health-success-threshold",
        "Requests tell earlier than probes (docs/exclusions.md).",
    ),
    lost("--health-check-endpoint", "It is `/health`."),
)
"""Names that vllm-router and smg share: both come from SGLang's model gateway."""

VLLM_ROUTER = Other(
    "vllm-router",
    "vllm-router 0.1.17 (github.com/vllm-project/router)",
    (
        *FAMILY,
        to(
            "--policy",
            "session_header",
            {"consistent_hash": "x-session-id", "sticky_least_loaded": "x-session-id"},
            "The first of its keys; a preference, weighed against load.",
        ),
        by_itself(
            "--vllm-pd-disaggregation",
            "Short prompts stay on decode engines; `routing_threshold: 0` sends all to prefill.",
        ),
        to(
            "--kv-connector",
            "disagg_connector_type",
            {"nixl": "nixl", "mooncake": "mooncake", "moriio": "moriio"},
            "moriio: WRITE mode, with `moriio_handshake_port` and `moriio_notify_port`.",
        ),
        lost(
            "--vllm-discovery-address", "Engines are named, or found by Kubernetes, DNS or a file."
        ),
        by_itself(
            "--intra-node-data-parallel-size", "Ranks are found by each engine's `/metrics`."
        ),
        by_itself(
            "--kv-event-source --kv-event-replay-source --kv-event-block-size --kv-event-model "
            "--pd-kv-events",
            "`prefix_cache: events` asks each engine (docs/kv-events.md).",
        ),
        lost("--router-temperature --kv-penalty-* --kv-aware-session-*", "Costs are measured."),
        lost("--enable-program-scheduling --program-scheduling-*", "There is none."),
        lost("--api-key-validation-urls", "Keys are in a file: --api-key-file."),
        lost("--wasm-*", "There are no plug-ins."),
        lost("--mini-lb --profile --backend --runtime --history-backend", "There is none."),
    ),
    {"host": "127.0.0.1", "port": 30000, "k8s_port": 80, "admin_port": 29000},
)

SMG = Other(
    "smg",
    "smg 1.13.0 (github.com/lightseekorg/smg; before, SGLang's model gateway, sgl-router)",
    (
        *FAMILY,
        to(
            "--policy",
            "session_header",
            {"consistent_hashing": "x-smg-routing-key", "manual": "x-smg-routing-key"},
            "A preference, weighed against load.",
        ),
        to(
            "--routing-key-override --sticky-sessions",
            "session_header",
            {"": "x-smg-routing-key"},
        ),
        to("--routing-key-headers", "session_header", lambda words: words[0], "The first."),
        by_itself(
            "--pd-disaggregation",
            "Engines must be vLLM's. `routing_threshold: 0` sends all prompts to prefill engines.",
        ),
        by_itself("--epd-disaggregation", "Engines must be vLLM's."),
        to("--encode", "encode", first),
        to("--encode-selector", "k8s_encode_selector", labels),
        lost("--encode-policy", "Encode engines are chosen by load, and by what they encoded."),
        lost(
            "--prefill-max-inflight-* --prefill-queue-*", "Limits are of decode engines and in all."
        ),
        by_itself("--kv-connector-annotation --kv-engine-id-annotation", "Engines tell it."),
        to("--model-alias", "model_aliases", aliases),
        lost("--model-id-from", "Engines tell it; more names: `model_aliases` (docs/models.md)."),
        to("--log-json", "log_format", {"": "json"}),
        to("--shutdown-grace-period-secs", "shutdown_grace"),
        to("--sse-keepalive-secs", "sse_keep_alive"),
        to("--stream-body-stall-timeout-secs", "body_timeout", note="For the whole body."),
        to("--idle-connection-timeout-secs", "keep_alive_timeout"),
        to("--upstream-pool-idle-timeout-secs", "idle_connection_timeout"),
        by_itself("--max-buffered-request-bytes", "Bodies are held, `max_buffered_bytes` in all."),
        to("--tenant-header-name", "tenant_header"),
        by_itself("--trust-tenant-header", "`tenant_header` switches it on."),
        to("--tls-cert-path", "tls_cert_file"),
        to("--tls-key-path", "tls_key_file"),
        to("--client-cert-path", "engine_cert_file"),
        to("--client-key-path", "engine_key_file"),
        to("--ca-cert-paths", "engine_ca_file", only, "One file, of several certificates."),
        to(
            "--otlp-traces-endpoint", "otlp_traces_endpoint", note="Over HTTP, port 4318, not gRPC."
        ),
        by_itself("--enable-trace", "`otlp_traces_endpoint` switches it on."),
        lost("--tenant-api-key --control-plane-* --jwt-*", "Keys are in a file: --api-key-file."),
        lost("--tenant-rate-limit-*", "Limits follow the key: --api-key-file."),
        lost("--priority-scheduler-*", "`queue_priority` takes it from the body or a header."),
        lost("--router-selector --enable-mesh --mesh-* --ha-mesh --seeds", "--dns-peers, --peers."),
        lost("--discovery-provider --discovery-file --discovery-check-*", "--engines-file."),
        by_itself("--dp-aware --dp-minimum-tokens-scheduler", "Ranks are found by `/metrics`."),
        by_itself(
            "--prefix-token-count --prefix-hash-* --least-load-* --power-of-two-* "
            "--balance-token-* --overload-* --worker-overload-* --disable-worker-overload-* "
            "--kv-index --worker-stall-* --worker-wedge-* --worker-stale-* --worker-warmup-* "
            "--selection-* --overlap-decay "
            "--bucket-adjust-* --block-size --cache-* --spill-* --max-idle-secs --sticky-key-* "
            "--assignment-mode --load-monitor-interval "
            "--disable-load-monitoring --job-queue-* --pd-admission-wait-secs",
            "Load, speed, stalls and caches are measured (docs/exclusions.md).",
        ),
        by_itself(
            "--remove-unhealthy-workers --no-remove-unhealthy-workers --worker-auto-recovery "
            "--no-worker-auto-recovery --header-read-timeout-secs --max-background-responses",
            "It is always so.",
        ),
        lost("--disable-health-check --health-check-port", "Engines are probed at their own port."),
        by_itself(
            "--model-path --model --tokenizer-* --chat-template --disable-tokenizer-* --parser "
            "--reasoning-parser --tool-call-parser",
            "Engines tokenize and parse.",
        ),
        lost("--backend --zmq-engine-count --upstream-http2", "Engines speak HTTP/1.1."),
        lost("--multimodal-* --mm-* --log-mm-timing --rdma-*", "Engines read media."),
        lost("--mcp-config-path --enable-wasm --storage-*", "There are no tools and plug-ins."),
        lost(
            "--history-* --schema-config --oracle-* --postgres-* --redis-*",
            "Engines store responses: `stored_responses` (docs/tuning.md).",
        ),
        lost("--enable-rl --rl-*", "Engines' administration is not reachable by clients."),
        lost("--prometheus-duration-buckets --jemalloc-*", "There is none."),
    ),
    {"port": 30000, "k8s_port": 80, "admin_port": 29000},
)

LOGIC = {
    "roundrobin": "round_robin",
    "session": SED,
    "kvaware": SED,
    "prefixaware": SED,
    "disaggregated_prefill": SED,
    "disaggregated_prefill_orchestrated": SED,
}

PRODUCTION_STACK = Other(
    "production-stack",
    "its repository of 2026-08-05 (github.com/vllm-project/production-stack)",
    (
        to("--host", "host"),
        to("--port", "port"),
        to("--root-path", "path_prefix", note="The routes without it are served too."),
        by_itself("--service-discovery", "Engines or a selector say it."),
        lost("--k8s-service-discovery-type", "By pods; by a service's name: --dns-decode."),
        to("--static-backends", "decode", each),
        to("--static-backends(prefill)", "prefill", each, "Those with a prefill label."),
        by_itself("--static-models --static-model-types", "Read from each engine's `/v1/models`."),
        to("--static-aliases", "model_aliases", aliases),
        by_itself(
            "--static-model-labels --prefill-model-labels --decode-model-labels",
            "They divide engines, and pods by their label `model`.",
        ),
        by_itself("--static-backend-health-*", "`/health` is probed, at no cost for engines."),
        to("--backend-health-check-timeout-seconds", "health_check_timeout"),
        to("--k8s-port", "k8s_port"),
        to("--k8s-namespace", "k8s_namespace"),
        to("--k8s-label-selector", "k8s_decode_selector"),
        to("--k8s-label-selector(prefill)", "k8s_prefill_selector"),
        by_itself("--k8s-watcher-timeout-seconds", "A watch that is silent is begun again."),
        to("--routing-logic", "load_balancing_strategy", LOGIC),
        to(
            "--routing-logic",
            "disagg_connector_type",
            {"disaggregated_prefill": "store", "disaggregated_prefill_orchestrated": "nixl"},
            "store: prefill, then decode, as there; LMCache's own ways: docs/connectors.md.",
        ),
        to("--session-key", "session_header", note="A preference, weighed against load."),
        by_itself(
            "--lmcache-* --kv-aware-threshold --prefix-min-match-length",
            "Cached prefixes are known by history or events (docs/kv-events.md).",
        ),
        lost("--callbacks --request-rewriter --feature-gates --semantic-cache-*", "No plug-ins."),
        lost("--enable-batch-api --file-storage-* --batch-processor", "There are no files."),
        lost("--external-providers-config", "LiteLLM in front of the router does that."),
        by_itself("--engine-stats-interval", "`engine_stats_interval` is 1 s, at 2.5 ms each."),
        by_itself("--request-stats-window --log-stats*", "`/metrics` and a line per request."),
        by_itself("--dynamic-config-*", "SIGHUP reads --config again (docs/change.md)."),
        to("--log-level", "log_level", LEVELS),
        to("--log-format", "log_format"),
        lost("--sentry-*", "There is none; traces: `otlp_traces_endpoint`."),
        lost("--otel-*", "`otlp_traces_endpoint`, over HTTP: its port 4318."),
        to("--max-instance-failover-reroute-attempts", "retries_on_5xx"),
    ),
    {"port": 8001},
)
