"""Creates the discovery sources of the settings."""

from router.core.values import DECODE, PREFILL
from router.discovery.dns import DnsSource
from router.discovery.dns_resolver import SystemResolver
from router.discovery.kubernetes import KubernetesSource
from router.discovery.kubernetes_login import kubernetes_login
from router.discovery.source import Known, OnAnswer, Source, nothing_known
from router.settings import Settings, SettingsError

__all__ = ["discovery_sources", "dns_source", "kubernetes_source"]


def discovery_sources(
    settings: Settings,
    on_answer: OnAnswer = lambda server: None,
    known: Known = nothing_known,
) -> list[Source]:
    """All discovery sources. Raises SettingsError if an extra is not installed, or if there is no
    DNS server to ask."""
    try:
        found = (kubernetes_source(settings, on_answer), dns_source(settings, on_answer, known))
    except (ImportError, ValueError) as error:
        raise SettingsError(str(error)) from None
    return [each for each in found if each is not None]


def kubernetes_source(settings: Settings, on_answer: OnAnswer) -> KubernetesSource | None:
    """The source that watches pods; None if it is off. Raises ImportError."""
    selectors = {PREFILL: settings.k8s_prefill_selector, DECODE: settings.k8s_decode_selector}
    given = {role: selector for role, selector in selectors.items() if selector is not None}
    if not given:
        return None
    is_lmcache = settings.disagg_connector_type == "lmcache"
    return KubernetesSource(
        kubernetes_login(settings.k8s_config_file, settings.k8s_namespace),
        given,
        settings.k8s_port,
        needs_receivers=is_lmcache and settings.decoder_registry is None,
        on_answer=on_answer,
    )


def dns_source(settings: Settings, on_answer: OnAnswer, known: Known) -> DnsSource | None:
    """The source that queries DNS servers; None if it is off. Raises ImportError."""
    names = {PREFILL: settings.dns_prefill, DECODE: settings.dns_decode}
    if not any(names.values()):
        return None
    return DnsSource(names, SystemResolver(), on_answer=on_answer, known=known)
