"""Whether settings that are valid one by one fit each other."""

from collections.abc import Iterable, Iterator, Mapping

from router.certificates import server_tls
from router.core.membership.engine_names import DnsName
from router.settings.fields import Settings, flag
from router.settings.values import ALL

__all__ = ["problems"]


def problems(settings: Settings) -> Iterator[str]:
    """A line for each problem, which names a flag."""
    if not settings.decode and not settings.discovers:
        yield "--decode: at least one decode engine is needed"
    yield from _check_discovery(settings)
    if settings.workers > 1 and settings.lmcache_notify_bind is not None:
        yield "--workers: LMCache's notifications (--lmcache-notify-bind) need 1"
    if settings.max_buffered_bytes < settings.max_body_bytes:
        yield "--max-buffered-bytes: it must hold one body of --max-body-bytes"
    yield from _check_admin(settings)
    yield from _check_peers(settings)
    yield from _check_tls(settings)
    if settings.takeover is not None and settings.lmcache_notify_bind is not None:
        yield "--takeover: two routers cannot listen at --lmcache-notify-bind; leave one out"
    yield from _check_roles(settings)
    strange = set(settings.engine_max_num_seqs) - {ALL} - set(settings.decode)
    if strange and not settings.discovers:
        yield f"--engine-max-num-seqs: {min(strange)} is no decode engine"
    if settings.kv_events is not None:
        yield from _check_kv_events(settings, settings.kv_events)
    if settings.threshold_on == "uncached" and settings.prefix_cache == "off":
        yield "--threshold-on: uncached needs --prefix-cache history or events"
    yield from _check_ports_by_engine(settings)
    if settings.disagg_connector_type == "lmcache":
        yield from _check_receivers(settings)
    else:
        yield from _refuse_lmcache(settings)


def _check_roles(settings: Settings) -> Iterator[str]:
    """Each engine has one role."""
    if both := set(settings.prefill) & set(settings.decode):
        yield f"--decode: {min(both)} is given as a prefill engine too"
    if both := set(settings.encode) & {*settings.prefill, *settings.decode}:
        yield f"--encode: {min(both)} is given as another engine too"
    if names := set(settings.dns_prefill) & set(settings.dns_decode):
        yield f"--dns-decode: {_first(names)} is given for prefill engines too"
    if names := set(settings.dns_encode) & {*settings.dns_prefill, *settings.dns_decode}:
        yield f"--dns-encode: {_first(names)} is given for other engines too"


def _first(names: Iterable[DnsName]) -> str:
    host, port = min(names, key=str)
    return host if port is None else f"{host}:{port}"


def _check_kv_events(settings: Settings, sources: Mapping[str, object]) -> Iterator[str]:
    if settings.prefix_cache != "events":
        yield "--kv-events: needs --prefix-cache events"
    strange = set(sources) - set(settings.prefill) - set(settings.decode)
    if strange and not settings.discovers:
        yield f"--kv-events: {min(strange)} is no engine"


def _check_ports_by_engine(settings: Settings) -> Iterator[str]:
    for connector, name, role in (
        ("mooncake", "mooncake_bootstrap_port", "prefill"),
        ("moriio", "moriio_handshake_port", "decode"),
        ("moriio", "moriio_notify_port", "decode"),
    ):
        is_given = name in settings.model_fields_set
        if is_given and settings.disagg_connector_type != connector:
            yield f"{flag(name)}: needs --disagg-connector-type {connector}"
        strange = set(getattr(settings, name)) - {ALL} - set(getattr(settings, role))
        if strange and not settings.discovers:
            yield f"{flag(name)}: {min(strange)} is no {role} engine"
    if settings.disagg_connector_type == "mooncake":
        servers: dict[str, str] = {}
        for url in settings.prefill:
            other = servers.setdefault(settings.bootstrap(url), url)
            if other != url:
                yield f"--mooncake-bootstrap-port: {other} and {url} need a port each"


def _check_discovery(settings: Settings) -> Iterator[str]:
    if settings.k8s_decode_selector is None:
        for name in ("k8s_prefill_selector", "k8s_encode_selector"):
            if getattr(settings, name) is not None:
                yield f"{flag(name)}: needs --k8s-decode-selector"
        for name in ("k8s_namespace", "k8s_port", "k8s_config_file"):
            if name in settings.model_fields_set:
                yield f"{flag(name)}: needs --k8s-decode-selector"
    elif settings.k8s_prefill_selector == settings.k8s_decode_selector:
        yield "--k8s-decode-selector: it is --k8s-prefill-selector; take another"
    elif settings.k8s_encode_selector in (
        settings.k8s_decode_selector,
        settings.k8s_prefill_selector or settings.k8s_decode_selector,
    ):
        yield "--k8s-encode-selector: it is that of other engines; take another"


def _check_admin(settings: Settings) -> Iterator[str]:
    for name in ("admin_host", "admin_key_file", "admin_tls_cert_file"):
        if getattr(settings, name) is not None and settings.admin_port is None:
            yield f"{flag(name)}: needs --admin-port"
    if settings.admin_port and settings.admin_port == settings.port:
        yield "--admin-port: it is --port; take another one"
    if "trusted_gateways" in settings.model_fields_set and settings.direct_mode == "off":
        yield "--trusted-gateways: needs --direct-mode on"
    if settings.epp_port is not None:
        yield from _check_epp(settings)


def _check_peers(settings: Settings) -> Iterator[str]:
    for name in ("peers", "dns_peers"):
        if getattr(settings, name) and settings.admin_port is None:
            yield f"{flag(name)}: needs --admin-port, where other replicas tell"
    if settings.dns_peers and settings.admin_tls_cert_file is not None:
        yield "--dns-peers: finds http:// only; with --admin-tls-cert-file name them in --peers"
    if settings.peer_key is not None and not settings.has_peers:
        yield "--peer-key: needs --peers or --dns-peers"
    if settings.has_peers and settings.admin_key_file is not None and settings.peer_key is None:
        yield "--peer-key: is needed with --admin-key-file, for other replicas"


def _check_epp(settings: Settings) -> Iterator[str]:
    if settings.workers > 1:
        yield "--workers: an endpoint picker (--epp-port) is one process"
    if settings.max_in_flight is not None or settings.max_in_flight_per_engine is not None:
        yield "--epp-port: Envoy limits requests there, not --max-in-flight"
    if settings.epp_port and settings.epp_port in (settings.port, settings.admin_port):
        yield "--epp-port: it is --port or --admin-port; take another one"
    if settings.takeover is not None:
        yield "--takeover: two routers cannot listen on --epp-port; leave one out"


def _check_tls(settings: Settings) -> Iterator[str]:
    """Certificates must have their keys, and both must fit."""
    for kind in ("tls", "admin_tls", "engine"):
        names = f"{kind}_cert_file", f"{kind}_key_file"
        certificate, key = (getattr(settings, name) for name in names)
        client_ca = getattr(settings, f"{kind}_client_ca_file", None)
        if (certificate is None) != (key is None):
            given, missing = names if key is None else reversed(names)
            yield f"{flag(missing)}: needed with {flag(given)}"
        elif certificate is not None:
            try:
                server_tls(certificate, key, client_ca)
            except ValueError as error:
                yield f"{flag(names[0])}: {error}"
        elif client_ca is not None:
            yield f"{flag(f'{kind}_client_ca_file')}: needs {flag(names[0])}"


def _check_receivers(settings: Settings) -> Iterator[str]:
    if settings.dns_decode:
        yield "--dns-decode: lmcache needs receivers, which DNS cannot name"
    if settings.k8s_decode_selector is not None and settings.decoder_host is not None:
        yield "--decoder-host: pods say it by annotations (docs/discovery.md)"
    if settings.decoder_registry is not None:
        yield from _check_registry(settings)
    elif settings.engines_file is not None:
        yield "--decoder-registry: discovered decode engines need a receiver each"
    elif _names_one_receiver(settings):
        yield from _check_one_receiver(settings)
    elif settings.prefill or (settings.k8s_prefill_selector is not None and settings.decode):
        yield "--decoder-registry (or --decoder-host): lmcache needs a receiver"


def _names_one_receiver(settings: Settings) -> bool:
    ports = settings.decoder_init_port or settings.decoder_alloc_port
    return settings.decoder_host is not None or bool(ports)


def _check_registry(settings: Settings) -> Iterator[str]:
    if _names_one_receiver(settings):
        yield "--decoder-registry: give it or --decoder-host, not both"
    for url in settings.decode:
        if url not in (settings.decoder_registry or {}):
            yield f"--decoder-registry: decode engine {url} is not in it"


def _check_one_receiver(settings: Settings) -> Iterator[str]:
    if len(settings.decode) > 1:
        yield "--decoder-registry: several decode engines need one receiver each"
    if settings.decoder_host is None:
        yield "--decoder-host: it goes with the receiver's ports"
    for name in ("decoder_init_port", "decoder_alloc_port"):
        if not getattr(settings, name):
            yield f"{flag(name)}: lmcache needs a port per tensor-parallel rank"
    init, alloc = len(settings.decoder_init_port), len(settings.decoder_alloc_port)
    if init and alloc and init != alloc:
        yield (
            f"--decoder-alloc-port: {alloc} ports, but --decoder-init-port has {init}: "
            "one of each per tensor-parallel rank"
        )


def _refuse_lmcache(settings: Settings) -> Iterator[str]:
    names = ("decoder_host", "decoder_init_port", "decoder_alloc_port", "decoder_registry")
    for name in (*names, "lmcache_notify_bind"):
        if getattr(settings, name):
            yield f"{flag(name)}: needs --disagg-connector-type lmcache"
