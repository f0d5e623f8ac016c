"""How engines are probed and scraped, and as whom the router asks them."""

from pydantic import Field

from router.core.fleet import probing
from router.settings.groups.group import Group
from router.settings.values import Certificates, ExistingFile, Key, Seconds

__all__ = ["Probing"]


class Probing(Group):
    """Probes and scrapes; the key and certificates for engines."""

    engine_stats_interval: Seconds = Field(
        probing.SCRAPE_SECONDS,
        description="Seconds between scrapes of each engine's /metrics. Own requests are counted "
        "exactly; scrapes add those of others, queues, and tokens that a parser holds back. Each "
        "takes 2.5 ms of the engine's API server.",
    )
    health_check_interval: Seconds = Field(
        probing.HEALTH_SECONDS,
        description="Seconds between probes of each engine's /health; an engine that is not up is "
        "probed every second.",
    )
    health_check_timeout: Seconds = Field(
        2.0,
        description="Seconds that a probe or scrape may take. /health of a busy vLLM may take "
        "longer: time-outs do not count against an engine that produces tokens.",
    )
    engine_api_key: Key | None = Field(
        None,
        repr=False,
        description="Sent to engines as the bearer token, in place of the client's. Set it by the "
        "environment or --config: all users of a host can see the flag until the router, within "
        "a second of its start, has re-executed itself without it.",
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
