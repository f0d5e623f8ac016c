"""When engines get no new requests, and how they return."""

from pydantic import Field

from router.core import retry
from router.core.fleet import probing
from router.core.limits import retry_budget
from router.settings.groups.group import LIVE, Group
from router.settings.values import Seconds, SecondsOrZero, Share, Whole

__all__ = ["Exclusion"]


class Exclusion(Group):
    """Stalls, outlier ejection, retries and slow start."""

    stall_timeout: SecondsOrZero = Field(
        2.0,
        description="Seconds without a token, on an engine with open streams, after which it gets "
        "no new requests until it produces tokens again; 0: never. At least 20 times its gap "
        "between tokens, and three minutes for the first token since its start.",
        json_schema_extra=LIVE,
    )
    outlier_consecutive_failures: Whole = Field(
        5,
        ge=0,
        description="Failures in a row (5xx, broken or refused connections, time-outs) that eject "
        "an engine; 0 switches ejection off.",
        json_schema_extra=LIVE,
    )
    outlier_ejection_time: Seconds = Field(
        30.0,
        description="Seconds of an engine's first ejection; each further one is that much longer, "
        "up to 300 s.",
        json_schema_extra=LIVE,
    )
    retry_budget: Share = Field(
        retry_budget.SHARE,
        description="Retries per request, 0 to 1, in the long run: when engines fail, the others "
        "get at most that much extra load. A burst of 1000 and 10 a second are always allowed.",
        json_schema_extra=LIVE,
    )
    retries_on_5xx: Whole = Field(
        retry.RETRIES_ON_5XX,
        ge=0,
        le=retry.ATTEMPTS - 1,
        description="Further engines that are asked, before the client's first byte, for a request "
        "to which an engine answered 500, 502 or 504; 0: the client gets that answer.",
        json_schema_extra=LIVE,
    )
    max_excluded_percent: Whole = Field(
        50,
        ge=0,
        le=100,
        description="Percentage of a pool that may be excluded as stalled or ejected at a time; if "
        "more are, all engines are used (panic).",
        json_schema_extra=LIVE,
    )
    slow_start: SecondsOrZero = Field(
        5.0,
        description="Seconds in which an engine that joins or comes back reaches its full share; "
        "0: at once.",
        json_schema_extra=LIVE,
    )
    speed_probe_interval: SecondsOrZero = Field(
        probing.SPEED_PROBE_SECONDS,
        description="Seconds between the router's own probes of an engine that gets no users' "
        "requests, because it has stalled or, under shortest_expected_delay, is slow: a generation "
        "of 8 tokens, on prefill engines and where prompts were slow a prompt of 2048; 0: none.",
    )
