"""What the router holds at a time: bodies, requests, connections."""

from pydantic import Field

from router.settings.groups.group import LIVE, Group
from router.settings.values import HeaderName, Seconds, Whole

__all__ = ["Limits"]


class Limits(Group):
    """Bytes, requests served and waiting, and idle connections."""

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
        description="Bytes of request bodies held at a time, over all connections; further ones "
        "get 503. A body is held until its answer begins (a unary one: until it ends); with its "
        "prefill request it takes up to three times its size. Answers that are read whole may "
        "take as many again.",
        json_schema_extra=LIVE,
    )
    max_in_flight: Whole | None = Field(
        None,
        ge=1,
        description="Requests that are served at a time; further ones wait. By default there is no "
        "limit and no queue: engines queue.",
        json_schema_extra=LIVE,
    )
    max_in_flight_per_engine: Whole | None = Field(
        None,
        ge=1,
        description="The same for each decode engine: a request waits while all engines that serve "
        "its model are at this limit. Use the engines' --max-num-seqs, or a little more.",
        json_schema_extra=LIVE,
    )
    queue_size: Whole = Field(
        1000,
        ge=0,
        description="Requests that may wait when --max-in-flight or --max-in-flight-per-engine is "
        "reached, in all of --workers; beyond that the newest request of the tenant with the most "
        "waiting gets 429.",
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
        description="Header whose value identifies a tenant: while requests wait, places are "
        "shared fairly among tenants. With --api-key-file a tenant is the key's name instead.",
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
        description="Idle connections kept per engine. The number in use is not limited.",
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
