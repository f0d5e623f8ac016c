"""The engines' KV connector."""

from typing import Literal

from pydantic import Field

from router.settings.engine_values import Registry
from router.settings.groups.group import LIVE, Group
from router.settings.values import Bind, Ports, Seconds, Text

__all__ = ["Connector"]


class Connector(Group):
    """How KV caches get from prefill to decode engines."""

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
