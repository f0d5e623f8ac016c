"""Whether the settings fit each other, once each value is right by itself."""

from collections.abc import Mapping

from router.settings.fields import Fields
from router.settings.names import flag
from router.settings.values import ALL

__all__ = ["check"]


def check(settings: Fields) -> None:
    """Raise ValueError, in one line that names a flag, when settings do not fit each other."""
    if not settings.decode and not settings.discovers:
        raise ValueError("--decode: at least one decode engine is needed")
    _check_discovery(settings)
    if settings.workers > 1 and settings.lmcache_notify_bind is not None:
        raise ValueError("--workers: LMCache's notifications (--lmcache-notify-bind) need 1")
    if settings.max_buffered_bytes < settings.max_body_bytes:
        raise ValueError("--max-buffered-bytes: it must hold one body of --max-body-bytes")
    _check_admin(settings)
    if both := set(settings.prefill) & set(settings.decode):
        raise ValueError(f"--decode: {min(both)} is given as a prefill engine too")
    strange = set(settings.engine_max_num_seqs) - {ALL} - set(settings.decode)
    if strange and not settings.discovers:
        raise ValueError(f"--engine-max-num-seqs: {min(strange)} is no decode engine")
    if settings.kv_events is not None:
        _check_kv_events(settings, settings.kv_events)
    if settings.threshold_on == "uncached" and settings.prefix_cache == "off":
        raise ValueError("--threshold-on: uncached needs --prefix-cache history or events")
    if settings.disagg_connector_type == "lmcache":
        _check_receivers(settings)
    else:
        _refuse_lmcache(settings)


def _check_kv_events(settings: Fields, sources: Mapping[str, object]) -> None:
    if settings.prefix_cache != "events":
        raise ValueError("--kv-events: needs --prefix-cache events")
    strange = set(sources) - set(settings.prefill) - set(settings.decode)
    if strange and not settings.discovers:
        raise ValueError(f"--kv-events: {min(strange)} is no engine")


def _check_discovery(settings: Fields) -> None:
    if settings.k8s_decode_selector is None:
        if settings.k8s_prefill_selector is not None:
            raise ValueError("--k8s-prefill-selector: needs --k8s-decode-selector")
        for name in ("k8s_namespace", "k8s_port", "k8s_config_file"):
            if name in settings.model_fields_set:
                raise ValueError(f"{flag(name)}: needs --k8s-decode-selector")
    elif settings.k8s_prefill_selector == settings.k8s_decode_selector:
        raise ValueError("--k8s-decode-selector: it is --k8s-prefill-selector; take another")
    if both := set(settings.dns_prefill) & set(settings.dns_decode):
        host, port = min(both, key=str)
        name = host if port is None else f"{host}:{port}"
        raise ValueError(f"--dns-decode: {name} is given for prefill engines too")


def _check_admin(settings: Fields) -> None:
    for name in ("admin_host", "admin_key_file"):
        if getattr(settings, name) is not None and settings.admin_port is None:
            raise ValueError(f"{flag(name)}: needs --admin-port")
    if settings.admin_port and settings.admin_port == settings.port:
        raise ValueError("--admin-port: it is --port; take another one")


def _check_receivers(settings: Fields) -> None:
    if settings.dns_decode:
        raise ValueError("--dns-decode: lmcache needs receivers, which DNS cannot name")
    if settings.k8s_decode_selector is not None and settings.decoder_host is not None:
        raise ValueError("--decoder-host: pods say it by annotations (docs/discovery.md)")
    if settings.decoder_registry is not None:
        _check_registry(settings)
    elif settings.engines_file is not None:
        raise ValueError("--decoder-registry: discovered decode engines need a receiver each")
    elif (
        settings.decoder_host is not None
        or settings.decoder_init_port
        or settings.decoder_alloc_port
    ):
        _check_one_receiver(settings)
    elif settings.prefill or (settings.k8s_prefill_selector is not None and settings.decode):
        raise ValueError("--decoder-registry (or --decoder-host): lmcache needs a receiver")


def _names_one_receiver(settings: Fields) -> bool:
    ports = settings.decoder_init_port or settings.decoder_alloc_port
    return settings.decoder_host is not None or bool(ports)


def _check_registry(settings: Fields) -> None:
    if (
        settings.decoder_host is not None
        or settings.decoder_init_port
        or settings.decoder_alloc_port
    ):
        raise ValueError("--decoder-registry: give it or --decoder-host, not both")
    for url in settings.decode:
        if url not in (settings.decoder_registry or {}):
            raise ValueError(f"--decoder-registry: decode engine {url} is not in it")


def _check_one_receiver(settings: Fields) -> None:
    if len(settings.decode) > 1:
        raise ValueError("--decoder-registry: several decode engines need one receiver each")
    if settings.decoder_host is None:
        raise ValueError("--decoder-host: it goes with the receiver's ports")
    for name in ("decoder_init_port", "decoder_alloc_port"):
        if not getattr(settings, name):
            raise ValueError(f"{flag(name)}: lmcache needs a port per tensor-parallel rank")
    init, alloc = len(settings.decoder_init_port), len(settings.decoder_alloc_port)
    if init != alloc:
        raise ValueError(
            f"--decoder-alloc-port: {alloc} ports, but --decoder-init-port has {init}: "
            "one of each per tensor-parallel rank"
        )


def _refuse_lmcache(settings: Fields) -> None:
    names = ("decoder_host", "decoder_init_port", "decoder_alloc_port", "decoder_registry")
    for name in (*names, "lmcache_notify_bind"):
        if getattr(settings, name):
            raise ValueError(f"{flag(name)}: needs --disagg-connector-type lmcache")
