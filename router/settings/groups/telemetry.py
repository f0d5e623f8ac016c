"""What the router tells: logs and traces."""

from typing import Literal

from pydantic import Field

from router.settings.groups.group import LIVE, Group
from router.settings.values import Share, TracesUrl

__all__ = ["Telemetry"]


class Telemetry(Group):
    """Logs and traces."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="What is logged: debug, info, warning or error. info holds one line per "
        "request.",
        json_schema_extra=LIVE,
    )
    decision_log_sample: Share = Field(
        0.0,
        description="Share of choices that are logged with every candidate's figures, 0 to 1; "
        "0.001 explains choices without flooding the log.",
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
        description="Share of requests that are traced, 0 to 1; for requests that a client traces, "
        "the client decides.",
    )
