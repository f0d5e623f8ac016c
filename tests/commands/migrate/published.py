"""What other routers publish: names of their flags, and the lines and files of their documents.

Short excerpts, each with its source.
"""

from typing import NamedTuple

__all__ = ["FILES", "FLAGS", "LINES", "Published"]
FLAGS = {
    "vllm-router": """
api-key balance-abs-threshold balance-rel-threshold cache-threshold cb-failure-threshold
cb-success-threshold cb-timeout-duration-secs cb-window-duration-secs cors-allowed-origins
decode decode-policy decode-selector disable-circuit-breaker disable-retries enable-igw
enable-program-scheduling eviction-interval-secs health-check-endpoint
health-check-interval-secs health-check-timeout-secs health-failure-threshold
health-success-threshold host intra-node-data-parallel-size
kv-aware-session-affinity-ttl-secs kv-connector kv-event-block-size kv-event-model
kv-event-replay-source kv-event-source kv-penalty-disk kv-penalty-external kv-penalty-host
log-dir log-level max-concurrent-requests max-payload-size max-tree-size mini-lb
pd-kv-events policy port prefill prefill-policy prefill-selector
program-scheduling-config-json prometheus-host prometheus-port queue-size queue-timeout-secs
rate-limit-tokens-per-second request-id-headers request-timeout-secs
retry-backoff-multiplier retry-initial-backoff-ms retry-jitter-factor retry-max-backoff-ms
retry-max-retries router-temperature selector service-discovery service-discovery-namespace
service-discovery-port vllm-discovery-address vllm-pd-disaggregation wasm-middleware
wasm-middleware-route wasm-middleware-sha256 worker-startup-check-interval
worker-startup-timeout-secs worker-urls
""",
    "smg": """
api-key assignment-mode backend balance-abs-threshold balance-rel-threshold
balance-token-usage-threshold block-size bucket-adjust-interval-secs ca-cert-paths
cache-boundaries cache-index cache-match-threshold cache-threshold cache-ttl-secs
cb-failure-threshold cb-success-threshold cb-timeout-duration-secs cb-window-duration-secs
chat-template client-cert-path client-key-path control-plane-api-keys
control-plane-audit-enabled cors-allowed-origins decode decode-policy decode-selector
disable-circuit-breaker disable-health-check disable-load-monitoring disable-retries
disable-tokenizer-autoload disable-worker-overload-protection discovery-check-interval-secs
discovery-file discovery-provider dp-aware dp-minimum-tokens-scheduler enable-igw
enable-mesh enable-rl enable-trace enable-wasm encode encode-policy encode-selector
epd-disaggregation eviction-interval-secs header-read-timeout-secs health-check-endpoint
health-check-interval-secs health-check-port health-check-timeout-secs
health-failure-threshold health-success-threshold history-backend history-memory-max-items
history-memory-max-responses history-memory-retention-secs host idle-connection-timeout-secs
jemalloc-prof-dir job-queue-capacity job-queue-concurrency jwt-audience jwt-issuer
jwt-jwks-uri jwt-role-mapping kv-connector-annotation kv-engine-id-annotation kv-index
least-load-default-throughput least-load-kv-pressure-weight least-load-max-waiting-requests
least-load-mean-prefill-tokens load-monitor-interval log-dir log-json log-level
log-mm-timing max-background-responses max-buffered-request-bytes max-concurrent-requests
max-idle-secs max-payload-size max-tree-size mcp-config-path mesh-advertise-host mesh-host
mesh-peer-urls mesh-port mesh-server-name mesh-tls-ca-cert mesh-tls-cert mesh-tls-key
mm-allow-private-media-hosts mm-allowed-media-domains mm-per-request-image-limit
mm-pixel-cache-mb mm-pixel-rdma mm-processing model model-alias model-id-from model-path
multimodal-max-inflight-bytes multimodal-shm-min-bytes multimodal-tensor-transport
no-remove-unhealthy-workers no-worker-auto-recovery oracle-connect-descriptor
oracle-external-auth oracle-password oracle-pool-max oracle-pool-min
oracle-pool-timeout-secs oracle-tns-alias oracle-username oracle-wallet-path
otlp-traces-endpoint overlap-decay overload-token-usage-threshold parser
pd-admission-wait-secs pd-disaggregation policy port postgres-db-url
postgres-op-timeout-secs postgres-pool-max power-of-two-load-metric prefill
prefill-max-inflight-requests-per-worker prefill-policy prefill-queue-size
prefill-queue-timeout-secs prefill-selector prefix-hash-balance-abs-threshold
prefix-hash-load-factor prefix-token-count priority-scheduler-config
priority-scheduler-default-max-class priority-scheduler-enabled
priority-scheduler-tenant-metric-top-n prometheus-duration-buckets prometheus-host
prometheus-port queue-size queue-timeout-secs rate-limit-tokens-per-second rdma-listen-ip
rdma-slot-ttl-s reasoning-parser redis-op-timeout-secs redis-pool-max redis-retention-days
redis-url remove-unhealthy-workers request-id-headers request-timeout-secs
retry-backoff-multiplier retry-initial-backoff-ms retry-jitter-factor retry-max-backoff-ms
retry-max-retries rl-control-timeout-secs rl-fanout-concurrency router-selector
routing-key-headers routing-key-override schema-config selection-accounting-ttl-ms
selection-policy selection-temperature selector service-discovery
service-discovery-namespace service-discovery-port shutdown-grace-period-secs
spill-abs-threshold spill-rel-threshold sse-keepalive-secs sticky-key-idle-secs
sticky-sessions storage-context-headers storage-hook-wasm-path
stream-body-stall-timeout-secs tenant-api-key tenant-header-name tenant-rate-limit-config
tenant-rate-limit-enabled tls-cert-path tls-key-path tokenizer-cache-enable-l0
tokenizer-cache-enable-l1 tokenizer-cache-l0-max-entries tokenizer-cache-l0-max-memory
tokenizer-cache-l1-max-memory tokenizer-path tool-call-parser trust-tenant-header
upstream-http2 upstream-pool-idle-timeout-secs worker-auto-recovery
worker-overload-protection worker-overload-shed worker-overload-token-usage
worker-overload-waiting-requests worker-stale-secs worker-stall-secs
worker-startup-check-interval worker-startup-delay worker-startup-timeout-secs worker-urls
worker-warmup-blocks worker-warmup-divert-every worker-warmup-secs worker-warmup-share
worker-warmup-thin-ratio worker-wedge-secs zmq-engine-count
""",
    "production-stack": """
backend-health-check-timeout-seconds batch-processor callbacks decode-model-labels
dynamic-config-json dynamic-config-yaml enable-batch-api engine-stats-interval
external-providers-config feature-gates file-storage-class file-storage-path host
k8s-label-selector k8s-namespace k8s-port k8s-service-discovery-type
k8s-watcher-timeout-seconds kv-aware-threshold lmcache-controller-heartbeat-port
lmcache-controller-port lmcache-controller-reply-port lmcache-health-check-interval
lmcache-worker-timeout log-format log-level log-stats log-stats-interval
max-instance-failover-reroute-attempts otel-endpoint otel-secure otel-service-name port
prefill-model-labels prefix-min-match-length request-rewriter request-stats-window root-path
routing-logic sentry-dsn sentry-profile-session-sample-rate sentry-traces-sample-rate
service-discovery session-key static-aliases static-backend-health-check-interval
static-backend-health-check-timeout-seconds static-backend-health-checks static-backends
static-model-labels static-model-types static-models
""",
}
"""Without the dashes: of the helps of vllm-router 0.1.17 and smg 1.13.0, and of
src/vllm_router/parsers/parser.py in vllm-project/production-stack (2026-08-05)."""


class Published(NamedTuple):
    """A flag line or a file. `settings`: what it becomes, but for defaults. `lost`: the names that
    have no counterpart."""

    source: str
    router: str
    text: str
    settings: dict[str, object]
    lost: tuple[str, ...] = ()


TWO = ["http://worker1:8000", "http://worker2:8000"]
LOCAL = ["http://localhost:8080", "http://localhost:8081"]
CACHED = {"load_balancing_strategy": "shortest_expected_delay"}

LINES = (
    Published(
        "vllm-project/router, README.md: data parallelism",
        "vllm-router",
        """vllm-router --worker-urls http://worker1:8000 http://worker2:8000
             --policy consistent_hash --intra-node-data-parallel-size 8""",
        {"decode": TWO, "session_header": "x-session-id", **CACHED},
    ),
    Published(
        "vllm-project/router, README.md: prefill-decode disaggregation",
        "vllm-router",
        """cargo run --release -- --policy consistent_hash --vllm-pd-disaggregation
             --prefill http://127.0.0.1:8081 --prefill http://127.0.0.1:8082
             --decode http://127.0.0.1:8083 --decode http://127.0.0.1:8084
             --host 127.0.0.1 --port 8090 --intra-node-data-parallel-size 1""",
        {
            "prefill": ["http://127.0.0.1:8081", "http://127.0.0.1:8082"],
            "decode": ["http://127.0.0.1:8083", "http://127.0.0.1:8084"],
            "session_header": "x-session-id",
            "port": 8090,
            **CACHED,
        },
    ),
    Published(
        "vllm-project/router, README.md: Mooncake",
        "vllm-router",
        """cargo run --release -- --policy consistent_hash --vllm-pd-disaggregation
             --kv-connector mooncake --prefill http://127.0.0.1:8081
             --decode http://127.0.0.1:8083 --host 127.0.0.1 --port 8090""",
        {
            "prefill": ["http://127.0.0.1:8081"],
            "decode": ["http://127.0.0.1:8083"],
            "session_header": "x-session-id",
            "disagg_connector_type": "mooncake",
            "port": 8090,
            **CACHED,
        },
    ),
    Published(
        "vllm-project/router, README.md: metrics, retries, circuit breakers",
        "vllm-router",
        """vllm-router --worker-urls http://localhost:8080 http://localhost:8081
             --prometheus-host 0.0.0.0 --prometheus-port 9000 --retry-max-retries 3
             --retry-initial-backoff-ms 100 --cb-failure-threshold 5
             --cb-timeout-duration-secs 30 --request-id-headers x-trace-id x-request-id""",
        {
            "decode": LOCAL,
            "admin_host": "0.0.0.0",
            "admin_port": 9000,
            "outlier_consecutive_failures": 5,
            "outlier_ejection_time": 30,
        },
        ("--request-id-headers",),
    ),
    Published(
        "vllm-project/router, README.md: Kubernetes",
        "vllm-router",
        """vllm-router --service-discovery --selector app=vllm-worker role=inference
             --service-discovery-namespace default""",
        {
            "k8s_decode_selector": "app=vllm-worker,role=inference",
            "k8s_namespace": "default",
            "k8s_port": 80,
        },
    ),
    Published(
        "vllm-project/router, docs/cli_reference.md",
        "vllm-router",
        """vllm-router --vllm-pd-disaggregation --prefill http://prefill-1:8000 9000
             --prefill http://prefill-2:8000 none --decode http://decode-1:8001
             --decode http://decode-2:8001 --prefill-policy cache_aware
             --decode-policy power_of_two""",
        {
            "prefill": ["http://prefill-1:8000", "http://prefill-2:8000"],
            "decode": ["http://decode-1:8001", "http://decode-2:8001"],
            "prefill_load_balancing_strategy": "shortest_expected_delay",
            "decode_load_balancing_strategy": "shortest_expected_delay",
        },
    ),
    Published(
        "lightseekorg/smg, README.md",
        "smg",
        "smg --worker-urls http://gpu1:8000 http://gpu2:8000 --policy cache_aware --log-json",
        {"decode": ["http://gpu1:8000", "http://gpu2:8000"], "log_format": "json", **CACHED},
    ),
    Published(
        "lightseekorg/smg, README.md: high availability",
        "smg",
        "smg --worker-urls http://gpu1:8000 --ha-mesh --seeds 10.0.0.2:30001,10.0.0.3:30001",
        {"decode": ["http://gpu1:8000"]},
        ("--ha-mesh", "--seeds"),
    ),
    Published(
        "lightseekorg/smg, docs/getting-started/pd-disaggregation.md",
        "smg",
        """smg --pd-disaggregation --prefill http://prefill:8000 9001
             --decode http://decode:8001 --prefill-max-inflight-requests-per-worker 32
             --prefill-queue-size 32 --prefill-queue-timeout-secs 30
             --host 0.0.0.0 --port 30000""",
        {"prefill": ["http://prefill:8000"], "decode": ["http://decode:8001"], "host": "0.0.0.0"},
        (
            "--prefill-max-inflight-requests-per-worker",
            "--prefill-queue-size",
            "--prefill-queue-timeout-secs",
        ),
    ),
    Published(
        "lightseekorg/smg, docs/getting-started/service-discovery.md",
        "smg",
        """smg --service-discovery --pd-disaggregation
             --prefill-selector "app=sglang,role=prefill"
             --decode-selector "app=sglang,role=decode"
             --service-discovery-namespace inference""",
        {
            "k8s_prefill_selector": "app=sglang,role=prefill",
            "k8s_decode_selector": "app=sglang,role=decode",
            "k8s_namespace": "inference",
            "k8s_port": 80,
        },
    ),
    Published(
        "vllm-project/production-stack, src/vllm_router/README.md",
        "production-stack",
        """vllm-router --port 8000 --service-discovery static
             --static-backends "http://localhost:9001,http://localhost:9002"
             --static-models "facebook/opt-125m,meta-llama/Llama-3.1-8B-Instruct"
             --static-aliases "gpt4:meta-llama/Llama-3.1-8B-Instruct"
             --static-model-types "chat,chat" --static-backend-health-checks
             --engine-stats-interval 10 --log-stats --routing-logic roundrobin""",
        {
            "port": 8000,
            "decode": ["http://localhost:9001", "http://localhost:9002"],
            "model_aliases": ["gpt4=meta-llama/Llama-3.1-8B-Instruct"],
            "load_balancing_strategy": "round_robin",
        },
    ),
    Published(
        "vllm-project/production-stack, examples/disaggregated_prefill/router.sh",
        "production-stack",
        """python3 -m vllm_router.app --port "$1" --service-discovery static
             --static-backends "http://localhost:8100,http://localhost:8200"
             --static-model-labels "llama-prefill,llama-decode"
             --prefill-model-labels "llama-prefill" --decode-model-labels "llama-decode"
             --routing-logic disaggregated_prefill""",
        {
            "prefill": ["http://localhost:8100"],
            "decode": ["http://localhost:8200"],
            "disagg_connector_type": "store",
            **CACHED,
        },
        ("--port",),
    ),
    Published(
        "vllm-project/production-stack, examples/disaggregated_prefill_orchestrated",
        "production-stack",
        """python -m vllm_router.app --host=0.0.0.0 --port=8000
             --routing-logic=disaggregated_prefill_orchestrated --service-discovery=k8s
             --k8s-namespace=default --k8s-port=8000
             --k8s-label-selector="app in (prefill,decode)" --prefill-model-labels=prefill
             --decode-model-labels=decode --log-level=debug --log-stats""",
        {
            "host": "0.0.0.0",
            "port": 8000,
            "k8s_prefill_selector": "app in (prefill,decode),model in (prefill)",
            "k8s_decode_selector": "app in (prefill,decode),model in (decode)",
            "k8s_namespace": "default",
            "k8s_port": 8000,
            "disagg_connector_type": "nixl",
            "log_level": "debug",
            **CACHED,
        },
    ),
)

DECODE_PODS = "llm-d.ai/role in (decode,prefill-decode,both,encode-prefill-decode)"

FILES = (
    Published(
        "lightseekorg/smg, docs/getting-started/service-discovery.md: deployment",
        "smg",
        """
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: smg
          image: ghcr.io/lightseekorg/smg:latest
          args:
            - --service-discovery
            - --selector=app=sglang-worker
            - --service-discovery-namespace=inference
            - --service-discovery-port=8000
            - --policy=cache_aware
            - --log-json
""",
        {
            "k8s_decode_selector": "app=sglang-worker",
            "k8s_namespace": "inference",
            "k8s_port": 8000,
            "log_format": "json",
            **CACHED,
        },
    ),
    Published(
        "vllm-project/production-stack, disaggregated_prefill_orchestrated/router-deploy.yaml",
        "production-stack",
        """
kind: Pod
spec:
  containers:
    - command: ["/bin/bash", "-c"]
      args:
        - |
          python -m vllm_router.app \\
            --port=8000 \\
            --routing-logic=disaggregated_prefill_orchestrated \\
            --k8s-label-selector="app in (prefill,decode)" \\
            --prefill-model-labels=prefill \\
            --decode-model-labels=decode
""",
        {
            "port": 8000,
            "k8s_prefill_selector": "app in (prefill,decode),model in (prefill)",
            "k8s_decode_selector": "app in (prefill,decode),model in (decode)",
            "disagg_connector_type": "nixl",
            **CACHED,
        },
    ),
    Published(
        "vllm-project/production-stack, src/vllm_router/README.md: dynamic configuration",
        "production-stack",
        """
service_discovery: static
routing_logic: roundrobin
callbacks: module.custom.callback_handler
static_models:
    facebook/opt-125m:
        static_backends:
            - http://localhost:9001
            - http://localhost:9003
        static_model_type: completion
static_aliases:
    "my-alias": "facebook/opt-125m"
""",
        {
            "decode": ["http://localhost:9001", "http://localhost:9003"],
            "model_aliases": ["my-alias=facebook/opt-125m"],
            "load_balancing_strategy": "round_robin",
        },
        ("--callbacks",),
    ),
    Published(
        "llm-d/llm-d-inference-scheduler, deploy/config/pd-epp-config.yaml",
        "llm-d",
        """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-scorer
  parameters:
    maxPrefixBlocksToMatch: 256
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters:
    nonCachedTokens: 16
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: prefix-based-pd-decider
""",
        {
            "k8s_prefill_selector": "llm-d.ai/role in (prefill,encode-prefill)",
            "k8s_decode_selector": DECODE_PODS,
            "routing_threshold": 16,
            "threshold_on": "uncached",
            "prefix_cache": "history",
            "epp_port": 9002,
        },
    ),
    Published(
        "llm-d/llm-d-inference-scheduler, deploy/config/epp-precise-prefix-cache-config.yaml",
        "llm-d",
        """
kind: EndpointPickerConfig
plugins:
  - type: token-producer
    parameters:
      modelName: hf-repo/model-name
  - type: single-profile-handler
  - type: precise-prefix-cache-scorer
    parameters:
      tokenProcessorConfig:
        blockSize: 64
  - type: kv-cache-utilization-scorer
""",
        {"k8s_decode_selector": DECODE_PODS, "prefix_cache": "events", "epp_port": 9002},
    ),
    Published(
        "BerriAI/litellm-docs, docs/providers/vllm.md and docs/proxy/config_settings.md",
        "litellm",
        """
model_list:
  - model_name: my-model
    litellm_params:
      model: hosted_vllm/facebook/opt-125m
      api_base: https://hosted-vllm-api.co
  - model_name: my-gemini-model
    litellm_params:
      model: gemini/gemini-2.5-flash
      api_key: os.environ/GEMINI_API_KEY
router_settings:
  routing_strategy: simple-shuffle
  model_group_alias: {"gpt-4": "my-model"}
  num_retries: 2
  timeout: 30
  allowed_fails: 3
  cooldown_time: 30
  redis_host: redis.example.com
general_settings:
  master_key: sk-1234
""",
        {
            "decode": ["https://hosted-vllm-api.co"],
            "model_aliases": ["my-model=facebook/opt-125m", "gpt-4=facebook/opt-125m"],
            "retries_on_5xx": 2,
            "first_byte_timeout": 30,
            "outlier_consecutive_failures": 3,
            "outlier_ejection_time": 30,
            **CACHED,
        },
        ("provider", "router_settings.redis_host", "general_settings.master_key"),
    ),
    Published(
        "vllm-project/vllm, docs/deployment/nginx.md",
        "nginx",
        """
    upstream backend {
        least_conn;
        server vllm0:8000 max_fails=3 fail_timeout=10000s;
        server vllm1:8000 max_fails=3 fail_timeout=10000s;
    }
    server {
        listen 80;
        location / {
            proxy_pass http://backend;
            proxy_set_header Host $host;
        }
    }
""",
        {
            "decode": ["http://vllm0:8000", "http://vllm1:8000"],
            "outlier_consecutive_failures": 3,
            "outlier_ejection_time": 10000,
            **CACHED,
        },
    ),
)
