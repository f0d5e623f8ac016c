"""The settings: one field each, with its default, unit and reason."""

from typing import Final, Literal

from pydantic import Field, JsonValue
from pydantic_settings import BaseSettings, SettingsConfigDict

from router.core import probing
from router.settings.names import ENV_PREFIX
from router.settings.values import (
    ALL,
    Bind,
    Certificates,
    DnsNames,
    EnginesFile,
    ExistingFile,
    HeaderName,
    Impact,
    Key,
    Keys,
    KVEventSources,
    LimitByEngine,
    Namespace,
    Networks,
    Origins,
    PodPorts,
    Ports,
    Receiver,
    Registry,
    Seconds,
    SecondsOrZero,
    Selector,
    Share,
    SocketPath,
    Strategy,
    Text,
    Threshold,
    TracesUrl,
    Urls,
    Whole,
    Workers,
)

__all__ = ["Fields", "is_reloadable"]

LIVE: Final[dict[str, JsonValue]] = {"reloadable": True}
"""Marks a setting that takes effect while the router runs; any other one needs a restart."""


class Fields(BaseSettings):
    """Every setting, and what follows from them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    host: Text = Field("0.0.0.0", description="Address to listen on; :: for IPv6 too.")
    port: Whole = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    admin_host: Text | None = Field(
        None, description="Address of the admin listener; default: that of --host."
    )
    admin_port: Whole | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for operators: /metrics, /endpoints and /docs are there, and on --port "
        "no more; 0 takes a free one. By default clients can read them.",
    )
    tls_cert_file: ExistingFile | None = Field(
        None,
        description="Certificate (PEM, with those of the CAs between) that clients see: they speak "
        "HTTPS then, TLS 1.2 or newer. It and the other files are read again within seconds when "
        "they change.",
    )
    tls_key_file: ExistingFile | None = Field(
        None, description="The key (PEM, not encrypted) of --tls-cert-file."
    )
    tls_client_ca_file: Certificates | None = Field(
        None,
        description="CA certificates (PEM): clients need a certificate of one of them (mutual TLS)."
        " That goes for /health and /ready too: let a platform probe the admin listener.",
    )
    admin_tls_cert_file: ExistingFile | None = Field(
        None, description="As --tls-cert-file, for the admin listener."
    )
    admin_tls_key_file: ExistingFile | None = Field(
        None, description="As --tls-key-file, for the admin listener."
    )
    admin_tls_client_ca_file: Certificates | None = Field(
        None, description="As --tls-client-ca-file, for the admin listener."
    )
    takeover: SocketPath | None = Field(
        None,
        description="Unix socket by which a newer router takes over: started with the same path it "
        "gets the listening sockets of the one that runs, which then serves what it has and ends. "
        "docs/change.md says how.",
    )
    cors_allow_origin: Origins = Field(
        (),
        description="Origins (https://app.example.com) whose web pages may call the API, or * for "
        "all; repeat the flag or give a comma list. By default browsers let none.",
        json_schema_extra=LIVE,
    )
    workers: Workers = Field(
        1,
        description="Processes that share the port and what they know of the engines; auto: one "
        "per core.",
    )

    prefill: Urls = Field(
        (),
        description="Prefill engine URL; repeat the flag or give a comma list. Without one every "
        "request goes straight to a decode engine: a plain pool of whole engines.",
        json_schema_extra=LIVE,
    )
    decode: Urls = Field(
        (),
        description="Decode engine URL; repeat the flag or give a comma list. At least one, unless "
        "engines are discovered.",
        json_schema_extra=LIVE,
    )
    data_parallel_ranks: Literal["auto", "off"] = Field(
        "auto",
        description="auto: each data-parallel rank of an engine (vLLM's --data-parallel-size) is "
        "an endpoint of its own, found by its /metrics and asked by X-data-parallel-rank (vLLM "
        "0.13 or newer; not with LMCache). off: the engine divides requests among its ranks.",
    )
    engines_file: EnginesFile | None = Field(
        None,
        description='JSON file that names engines, as {"prefill": [URL], "decode": [URL]}; it is '
        "looked at every second, and what it names comes and goes while the router runs.",
    )
    engine_networks: Networks = Field(
        (),
        description="Networks (10.0.0.0/8, fd00::/8) in which engines must be that --engines-file, "
        "discovery or the admin API names, and by their address: a name may come to mean another "
        "one. Repeat the flag or give a comma list; default: anywhere. Not for --prefill and "
        "--decode.",
    )
    engine_leave_timeout: Seconds = Field(
        600.0,
        description="Seconds after which an engine that was removed is forgotten although requests "
        "are still there; they go on. As long as an answer may take to begin.",
    )
    k8s_prefill_selector: Selector | None = Field(
        None,
        description="Kubernetes: label selector of the prefill engines' pods, as app=vllm,"
        "role=prefill. docs/discovery.md says what becomes of pods that come and go.",
    )
    k8s_decode_selector: Selector | None = Field(
        None, description="Kubernetes: label selector of the decode engines' pods."
    )
    k8s_namespace: Namespace | None = Field(
        None,
        description="Kubernetes: the engines' namespace; default: that of the router's pod, or of "
        "the kubeconfig file.",
    )
    k8s_port: PodPorts = Field(
        (8000,),
        description="Kubernetes: the port on which engines listen, a number or the name of a "
        "container's port; with several each is an engine of its own.",
    )
    k8s_config_file: ExistingFile | None = Field(
        None,
        description="Kubernetes: a kubeconfig file; default: the ServiceAccount of the router's "
        "pod, or where there is none the file that kubectl uses.",
    )
    dns_prefill: DnsNames = Field(
        (),
        description="DNS name of the prefill engines: host:port, each address being an engine, or "
        "_http._tcp.host for SRV records; repeat the flag or give a comma list.",
    )
    dns_decode: DnsNames = Field((), description="DNS name of the decode engines, likewise.")

    routing_threshold: Threshold = Field(
        0,
        description="Requests of at least this many estimated input tokens are prefilled "
        "remotely; 0 means always. Below a few thousand tokens a KV transfer costs more than "
        "the prefill it saves. auto: where the first token is expected sooner, by the speed and "
        "load of both engines and what transfers take.",
        json_schema_extra=LIVE,
    )
    max_itl_impact: Impact = Field(
        2.0,
        description="With --routing-threshold auto: by how much, as a share, prompts that a decode "
        "engine computes itself may lengthen the gaps between its streams' tokens; 1 is twice as "
        "long. Beyond it prompts are prefilled remotely even if that takes longer. The default "
        "bounds what streams lose when prefill engines are overloaded.",
        json_schema_extra=LIVE,
    )
    threshold_on: Literal["prompt", "uncached"] = Field(
        "prompt",
        description="What the threshold is compared with: the whole prompt, or the part of it that "
        "the chosen decode engine would have to compute because its prefix cache does not hold it "
        "(uncached; not with --prefix-cache off).",
        json_schema_extra=LIVE,
    )
    load_balancing_strategy: Strategy = Field(
        "shortest_expected_delay",
        description="How engines are chosen: shortest_expected_delay, which knows how fast each "
        "engine really is, least_loaded or round_robin.",
        json_schema_extra=LIVE,
    )
    prefill_load_balancing_strategy: Strategy | None = Field(
        None,
        description="The strategy for prefill engines, if it differs.",
        json_schema_extra=LIVE,
    )
    decode_load_balancing_strategy: Strategy | None = Field(
        None,
        description="The strategy for decode engines, if it differs.",
        json_schema_extra=LIVE,
    )

    prefix_cache: Literal["off", "history", "events"] = Field(
        "history",
        description="How shortest_expected_delay knows what the engines' prefix caches hold, which "
        "need not be computed again: history (what this router sent where), events (what the "
        "engines themselves announce; history where they announce nothing), or off.",
    )
    kv_events: KVEventSources = Field(
        None,
        description="With --prefix-cache events: where engines publish their KV-cache events "
        "(vLLM's --kv-events-config). JSON (or @FILE) from engine URL to endpoint "
        "(tcp://host:5557), replay_endpoint and topic, or to a list of these for data-parallel "
        "ranks. Default, or auto: each engine is asked at /kv_event_sources.",
    )
    engine_max_num_seqs: LimitByEngine = Field(
        {},
        description="Sequences that a decode engine runs side by side, vLLM's --max-num-seqs: a "
        "number for all, or JSON (or @FILE) from decode URL (or *) to number. By default it is "
        "learned while requests queue; an engine's KV cache may hold fewer.",
    )
    stall_timeout: SecondsOrZero = Field(
        2.0,
        description="Seconds without a token, on an engine with open streams, after which it gets "
        "no new requests until it produces tokens again; 0: never. At least 20 times its gap "
        "between tokens.",
        json_schema_extra=LIVE,
    )
    outlier_consecutive_failures: Whole = Field(
        5,
        ge=0,
        description="Failures in a row (5xx, broken or refused connections, time-outs) that eject "
        "an engine; 0 switches ejection off.",
        json_schema_extra=LIVE,
    )
    outlier_ejection_time: Seconds = Field(
        30.0,
        description="Seconds of an engine's first ejection; each further one is as much longer, "
        "up to 300 s.",
        json_schema_extra=LIVE,
    )
    retry_budget: Share = Field(
        0.2,
        description="Retries per request, 0 to 1, in the long run: when engines fail, the others "
        "get no more than that on top. A thousand at once and 10 a second are always allowed.",
        json_schema_extra=LIVE,
    )
    max_excluded_percent: Whole = Field(
        50,
        ge=0,
        le=100,
        description="Share of a pool that may be stalled or ejected at a time; when more look so, "
        "all are used.",
        json_schema_extra=LIVE,
    )
    slow_start: SecondsOrZero = Field(
        5.0,
        description="Seconds in which an engine that joins or comes back reaches its full share; "
        "0: at once.",
        json_schema_extra=LIVE,
    )
    speed_probe_interval: SecondsOrZero = Field(
        probing.SPEED_PROBE_SECONDS,
        description="Seconds between the router's own generations of 8 tokens on an engine that "
        "gets no users' requests, because it has stalled or, under shortest_expected_delay, is "
        "slow; 0: none.",
    )

    disagg_connector_type: Literal["nixl", "lmcache"] = Field(
        "nixl",
        description="The engines' KV connector: nixl (NixlConnector) or lmcache "
        "(LMCacheConnectorV1).",
    )
    decoder_host: Text | None = Field(
        None, description="LMCache, one decode engine: the host on which it receives KV caches."
    )
    decoder_init_port: Ports = Field(
        (),
        description="LMCache, one decode engine: its init ports, a comma list of one per "
        "tensor-parallel rank.",
    )
    decoder_alloc_port: Ports = Field(
        (),
        description="LMCache, one decode engine: its alloc ports, a comma list of one per "
        "tensor-parallel rank.",
    )
    decoder_registry: Registry | None = Field(
        None,
        description="LMCache, several decode engines: JSON (or @FILE) from decode URL to "
        "receiver_host, receiver_init_port and receiver_alloc_port. Every decode URL must be in "
        "it.",
        json_schema_extra=LIVE,
    )
    lmcache_notify_bind: Bind | None = Field(
        None,
        description="LMCache: listen here (tcp://0.0.0.0:7500) for KV-ready notifications and "
        "decode only after them. Leave it out only where engines run with "
        "pd_skip_proxy_notification, which docs/connectors.md warns of.",
    )
    lmcache_notify_timeout: Seconds = Field(
        10.0,
        description="LMCache: seconds to wait for those notifications; then the decode engine "
        "computes the prompt itself.",
    )

    engine_stats_interval: Seconds = Field(
        probing.SCRAPE_SECONDS,
        description="Seconds between scrapes of each engine's /metrics. Own requests are counted "
        "exactly; scrapes only add what others put there.",
    )
    health_check_interval: Seconds = Field(
        probing.HEALTH_SECONDS,
        description="Seconds between probes of each engine's /health; an engine that is not up is "
        "probed every second.",
    )
    health_check_timeout: Seconds = Field(
        2.0,
        description="Seconds that a probe or scrape may take; /health answers in "
        "milliseconds even under load.",
    )
    engine_api_key: Key | None = Field(
        None,
        repr=False,
        description="Sent to engines as the bearer token, in place of the client's. Better given "
        "by the environment: other users can see a process's flags.",
    )
    engine_ca_file: Certificates | None = Field(
        None,
        description="CA certificates (PEM) for https engines; default: the system's. Read again "
        "within seconds when it changes, like the next two.",
    )
    engine_cert_file: ExistingFile | None = Field(
        None,
        description="Certificate (PEM) that the router shows to https engines which ask for one.",
    )
    engine_key_file: ExistingFile | None = Field(
        None, description="The key (PEM, not encrypted) of --engine-cert-file."
    )

    api_key_file: Keys | None = Field(
        None,
        description="File of API keys, a line `NAME KEY` (or `NAME sha256:HEX`) for each: clients "
        "need one of them. It is read again within seconds when it changes; names appear in logs "
        "and metrics, keys nowhere.",
        json_schema_extra=LIVE,
    )
    admin_key_file: Keys | None = Field(
        None,
        description="The same for the admin listener (--admin-port), except for /health, /ready "
        "and /version.",
        json_schema_extra=LIVE,
    )
    peers: Urls = Field(
        (),
        description="URLs of the admin listeners of all replicas of this router, itself included "
        "or not: each tells the others its requests ten times a second, so that they rarely meet "
        "on one engine. Needs --admin-port; docs/replicas.md says how many replicas to run.",
    )
    dns_peers: DnsNames = Field(
        (),
        description="DNS name of the same, as host:port of a headless service's admin port; needs "
        "the extra `dns`.",
    )
    peer_key: Key | None = Field(
        None,
        repr=False,
        description="Sent to and asked of other replicas as the bearer token, the same for all; it "
        "opens nothing else. Needed with --admin-key-file.",
    )
    epp_port: Whole | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of an endpoint picker for Envoy (gRPC, external processing), beside the "
        "router itself; needs the extra `epp`. `pd-router epp` takes 9002. docs/gateway.md.",
    )
    direct_mode: Literal["off", "on"] = Field(
        "off",
        description="on: behind a gateway that chooses engines itself (Gateway API Inference "
        "Extension), its headers x-gateway-destination-endpoint and x-prefiller-host-port say "
        "where requests go; docs/gateway.md.",
    )
    trusted_gateways: Networks = Field(
        ("127.0.0.0/8", "::1/128"),
        description="Networks of the gateways whose headers --direct-mode believes; a comma list "
        "like 10.1.0.0/16. Headers of others are ignored.",
        json_schema_extra=LIVE,
    )
    engine_header: Literal["off", "on"] = Field(
        "off",
        description="on: answers carry x-pd-router-endpoint, the URL of the engine that gave them, "
        "for load tests. It tells clients your addresses.",
        json_schema_extra=LIVE,
    )

    connect_timeout: Seconds = Field(
        5.0,
        description="Seconds for a connection to an engine; a lost SYN is resent after 1 s "
        "and 3 s.",
        json_schema_extra=LIVE,
    )
    prefill_timeout: Seconds = Field(
        120.0,
        description="Seconds for a prefill engine's whole reply; then another one is tried. Long "
        "prompts queue there.",
        json_schema_extra=LIVE,
    )
    first_byte_timeout: Seconds = Field(
        600.0,
        description="Seconds to the first byte of an answer. A unary answer has none before all "
        "its tokens are made.",
        json_schema_extra=LIVE,
    )
    stream_idle_timeout: Seconds = Field(
        120.0,
        description="Seconds of silence that end a stream with an error frame. A first CUDA graph "
        "capture takes up to a minute.",
        json_schema_extra=LIVE,
    )
    body_timeout: Seconds = Field(
        60.0,
        description="Seconds for a request's body to arrive: the largest, 64 MiB, does at "
        "10 Mbit/s.",
        json_schema_extra=LIVE,
    )
    client_stall_timeout: Seconds = Field(
        300.0,
        description="Seconds that a client may refuse to read before its connection is cut: it "
        "holds a slot of its engine.",
        json_schema_extra=LIVE,
    )
    shutdown_grace: SecondsOrZero = Field(
        30.0,
        description="Seconds that streams get to finish after SIGTERM; then, or at a second "
        "SIGTERM, they end with an error frame. Kubernetes kills after "
        "terminationGracePeriodSeconds: keep that longer.",
        json_schema_extra=LIVE,
    )

    max_body_bytes: Whole = Field(
        64 << 20,
        ge=1024,
        description="Largest request body in bytes; it is held in memory while it is routed. "
        "Routes that take only text have lower limits of their own.",
        json_schema_extra=LIVE,
    )
    max_buffered_bytes: Whole = Field(
        256 << 20,
        ge=1024,
        description="Bytes of request bodies that are held at a time, all connections together; "
        "what comes beyond that gets 503. A body is held until its answer begins (a unary one: "
        "until it ends), with its prefill request in up to three times its size.",
        json_schema_extra=LIVE,
    )
    max_in_flight: Whole | None = Field(
        None,
        ge=1,
        description="Requests that are served at a time; further ones wait. By default there is no "
        "limit and no queue: engines queue. Each of --workers has its share.",
        json_schema_extra=LIVE,
    )
    max_in_flight_per_engine: Whole | None = Field(
        None,
        ge=1,
        description="The same for each usable decode engine: the limit in all follows how many "
        "there are. --max-num-seqs of the engines, or a little more.",
        json_schema_extra=LIVE,
    )
    queue_size: Whole = Field(
        1000,
        ge=0,
        description="Requests that may wait when --max-in-flight or --max-in-flight-per-engine is "
        "reached; then the newest of whoever has most waiting gets 429.",
        json_schema_extra=LIVE,
    )
    queue_timeout: Seconds = Field(
        30.0,
        description="Seconds that a request may wait; then it gets 503. Clients that give up "
        "sooner leave the queue.",
        json_schema_extra=LIVE,
    )
    tenant_header: HeaderName = Field(
        "authorization",
        description="Header by whose value places are shared fairly while requests wait. With "
        "--api-key-file it is the key's name instead.",
        json_schema_extra=LIVE,
    )
    queue_priority: HeaderName = Field(
        "none",
        description="Where a waiting request's priority comes from: none, body (`priority`, as in "
        "vLLM: lower goes first) or the name of a header. Clients can set both, and a higher one "
        "goes before all lower ones.",
        json_schema_extra=LIVE,
    )
    max_idle_connections: Whole = Field(
        512,
        ge=0,
        description="Idle connections kept per engine. In use there may be any number.",
        json_schema_extra=LIVE,
    )
    idle_connection_timeout: Seconds = Field(
        4.0,
        description="Seconds that an idle connection to an engine is kept; must stay below the "
        "engine's own limit, 5 s in vLLM (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).",
        json_schema_extra=LIVE,
    )
    keep_alive_timeout: Seconds = Field(
        75.0,
        description="Seconds that an idle client connection is kept; longer than the 60 s of "
        "common load balancers, so that they close first.",
        json_schema_extra=LIVE,
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="What is logged: debug, info, warning or error. info holds one line per "
        "request.",
        json_schema_extra=LIVE,
    )
    decision_log_sample: Share = Field(
        0.0,
        description="Share of choices that are logged with every candidate's figures, 0 to 1; "
        "0.001 tells why without flooding anybody.",
        json_schema_extra=LIVE,
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="How it is logged: text or json, one line each."
    )
    otlp_traces_endpoint: TracesUrl | None = Field(
        None,
        description="URL that takes traces by OTLP over HTTP, such as "
        "http://collector:4318/v1/traces; needs the extra `tracing`. By default nothing is traced.",
    )
    trace_sample: Share = Field(
        1.0,
        description="Share of requests that are traced, 0 to 1; of those whose client traces them "
        "the client decides.",
    )

    def max_num_seqs(self, url: str) -> int | None:
        """What the operator says that a decode engine runs side by side; None: learn it."""
        stated = self.engine_max_num_seqs
        return stated.get(url, stated.get(ALL))

    @property
    def discovers(self) -> bool:
        """Whether engines come and go by a source that is watched."""
        sources = (self.engines_file, self.k8s_decode_selector)
        return any(each is not None for each in sources) or bool(self.dns_decode)

    @property
    def listening_admin_host(self) -> str:
        """Where the admin listener listens, if there is one."""
        return self.host if self.admin_host is None else self.admin_host

    @property
    def receivers(self) -> dict[str, Receiver]:
        """LMCache's receivers by decode URL; empty when there is nothing to receive."""
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


def is_reloadable(name: str) -> bool:
    """Whether a setting takes effect while the router runs."""
    return Fields.model_fields[name].json_schema_extra == LIVE
