"""Every setting: one field each, with its default, unit and reason, by subject.

The order is that of --help and docs/settings.md. What follows from several settings is a property.
"""

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from router.core import retry
from router.core.fleet import probing
from router.core.limits import budgets
from router.core.urls import origin
from router.core.values import TransferTarget
from router.settings.engine_values import (
    DnsNames,
    EnginesFile,
    KVEventSources,
    LimitByEngine,
    Namespace,
    PodPorts,
    PortByEngine,
    Receiver,
    Registry,
    Selector,
    Urls,
)
from router.settings.values import (
    ALL,
    Bind,
    Certificates,
    ExistingFile,
    HeaderName,
    ImageTokens,
    Impact,
    Key,
    Keys,
    ListeningPort,
    ModelAliases,
    Networks,
    Origins,
    PathPrefix,
    Ports,
    Seconds,
    SecondsOrZero,
    Share,
    SocketPath,
    Strategy,
    Text,
    Threshold,
    TracesUrl,
    UniqueList,
    Whole,
    Workers,
)

__all__ = ["ENV_PREFIX", "Settings", "flag", "is_advanced", "is_reloadable"]

ENV_PREFIX = "PD_ROUTER_"

HANDSHAKE_PORT, NOTIFY_PORT = 6301, 61005
"""MoRIIO's defaults (moriio_common.py)."""

BOOTSTRAP_PORT = 8998
"""vLLM's default."""


def live(default: Any, description: str, *, advanced: bool = False, **limits: Any) -> Any:
    """A setting that takes effect while the router runs. `advanced`: the default suits nearly all;
    its description says when it does not. `limits` are those of pydantic's Field."""
    extra: JsonDict = {"reloadable": True, "advanced": advanced}
    return Field(default, description=description, json_schema_extra=extra, **limits)


def fixed(default: Any, description: str, *, advanced: bool = False, **limits: Any) -> Any:
    """A setting that needs a restart; otherwise as `live`."""
    extra: JsonDict = {"reloadable": False, "advanced": advanced}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Settings(BaseSettings):
    """The router's configuration, frozen once it is read."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    # Where the router listens, and how it runs there.
    host: Text = fixed("0.0.0.0", "Address to listen on; :: for IPv4 and IPv6.")
    port: ListeningPort = fixed(8000, "Port to listen on; 0 takes a free one.")
    path_prefix: PathPrefix = fixed(
        "",
        "Path below which all routes of --port are served too (/llm/v1/models): for an ingress "
        "that does not remove it. Probes need none.",
    )
    admin_host: Text | None = fixed(None, "Address of the admin listener; default: that of --host.")
    admin_port: ListeningPort | None = fixed(
        None,
        "Port for operators: /metrics, /endpoints and /docs are served there instead of on --port; "
        "0 takes a free one. By default clients can read them.",
    )
    tls_cert_file: ExistingFile | None = fixed(
        None,
        "Certificate (PEM, with those of the CAs between) that clients see: they speak HTTPS then, "
        "TLS 1.2 or newer. It and the other files are read again within seconds when they change.",
    )
    tls_key_file: ExistingFile | None = fixed(
        None, "The key (PEM, not encrypted) of --tls-cert-file."
    )
    tls_client_ca_file: Certificates | None = fixed(
        None,
        "CA certificates (PEM): clients need a certificate of one of them (mutual TLS), for "
        "/health and /ready too: let a platform probe the admin listener.",
    )
    admin_tls_cert_file: ExistingFile | None = fixed(
        None, "As --tls-cert-file, for the admin listener."
    )
    admin_tls_key_file: ExistingFile | None = fixed(
        None, "As --tls-key-file, for the admin listener."
    )
    admin_tls_client_ca_file: Certificates | None = fixed(
        None, "As --tls-client-ca-file, for the admin listener."
    )
    takeover: SocketPath | None = fixed(
        None,
        "Unix socket by which a newer router takes over: started with the same path it gets the "
        "listening sockets of the running one, which then finishes its requests and exits. See "
        "docs/change.md.",
    )
    cors_allow_origin: Origins = live(
        (),
        "Origins (https://app.example.com) whose web pages may call the API, or * for all; repeat "
        "the flag or give a comma list. By default browsers allow none.",
    )
    workers: Workers = fixed(
        1, "Processes that share the port and their knowledge of the engines; auto: one per core."
    )

    # Which engines there are: named, or found by a discovery source.
    prefill: Urls = live(
        (),
        "Prefill engine URL; repeat the flag or give a comma list. Without one every request goes "
        "straight to a decode engine: a plain pool of whole engines.",
    )
    decode: Urls = live(
        (),
        "Decode engine URL; repeat the flag or give a comma list. At least one, unless engines are "
        "discovered.",
    )
    encode: Urls = live(
        (),
        "Encode engine URL (vLLM's --ec-transfer-config as producer); repeat the flag or give a "
        "comma list. It encodes the images, recordings and videos of chats for the other engines.",
    )
    data_parallel_ranks: Literal["auto", "off"] = fixed(
        "auto",
        "auto: each data-parallel rank of an engine (vLLM's --data-parallel-size) is an endpoint "
        "of its own, found by its /metrics and asked by X-data-parallel-rank (vLLM 0.13 or newer; "
        "not with LMCache and MoRIIO). off: the engine divides requests among its ranks.",
    )
    topology: Literal["prefer", "strict"] = fixed(
        "prefer",
        "prefer: KV caches go to another zone if that is worth the longer transfer, as measured. "
        "strict: they never leave their zone. Zones come from the engines file or from pods.",
    )
    engines_file: EnginesFile | None = fixed(
        None,
        'JSON file that lists engines, as {"prefill": [URL], "decode": [URL]}; it is checked every '
        "second, and its engines join and leave while the router runs.",
    )
    engine_networks: Networks = fixed(
        (),
        "Networks (10.0.0.0/8, fd00::/8) to which engines from --engines-file, discovery and the "
        "admin API are restricted. They must be given by address, because a name may come to mean "
        "another one. Repeat the flag or give a comma list; default: anywhere. Not for --prefill, "
        "--decode and --encode.",
    )
    engine_leave_timeout: Seconds = fixed(
        600.0,
        "Seconds after which a removed engine is forgotten although it still has requests; they "
        "continue. The default is how long an answer may take to begin.",
        advanced=True,
    )
    k8s_prefill_selector: Selector | None = fixed(
        None,
        "Kubernetes: label selector of the prefill engines' pods, as app=vllm,role=prefill. "
        "docs/discovery.md says what happens when pods come and go.",
    )
    k8s_decode_selector: Selector | None = fixed(
        None, "Kubernetes: label selector of the decode engines' pods."
    )
    k8s_encode_selector: Selector | None = fixed(
        None, "Kubernetes: label selector of the encode engines' pods."
    )
    k8s_namespace: Namespace | None = fixed(
        None,
        "Kubernetes: the engines' namespace; default: that of the router's pod, or of the "
        "kubeconfig file.",
    )
    k8s_port: PodPorts = fixed(
        (8000,),
        "Kubernetes: the port on which engines listen, a number or the name of a container's port; "
        "with several each is an engine of its own.",
    )
    k8s_config_file: ExistingFile | None = fixed(
        None,
        "Kubernetes: a kubeconfig file; default: the ServiceAccount of the router's pod, or where "
        "there is none the file that kubectl uses.",
    )
    dns_prefill: DnsNames = fixed(
        (),
        "DNS name of the prefill engines: host:port, each address being an engine, or "
        "_http._tcp.host for SRV records; repeat the flag or give a comma list.",
    )
    dns_decode: DnsNames = fixed((), "DNS name of the decode engines, likewise.")
    dns_encode: DnsNames = fixed((), "DNS name of the encode engines, likewise.")

    # How a request is routed: direct or remote prefill, and to which engine.
    routing_threshold: Threshold = live(
        "auto",
        "auto: each prompt takes the mode, direct or remote prefill, in which its first token is "
        "expected sooner, by the speed and load of both engines and the cost of transfers. A "
        "number: requests of at least this many estimated input tokens are prefilled remotely; 0 "
        "means always, which keeps prompts from delaying streams and makes short ones wait for a "
        "transfer.",
    )
    max_itl_impact: Impact = live(
        2.0,
        "With --routing-threshold auto: by how much, as a share, prompts that a decode engine "
        "computes itself may lengthen the gaps between its streams' tokens; 1 is twice as long. "
        "Beyond it prompts are prefilled remotely even if that takes longer. The default bounds "
        "what streams lose when prefill engines are overloaded.",
        advanced=True,
    )
    threshold_on: Literal["prompt", "uncached"] = live(
        "prompt",
        "What the threshold is compared with: the whole prompt, or the part of it that the chosen "
        "decode engine would have to compute because its prefix cache does not hold it (uncached; "
        "not with --prefix-cache off).",
    )
    model_aliases: ModelAliases = live(
        (),
        "A further name of a model, or of several by weight: NAME=MODEL[*WEIGHT] [MODEL*WEIGHT] "
        "[by HEADER] [else MODEL]; repeat the flag, give a comma list, or in YAML a mapping. See "
        "docs/models.md.",
    )
    image_tokens: ImageTokens = live(
        {},
        "How many tokens a model's images have, if not one per 28x28 pixels: JSON (or @FILE) from "
        'model to a number for any image or the pixels of a token, as {"a": 256, "b": "32x32"}.',
        advanced=True,
    )
    load_balancing_strategy: Strategy = live(
        "shortest_expected_delay",
        "How engines are chosen: shortest_expected_delay, which knows how fast each engine really "
        "is, least_loaded or round_robin.",
    )
    prefill_load_balancing_strategy: Strategy | None = live(
        None, "The strategy for prefill engines, if it differs."
    )
    decode_load_balancing_strategy: Strategy | None = live(
        None, "The strategy for decode engines, if it differs."
    )
    prefix_cache: Literal["off", "history", "events"] = fixed(
        "history",
        "How shortest_expected_delay learns which prompt tokens are in an engine's prefix cache "
        "and need not be computed again: history (what this router sent where), events (what the "
        "engines announce; history for those that announce nothing), or off. With --kv-events it "
        "is events by default.",
    )
    session_header: HeaderName = live(
        "none",
        "Header whose value names a session, such as x-session-id: its requests stay on their "
        "engine while that is up, neither slow nor full, and has hardly more requests than others.",
    )
    stored_responses: Literal["off", "on"] = live(
        "off",
        "on: a request with `previous_response_id` goes to the engine that has that response, and "
        "so do GET /v1/responses/ID and its cancellation. Engines need "
        "VLLM_ENABLE_RESPONSES_API_STORE=1, and get a `request_id` in requests of /v1/responses.",
    )
    kv_events: KVEventSources = fixed(
        None,
        "Where engines publish their KV-cache events (vLLM's --kv-events-config); --prefix-cache "
        "is events then. JSON (or @FILE) from engine URL to endpoint (tcp://host:5557), "
        "replay_endpoint and topic, or to a list of these for data-parallel ranks; auto: each "
        "engine is asked at /kv_event_sources, as with --prefix-cache events alone.",
    )
    engine_max_num_seqs: LimitByEngine = fixed(
        {},
        "Sequences that a decode engine runs concurrently, vLLM's --max-num-seqs: a number for "
        "all, or JSON (or @FILE) from decode URL (or *) to number. By default it is learned while "
        "requests queue; an engine's KV cache may hold fewer.",
        advanced=True,
    )

    # When engines get no new requests, and how they return.
    stall_timeout: SecondsOrZero = live(
        2.0,
        "Seconds without a token, on an engine with open streams, after which it gets no new "
        "requests until it produces tokens again; 0: never. At least 20 times its gap between "
        "tokens, and three minutes for the first token since its start.",
    )
    outlier_consecutive_failures: Whole = live(
        5,
        "Failures in a row (5xx, broken or refused connections, time-outs) that eject an engine; 0 "
        "switches ejection off.",
        ge=0,
        advanced=True,
    )
    outlier_ejection_time: Seconds = live(
        30.0,
        "Seconds of an engine's first ejection; each further one is that much longer, up to 300 s.",
        advanced=True,
    )
    retry_budget: Share = live(
        budgets.RETRY_SHARE,
        "Retries per request, 0 to 1, in the long run: when engines fail, the others get at most "
        "that much extra load. A burst of 1000 and 10 a second are always allowed.",
        advanced=True,
    )
    retries_on_5xx: Whole = live(
        retry.RETRIES_ON_5XX,
        "Further engines that are asked, before the client's first byte, for a request to which an "
        "engine answered 500, 502 or 504; 0: the client gets that answer.",
        ge=0,
        le=retry.ATTEMPTS - 1,
        advanced=True,
    )
    request_deadlines: Literal["off", "on"] = live(
        "off",
        "on: clients may set `x-slo-ttft-ms`, so that a request whose first token is expected "
        "later on every engine is refused at once with 503, and `x-request-timeout`, the seconds "
        "after which it ends with 504. off: these headers mean nothing.",
    )
    stream_continuation: Literal["off", "auto", "on"] = live(
        "auto",
        "auto: while all decode engines report vLLM 0.32 or later, a stream of /v1/completions or "
        "/v1/chat/completions goes on with another engine when its own fails behind the first "
        "token or stays four times slower than the others, and the client sees one answer. "
        "on: also if a version is not known. "
        "docs/continuation.md says what is not continued.",
    )
    uncontinued_models: UniqueList[str] = live(
        (),
        "Models whose streams never go on with another engine: those whose generation_config.json "
        "sets penalties or max_new_tokens, which the next engine would count anew.",
        advanced=True,
    )
    max_excluded_percent: Whole = live(
        50,
        "Percentage of a pool that may be excluded as stalled or ejected at a time; if more are, "
        "all engines are used (panic).",
        ge=0,
        le=100,
        advanced=True,
    )
    slow_start: SecondsOrZero = live(
        5.0,
        "Seconds in which an engine that joins or comes back reaches its full share; 0: at once.",
        advanced=True,
    )
    speed_probe_interval: SecondsOrZero = fixed(
        probing.SPEED_PROBE_SECONDS,
        "Seconds between the router's own probes of an engine that gets no users' requests, "
        "because it has stalled or, under shortest_expected_delay, is slow: a generation of 8 "
        "tokens, on prefill engines and where prompts were slow a prompt of 2048; 0: none.",
        advanced=True,
    )

    # The engines' KV connector.
    disagg_connector_type: Literal["nixl", "mooncake", "moriio", "lmcache", "store"] = fixed(
        "nixl",
        "The engines' KV connector: nixl (NixlConnector), mooncake (MooncakeConnector), moriio "
        "(MoRIIOConnector), lmcache (LMCacheConnectorV1), or store (any connector to a store that "
        "all engines share).",
    )
    mooncake_bootstrap_port: PortByEngine = live(
        {ALL: BOOTSTRAP_PORT},
        "Mooncake: the port of each prefill engine's bootstrap server on the host of its URL, "
        "VLLM_MOONCAKE_BOOTSTRAP_PORT there: a number for all, or JSON (or @FILE) from prefill URL "
        "(or *) to number.",
    )
    moriio_handshake_port: PortByEngine = live(
        {ALL: HANDSHAKE_PORT},
        "MoRIIO: the handshake_port of each decode engine on the host of its URL: a number for "
        "all, or JSON (or @FILE) from decode URL (or *) to number.",
    )
    moriio_notify_port: PortByEngine = live({ALL: NOTIFY_PORT}, "MoRIIO: the same for notify_port.")
    decoder_host: Text | None = fixed(
        None, "LMCache, one decode engine: the host on which it receives KV caches."
    )
    decoder_init_port: Ports = fixed(
        (),
        "LMCache, one decode engine: its init ports, a comma list of one per tensor-parallel rank.",
    )
    decoder_alloc_port: Ports = fixed(
        (),
        "LMCache, one decode engine: its alloc ports, a comma list of one per tensor-parallel "
        "rank.",
    )
    decoder_registry: Registry | None = live(
        None,
        "LMCache, several decode engines: JSON (or @FILE) from decode URL to receiver_host, "
        "receiver_init_port and receiver_alloc_port. Every decode URL must be in it.",
    )
    lmcache_notify_bind: Bind | None = fixed(
        None,
        "LMCache: listen here (tcp://0.0.0.0:7500) for KV-ready notifications and decode only "
        "after them. Leave it out only where engines run with pd_skip_proxy_notification, which "
        "docs/connectors.md warns of.",
    )
    lmcache_notify_timeout: Seconds = fixed(
        10.0,
        "LMCache: seconds to wait for those notifications; then the decode engine computes the "
        "prompt itself.",
    )

    # How engines are probed and scraped, and as whom the router asks them.
    engine_stats_interval: Seconds = fixed(
        probing.SCRAPE_SECONDS,
        "Seconds between scrapes of each engine's /metrics. Own requests are counted exactly; "
        "scrapes add those of others, queues, and tokens that a parser holds back. Each takes 2.5 "
        "ms of the engine's API server.",
        advanced=True,
    )
    health_check_interval: Seconds = fixed(
        probing.HEALTH_SECONDS,
        "Seconds between probes of each engine's /health; an engine that is not up is probed every "
        "second.",
        advanced=True,
    )
    health_check_timeout: Seconds = fixed(
        2.0,
        "Seconds that a probe or scrape may take. /health of a busy vLLM may take longer: "
        "time-outs do not count against an engine that produces tokens.",
        advanced=True,
    )
    engine_api_key: Key | None = fixed(
        None,
        "Sent to engines as the bearer token, in place of the client's. Set it by the environment "
        "or --config: all users of a host can see the flag until the router, within a second of "
        "its start, has re-executed itself without it.",
        repr=False,
    )
    engine_ca_file: Certificates | None = fixed(
        None,
        "CA certificates (PEM) for https engines; default: the system's. Read again within seconds "
        "when it changes, like the next two.",
    )
    engine_cert_file: ExistingFile | None = fixed(
        None, "Certificate (PEM) that the router shows to https engines which ask for one."
    )
    engine_key_file: ExistingFile | None = fixed(
        None, "The key (PEM, not encrypted) of --engine-cert-file."
    )

    # Which peers are trusted: clients with keys, other replicas, gateways.
    api_key_file: Keys | None = live(
        None,
        "File of API keys, a line `NAME KEY` (or `NAME sha256:HEX`) for each: clients need one of "
        "them. Limits may follow the key: requests=N and tokens=N (per minute), streams=N "
        "(concurrent). It is read again within seconds when it changes; names appear in logs and "
        "metrics, keys nowhere.",
    )
    admin_key_file: Keys | None = live(
        None,
        "The same for the admin listener (--admin-port), except for /health, /ready and /version; "
        "it has no limits.",
    )
    peers: Urls = fixed(
        (),
        "URLs of the admin listeners of all replicas of this router, itself included or not: each "
        "reports its requests to the others as they change, so that they rarely choose the same "
        "engine at once, and which prompts it has sent where. Needs --admin-port; docs/replicas.md "
        "says how many replicas to run.",
    )
    dns_peers: DnsNames = fixed(
        (),
        "DNS name of the same, as host:port of a headless service's admin port; needs the extra "
        "`dns`.",
    )
    peer_key: Key | None = fixed(
        None,
        "The bearer token between replicas, the same for all; it authorizes nothing else. The "
        "replicas' common hash seed is derived from it; without one they cannot report prompts to "
        "each other. Required with --admin-key-file. As a flag it is as visible as "
        "--engine-api-key.",
        repr=False,
    )
    epp_port: ListeningPort | None = fixed(
        None,
        "Port of an endpoint picker for Envoy (gRPC, external processing), beside the router "
        "itself; needs the extra `epp`. `pd-router epp` takes 9002. docs/gateway.md.",
    )
    direct_mode: Literal["off", "on"] = fixed(
        "off",
        "on: behind a gateway that chooses engines itself (Gateway API Inference Extension), its "
        "headers x-gateway-destination-endpoint and x-prefiller-host-port say where requests go; "
        "docs/gateway.md.",
    )
    trusted_gateways: Networks = live(
        ("127.0.0.0/8", "::1/128"),
        "Networks of the gateways whose headers --direct-mode trusts; a comma list like "
        "10.1.0.0/16. Headers of others are ignored.",
    )
    engine_header: Literal["off", "on"] = live(
        "off",
        "on: answers carry x-pd-router-endpoint, the URL of the engine that gave them, for load "
        "tests. It shows clients your addresses.",
    )

    # How long the router waits for engines and clients.
    connect_timeout: Seconds = live(
        5.0,
        "Seconds for a connection to an engine; a lost SYN is resent after 1 s and 3 s.",
        advanced=True,
    )
    prefill_timeout: Seconds = live(
        120.0,
        "Seconds for a prefill engine's whole reply; then another one is tried. Long prompts queue "
        "there. Also for an encode engine's reply, which has 30 s at most.",
    )
    first_byte_timeout: Seconds = live(
        600.0,
        "Seconds to the first byte of an answer; for a stream, to its first content. A unary "
        "answer has none before all its tokens are generated.",
    )
    stream_idle_timeout: Seconds = live(
        120.0,
        "Seconds of silence that end a stream with an error event; comments, which keep "
        "connections alive, are silence. A first CUDA graph capture takes up to a minute.",
    )
    sse_keep_alive: SecondsOrZero = live(
        10.0,
        "Seconds without a byte after which the client of a stream that has no content yet is sent "
        "a comment. The head, 200, goes before it: a later failure is an error event. Proxies, "
        "browsers and agents give up on silence, many after 60 s. 0: never.",
    )
    body_timeout: Seconds = live(
        60.0,
        "Seconds for a request's body to arrive; the largest, 64 MiB, needs 10 Mbit/s.",
        advanced=True,
    )
    client_stall_timeout: Seconds = live(
        300.0,
        "Seconds after which a client that reads nothing is disconnected (at most twice that), "
        "because it holds a slot of its engine.",
        advanced=True,
    )
    shutdown_grace: SecondsOrZero = live(
        30.0,
        "Seconds that streams get to finish after SIGTERM; then, or at a second SIGTERM, they end "
        "with an error event. Kubernetes kills after terminationGracePeriodSeconds: keep that "
        "longer.",
    )

    # What the router holds at a time: bodies, requests, connections.
    max_body_bytes: Whole = live(
        64 << 20,
        "Largest request body in bytes; it is held in memory while it is routed. Routes that take "
        "only text have lower limits of their own.",
        ge=1024,
    )
    max_buffered_bytes: Whole = live(
        256 << 20,
        "Bytes of request bodies held at a time, over all connections; further ones get 503. A "
        "body is held until its answer begins (a unary one: until it ends); with its prefill "
        "request it takes up to three times its size, with its encode request four. Those of "
        "streams that may be continued are held until their end, in at most half of these bytes. "
        "Answers that are read whole may take as many again.",
        ge=1024,
    )
    max_in_flight: Whole | None = live(
        None,
        "Requests that are served at a time; further ones wait. By default there is no limit and "
        "no queue: engines queue.",
        ge=1,
    )
    max_in_flight_per_engine: Whole | None = live(
        None,
        "The same for each decode engine: a request waits while all engines that serve its model "
        "are at this limit. Use the engines' --max-num-seqs, or a little more.",
        ge=1,
    )
    queue_size: Whole = live(
        1000,
        "Requests that may wait when --max-in-flight or --max-in-flight-per-engine is reached, in "
        "all of --workers; beyond that the newest request of the tenant with the most waiting gets "
        "429.",
        ge=0,
    )
    queue_timeout: Seconds = live(
        30.0,
        "Seconds that a request may wait; then it gets 503. Clients that give up sooner leave the "
        "queue.",
    )
    tenant_header: HeaderName = live(
        "authorization",
        "Header whose value identifies a tenant: while requests wait, places are shared fairly "
        "among tenants. With --api-key-file a tenant is the key's name instead.",
    )
    queue_priority: HeaderName = live(
        "none",
        "Where a waiting request's priority comes from: none, body (`priority`, as in vLLM: lower "
        "goes first) or the name of a header. Clients can set both, and a higher one goes before "
        "all lower ones.",
    )
    max_idle_connections: Whole = live(
        512, "Idle connections kept per engine. The number in use is not limited.", ge=0
    )
    idle_connection_timeout: Seconds = live(
        4.0,
        "Seconds that an idle connection to an engine is kept; must stay below the engine's own "
        "limit, 5 s in vLLM (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).",
        advanced=True,
    )
    keep_alive_timeout: Seconds = live(
        75.0,
        "Seconds that an idle client connection is kept; longer than the 60 s of common load "
        "balancers, so that they close first.",
    )

    # Logs and traces.
    log_level: Literal["debug", "info", "warning", "error"] = live(
        "info", "What is logged: debug, info, warning or error. info holds one line per request."
    )
    decision_log_sample: Share = live(
        0.0,
        "Share of choices that are logged with every candidate's figures, 0 to 1; 0.001 explains "
        "choices without flooding the log.",
        advanced=True,
    )
    log_format: Literal["text", "json"] = fixed(
        "text", "How it is logged: text or json, one line each."
    )
    otlp_traces_endpoint: TracesUrl | None = fixed(
        None,
        "URL that takes traces by OTLP over HTTP, such as http://collector:4318/v1/traces; needs "
        "the extra `tracing`. By default nothing is traced.",
    )
    trace_sample: Share = fixed(
        1.0,
        "Share of requests that are traced, 0 to 1; for requests that a client traces, the client "
        "decides.",
    )

    @property
    def listening_admin_host(self) -> str:
        """Where the admin listener listens, if there is one."""
        return self.host if self.admin_host is None else self.admin_host

    @property
    def names_prefill(self) -> bool:
        """Whether there should be prefill engines. What an engines file or an operator names is not
        known here."""
        return bool(self.prefill or self.k8s_prefill_selector is not None or self.dns_prefill)

    @property
    def discovers(self) -> bool:
        """Whether engines come and go by a source that is watched."""
        sources = (self.engines_file, self.k8s_decode_selector)
        return any(each is not None for each in sources) or bool(self.dns_decode)

    @property
    def has_peers(self) -> bool:
        """Whether there are sibling replicas."""
        return bool(self.peers or self.dns_peers)

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts are reported to sibling replicas: only if prefix history is used."""
        return self.has_peers and self.prefix_cache != "off"

    @property
    def receivers(self) -> dict[str, Receiver]:
        """LMCache's receivers by decode URL; empty for other connectors."""
        if self.decoder_registry is not None:
            return self.decoder_registry
        if self.decoder_host is None:
            return {}
        one = Receiver(
            receiver_host=self.decoder_host,
            receiver_init_port=self.decoder_init_port,
            receiver_alloc_port=self.decoder_alloc_port,
        )
        return dict.fromkeys(self.decode, one)

    def max_num_seqs(self, url: str) -> int | None:
        """The stated number of sequences that a decode engine runs concurrently; None: learn it."""
        stated = self.engine_max_num_seqs
        return stated.get(url, stated.get(ALL))

    def bootstrap(self, url: str) -> str:
        """The URL of the bootstrap server of a prefill engine."""
        port = _port(self.mooncake_bootstrap_port, url, BOOTSTRAP_PORT)
        return replace(origin(url), port=port, tls=False, prefix="").url

    def target(self, url: str) -> TransferTarget:
        """Where a decode engine receives KV caches of MoRIIO."""
        return TransferTarget(
            origin(url).host,
            _port(self.moriio_handshake_port, url, HANDSHAKE_PORT),
            _port(self.moriio_notify_port, url, NOTIFY_PORT),
        )

    @model_validator(mode="before")
    @classmethod
    def _events_where_configured(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Sources of KV-cache events are named in order to be used."""
        if given.get("kv_events") is None or "prefix_cache" in given:
            return given
        return {**given, "prefix_cache": "events"}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only: `load` reads the flags, the environment and the file."""
        return (init_settings,)


def flag(name: str) -> str:
    """A setting's flag on the command line."""
    return "--" + name.replace("_", "-")


def is_reloadable(name: str) -> bool:
    """Whether a setting takes effect while the router runs."""
    return _is(name, "reloadable")


def is_advanced(name: str) -> bool:
    """Whether a setting is listed under "Advanced" in docs/settings.md."""
    return _is(name, "advanced")


def _is(name: str, mark: str) -> bool:
    extra = Settings.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and extra[mark] is True


def _port(by_engine: PortByEngine, url: str, default: int) -> int:
    return by_engine.get(url, by_engine.get(ALL, default))
