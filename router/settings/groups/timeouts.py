"""How long the router waits for engines and clients."""

from pydantic import Field

from router.settings.groups.group import LIVE, Group
from router.settings.values import Seconds, SecondsOrZero

__all__ = ["Timeouts"]


class Timeouts(Group):
    """Time-outs of requests, in seconds."""

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
        description="Seconds to the first byte of an answer; for a stream, to its first content. A "
        "unary answer has none before all its tokens are generated.",
        json_schema_extra=LIVE,
    )
    stream_idle_timeout: Seconds = Field(
        120.0,
        description="Seconds of silence that end a stream with an error frame; comments, which "
        "keep connections alive, are silence. A first CUDA graph capture takes up to a minute.",
        json_schema_extra=LIVE,
    )
    sse_keep_alive: SecondsOrZero = Field(
        10.0,
        description="Seconds without a byte after which the client of a stream that has no content "
        "yet is sent a comment. The head, 200, goes before it: a later failure is an error event. "
        "Proxies, browsers and agents give up on silence, many after 60 s. 0: never.",
        json_schema_extra=LIVE,
    )
    body_timeout: Seconds = Field(
        60.0,
        description="Seconds for a request's body to arrive; the largest, 64 MiB, needs 10 Mbit/s.",
        json_schema_extra=LIVE,
    )
    client_stall_timeout: Seconds = Field(
        300.0,
        description="Seconds after which a client that reads nothing is disconnected (at most "
        "twice that), because it holds a slot of its engine.",
        json_schema_extra=LIVE,
    )
    shutdown_grace: SecondsOrZero = Field(
        30.0,
        description="Seconds that streams get to finish after SIGTERM; then, or at a second "
        "SIGTERM, they end with an error frame. Kubernetes kills after "
        "terminationGracePeriodSeconds: keep that longer.",
        json_schema_extra=LIVE,
    )
