"""When engines are asked of their own account, and what: health, gauges, and speed.

A speed probe is a tiny generation on an engine that gets no users' requests: without it nobody
would find out that a stall is over, or that a slow engine has recovered. `net/prober.py` and
`net/speed_prober.py` make the requests; the simulator asks modelled engines by the same rules.
"""

from collections.abc import Mapping

import orjson

from router.core.health import Health, State
from router.core.member import Exclusion, Member
from router.core.policies import Policy
from router.core.policies.shortest_expected_delay import shortest_expected_delay
from router.core.values import Role

__all__ = [
    "HEALTH_SECONDS",
    "JITTER",
    "SCRAPE_SECONDS",
    "SPEED_PROBE_PATH",
    "SPEED_PROBE_PROMPT_TOKENS",
    "SPEED_PROBE_SECONDS",
    "SPEED_PROBE_TIMEOUT_SECONDS",
    "SPEED_PROBE_TOKENS",
    "STALE_SCRAPES",
    "needs_speed_probe",
    "roles_that_use_speed",
    "seconds_to_health_probe",
    "speed_probe_body",
    "speed_probe_tokens",
]

HEALTH_SECONDS = 5.0
"""Between health probes of an engine that is up; a setting's default."""

SCRAPE_SECONDS = 1.0
"""Between two reads of an engine's gauges; a setting's default."""

SPEED_PROBE_SECONDS = 1.0
"""Between speed probes of an engine that needs them; a setting's default."""

JITTER = 0.1
"""The share by which the time to the next probe or scrape is longer or shorter, by chance: a
hundred engines are not asked in the same millisecond."""

STALE_SCRAPES = 3
"""Scrapes that may be missed before an engine's gauges count as absent."""

DOUBT_SECONDS = 1.0
"""Between health probes of an engine that is not up, or whose last probe failed: its users wait."""

SPEED_PROBE_PATH = "/v1/completions"

SPEED_PROBE_TOKENS = 8
"""Of one probe: enough gaps to tell, little enough to cost nothing."""

SPEED_PROBE_PROMPT = "1 2 3 4 5 6 7 8"
SPEED_PROBE_PROMPT_TOKENS = len(SPEED_PROBE_PROMPT) // 4

SPEED_PROBE_TIMEOUT_SECONDS = 10.0
"""For a whole speed probe: 8 tokens of an engine that takes a second for each."""


def seconds_to_health_probe(health: Health, interval: float) -> float:
    """How long after a probe the next one is due; `interval` is that of an engine that is well."""
    if health.is_usable and not health.streak:
        return interval
    return min(interval, DOUBT_SECONDS)


def roles_that_use_speed(policies: Mapping[Role, Policy]) -> frozenset[Role]:
    """The roles in which an engine that is slow gets fewer requests for it."""
    return frozenset(role for role, chosen in policies.items() if chosen is shortest_expected_delay)


def needs_speed_probe(member: Member, speed_roles: frozenset[Role]) -> bool:
    """Whether nothing else would find out that it speaks again, or how fast it is now.

    Stalled engines need one under every policy; slow ones only in `speed_roles`, the roles whose
    policy spares them. One that is ejected waits for its time to be over.
    """
    if member.health.state is not State.UP or member.models == frozenset():
        return False
    if member.speed.all_open or member.exclusion is Exclusion.EJECTED:
        return False
    is_spared = member.exclusion is Exclusion.SLOW or member.view.slowdown > 1
    return member.exclusion is Exclusion.STALLED or (
        is_spared and member.endpoint.role in speed_roles
    )


def speed_probe_tokens(role: Role) -> int:
    """Tokens that one probe asks for: a prefill engine is as fast as its first one."""
    return 1 if role is Role.PREFILL else SPEED_PROBE_TOKENS


def speed_probe_body(member: Member) -> bytes:
    """The JSON body of one probe."""
    tokens = speed_probe_tokens(member.endpoint.role)
    body: dict[str, object] = {
        "prompt": SPEED_PROBE_PROMPT,
        "temperature": 0,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if member.models:
        body["model"] = min(member.models)
    return orjson.dumps(body)
