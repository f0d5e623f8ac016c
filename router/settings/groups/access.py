"""Which peers are trusted: clients with keys, other replicas, gateways."""

from typing import Literal

from pydantic import Field

from router.settings.engine_values import DnsNames, Urls
from router.settings.groups.group import LIVE, Group
from router.settings.values import Key, Keys, Networks, Whole

__all__ = ["Access"]


class Access(Group):
    """API keys, replicas and gateways."""

    api_key_file: Keys | None = Field(
        None,
        description="File of API keys, a line `NAME KEY` (or `NAME sha256:HEX`) for each: clients "
        "need one of them. Limits may follow the key: requests=N and tokens=N (per minute), "
        "streams=N (concurrent). It is read again within seconds when it changes; names appear in "
        "logs and metrics, keys nowhere.",
        json_schema_extra=LIVE,
    )
    admin_key_file: Keys | None = Field(
        None,
        description="The same for the admin listener (--admin-port), except for /health, /ready "
        "and /version; it has no limits.",
        json_schema_extra=LIVE,
    )
    peers: Urls = Field(
        (),
        description="URLs of the admin listeners of all replicas of this router, itself included "
        "or not: each reports its requests to the others as they change, so that they rarely "
        "choose the same engine at once, and which prompts it has sent where. Needs --admin-port; "
        "docs/replicas.md says how many replicas to run.",
    )
    dns_peers: DnsNames = Field(
        (),
        description="DNS name of the same, as host:port of a headless service's admin port; needs "
        "the extra `dns`.",
    )
    peer_key: Key | None = Field(
        None,
        repr=False,
        description="The bearer token between replicas, the same for all; it authorizes nothing "
        "else. The replicas' common hash seed is derived from it; without one they cannot report "
        "prompts to each other. Required with --admin-key-file. As a flag it is as visible as "
        "--engine-api-key.",
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
        description="Networks of the gateways whose headers --direct-mode trusts; a comma list "
        "like 10.1.0.0/16. Headers of others are ignored.",
        json_schema_extra=LIVE,
    )
    engine_header: Literal["off", "on"] = Field(
        "off",
        description="on: answers carry x-pd-router-endpoint, the URL of the engine that gave them, "
        "for load tests. It shows clients your addresses.",
        json_schema_extra=LIVE,
    )
