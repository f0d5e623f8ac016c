"""When the router probes engines and with what: health, gauges and speed.

A speed probe is a tiny generation on a stalled engine, or on a slow or silent one without requests
of users. It detects that a stall is over, that a slow engine has recovered, or that one whose
/health times out is busy rather than gone. An engine that is avoided
because it was slow with prompts (its first ones took seconds, say) gets a long prompt. The requests
are made by `prober.py` and `speed_prober.py` of `net/background`; the simulator uses the same
rules.
"""

from collections.abc import Mapping
from random import Random
from string import ascii_lowercase

import orjson

from router.core.fleet.leg_timer import LegTimer
from router.core.health import Health, State
from router.core.judge.member import Member
from router.core.judge.verdict import Exclusion
from router.core.policies import AVOID_SLOW, Policy
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Role

__all__ = [
    "HEALTH_SECONDS",
    "JITTER",
    "NO_GAUGES",
    "SCRAPE_SECONDS",
    "SPEED_PROBE_PATH",
    "SPEED_PROBE_PROMPT_TOKENS",
    "SPEED_PROBE_SECONDS",
    "SPEED_PROBE_TIMEOUT_SECONDS",
    "SPEED_PROBE_TOKENS",
    "STALE_SCRAPES",
    "asks_version",
    "needs_speed_probe",
    "roles_that_use_speed",
    "seconds_to_health_probe",
    "seconds_to_scrape",
    "speed_probe_body",
    "speed_probe_leg",
    "speed_probe_tokens",
]

HEALTH_SECONDS = 5.0
"""Seconds between health probes of an engine that is up; default of a setting."""

SCRAPE_SECONDS = 1.0
"""Seconds between scrapes of an engine's gauges; default of a setting."""

SPEED_PROBE_SECONDS = 1.0
"""Seconds between speed probes of an engine that needs them; default of a setting."""

JITTER = 0.1
"""Random variation of intervals, as a share, so that a hundred engines are not probed at the same
time."""

NO_GAUGES = (
    "neither /metrics nor /prometheus/metrics has a gauge of running requests: see docs/engines.md"
)
"""Why the gauges of an engine cannot be read that has none, or has them switched off."""

GAUGELESS_INTERVALS = 10
"""Intervals between scrapes of an engine that has no gauges: a cloud's endpoint never has any, and
SGLang's and TensorRT-LLM's appear with the first request."""

STALE_SCRAPES = 3
"""Missed scrapes after which an engine's gauges are ignored."""

RECHECK_SECONDS = 1.0
"""Seconds between health probes of an engine that is not up, or whose last probe failed."""

SLEEP_SECONDS = 0.5
"""Seconds between health probes, and between scrapes, of an engine that sleeps: it is back within a
second of waking."""

VERSION_PROBES = 10
"""An engine that is up is asked for its version in one of so many health probes: with 1,000 engines
that takes 1 % of a core, and would take 13 % in each probe."""

SPEED_PROBE_PATH = "/v1/completions"

SPEED_PROBE_TOKENS = 8
"""Tokens of one probe: enough gaps to measure, and still cheap."""

SPEED_PROBE_PROMPT = "1 2 3 4 5 6 7 8"
SPEED_PROBE_PROMPT_TOKENS = len(SPEED_PROBE_PROMPT) // 4

PROMPT_PROBE_TOKENS = 2048
"""Prompt tokens of a probe that measures prompts: what vLLM computes in one step. A short prompt
takes a step too, and would not distinguish fast engines from slow ones."""

PROMPT_PROBE_SHARE = 3
"""Such a prompt has at most so many letters, as a part of the longest that a model accepts. It is a
text of single letters, because a vocabulary may lack token ids. With its space a letter is one
token in most vocabularies and two at most; the answer's usage has the exact number."""

PROMPT_AGE_SECONDS = 1.0
"""Seconds without a prompt after which what was measured of them is asked for again, beside open
streams, which may last minutes: prompts that waited for a slot look slow too ..."""

PROMPT_AGE_FACTOR = 4.0
"""... and in times of what the probe would take, which delays these streams if the engine is slow:
they lose a fifth of the time at most."""

HUNG_STREAM_SECONDS = 10.0
"""Seconds of a stall after which its streams may be hanging by themselves: tokens of them would
have ended the stall."""

SPEED_PROBE_TIMEOUT_SECONDS = 10.0
"""Time-out in seconds for a whole speed probe: 8 tokens at 1 s each, plus a reserve."""


def seconds_to_health_probe(health: Health, interval: float) -> float:
    """Seconds until the next probe. `interval` is for a healthy engine."""
    if health.is_up and not health.streak:
        return interval
    return min(interval, SLEEP_SECONDS if health.state is State.SLEEPING else RECHECK_SECONDS)


def seconds_to_scrape(member: Member, interval: float) -> float:
    """Seconds until the next scrape. `interval` is for an engine that is awake and has gauges."""
    if member.health.state is State.SLEEPING:
        return min(interval, SLEEP_SECONDS)
    return interval * GAUGELESS_INTERVALS if member.scrapes.error == NO_GAUGES else interval


def asks_version(member: Member, number: int) -> bool:
    """Whether the health probe with this number asks for the version too. Engines that are up are
    also asked, because a new engine may have taken over the URL between two probes."""
    is_known = member.version is not None and member.health.is_good
    return not is_known or number % VERSION_PROBES == 0


def roles_that_use_speed(policies: Mapping[Role, Policy]) -> frozenset[Role]:
    """The roles whose policy avoids slow engines."""
    return frozenset(role for role, chosen in policies.items() if chosen in AVOID_SLOW)


def needs_speed_probe(member: Member, speed_roles: frozenset[Role], now: float) -> bool:
    """Whether only a probe can show that the engine has recovered, or how fast it is now.

    Stalled engines need one under every policy, and after a while even with open streams, because
    one stream may hang on a healthy engine. So do engines whose /health times out: a token
    distinguishes them from dead ones. Slow engines need one only in `speed_roles`, which avoid
    them, and while no request measures their speed: for their speed with prompts, open streams do
    not. Ejected engines return after a time.
    """
    if member.is_drained or member.models == frozenset() or member.endpoint.role is Role.ENCODE:
        return False  # encode engines generate nothing
    if member.health.unanswered_since is not None and not member.speed.counts.all_open:
        return True
    if not member.in_rotation:
        return False
    if member.exclusion is Exclusion.EJECTED:
        return False
    since = member.verdict.stall.since
    if since is not None:
        return not member.speed.counts.all_open or now - since >= HUNG_STREAM_SECONDS
    if member.endpoint.role not in speed_roles:
        return False
    is_slow_with_prompts = member.view.prompt_slowdown > 1
    if member.speed.counts.all_open:
        return is_slow_with_prompts and _has_old_prompts(member.speed)
    return is_slow_with_prompts or member.exclusion is Exclusion.SLOW or member.view.slowdown > 1


def _has_old_prompts(speed: SpeedEstimator) -> bool:
    """Whether it was long ago that the engine computed a prompt."""
    seconds = (speed.per_prompt_token or 0.0) * PROMPT_PROBE_TOKENS
    least = max(PROMPT_AGE_SECONDS, PROMPT_AGE_FACTOR * seconds)
    return speed.per_prompt_token_age * TICK_SECONDS >= least


def speed_probe_tokens(role: Role) -> int:
    """Tokens that one probe generates. For prefill engines only the first matters."""
    return 1 if role is Role.PREFILL else SPEED_PROBE_TOKENS


def measures_prompts(member: Member) -> bool:
    """Whether a probe is to show how fast the engine computes prompts."""
    return member.endpoint.role is Role.PREFILL or member.view.prompt_slowdown > 1


def speed_probe_work(member: Member) -> int:
    """Estimated prompt tokens of one probe. A long prompt fits the shortest of the engine's models,
    and is half as long after each failure: it may be what the engine does not accept."""
    if not measures_prompts(member):
        return SPEED_PROBE_PROMPT_TOKENS
    lengths = (card.get("max_model_len") for card in member.cards or ())
    known = [each for each in lengths if type(each) is int and each > 0]
    letters = min([PROMPT_PROBE_TOKENS, *(each // PROMPT_PROBE_SHARE for each in known)])
    return max(1, letters >> member.failed_speed_probes)


def speed_probe_leg(member: Member, now: float) -> LegTimer:
    """Create the timer of a probe that is sent now. The time of a prompt of a few letters is that
    of one step, and does not show the cost per prompt token."""
    work = speed_probe_work(member) if measures_prompts(member) else 0
    return LegTimer(member.speed.counts, None, work, now, tracks_first_token=True)


def speed_probe_body(member: Member, rng: Random) -> bytes:
    """The JSON body of one probe. A prompt that is measured is a new one each time, which is not in
    the engine's prefix cache. The first event of the answer has the number of its tokens."""
    tokens = speed_probe_tokens(member.endpoint.role)
    prompt = SPEED_PROBE_PROMPT
    if measures_prompts(member):
        prompt = " ".join(rng.choices(ascii_lowercase, k=speed_probe_work(member)))
    body: dict[str, object] = {
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if member.models:
        body["model"] = min(member.models)
    return orjson.dumps(body)
