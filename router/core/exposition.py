"""The few gauges that routing needs, out of an engine's /metrics text.

A full parse of vLLM's 50 kB costs milliseconds; this looks for four names. A gauge has one series
per data-parallel rank (label `engine`): counts are summed, KV usage takes the fullest rank.
"""

import re

from router.core.values import Gauges

__all__ = ["read"]

# A value, and the time that may follow it.
_NUMBER = rb"[ \t]+([0-9.eE+-]+)(?:[ \t]+-?[0-9]+)?[ \t]*\r?$"


def _series(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"^" + name + rb"(?:\{[^\n]*\})?" + _NUMBER, re.MULTILINE)


_RUNNING = _series(rb"vllm:num_requests_running")
_WAITING = _series(rb"vllm:num_requests_waiting")
# The second name is vLLM 0.11's; it was gone by 0.13.
_KV_USAGE = _series(rb"vllm:(?:kv|gpu)_cache_usage_perc")


def read(text: bytes) -> Gauges:
    """Read the gauges; one that is missing or unreadable is None."""
    running, waiting = _numbers(_RUNNING, text), _numbers(_WAITING, text)
    return Gauges(
        running=int(sum(running)) if running else None,
        waiting=int(sum(waiting)) if waiting else None,
        kv_usage=max(_numbers(_KV_USAGE, text), default=None),
    )


def _numbers(series: re.Pattern[bytes], text: bytes) -> list[float]:
    found = []
    for number in series.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if 0 <= value < 1e12:  # refuses NaN and infinity too
            found.append(value)
    return found
