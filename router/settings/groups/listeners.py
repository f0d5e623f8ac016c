"""Where the router listens, and how it runs there."""

from pydantic import Field

from router.settings.groups.group import LIVE, Group
from router.settings.values import (
    Certificates,
    ExistingFile,
    Origins,
    SocketPath,
    Text,
    Whole,
    Workers,
)

__all__ = ["Listeners"]


class Listeners(Group):
    """Addresses, ports and certificates of the listeners; processes."""

    host: Text = Field("0.0.0.0", description="Address to listen on; :: for IPv6 too.")
    port: Whole = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    admin_host: Text | None = Field(
        None, description="Address of the admin listener; default: that of --host."
    )
    admin_port: Whole | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for operators: /metrics, /endpoints and /docs are served there instead "
        "of on --port; 0 takes a free one. By default clients can read them.",
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
        description="CA certificates (PEM): clients need a certificate of one of them (mutual "
        "TLS), for /health and /ready too: let a platform probe the admin listener.",
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
        description="Unix socket by which a newer router takes over: started with the same path "
        "it gets the listening sockets of the running one, which then finishes its requests and "
        "exits. See docs/change.md.",
    )
    cors_allow_origin: Origins = Field(
        (),
        description="Origins (https://app.example.com) whose web pages may call the API, or * for "
        "all; repeat the flag or give a comma list. By default browsers allow none.",
        json_schema_extra=LIVE,
    )
    workers: Workers = Field(
        1,
        description="Processes that share the port and their knowledge of the engines; auto: one "
        "per core.",
    )

    @property
    def listening_admin_host(self) -> str:
        """Where the admin listener listens, if there is one."""
        return self.host if self.admin_host is None else self.admin_host
