"""Reads the few gauges that routing needs from an engine's /metrics text.

A full parse of vLLM's 50 kB takes milliseconds; this searches for a few names. A gauge has one
series per data-parallel rank (label `engine`): counts are summed, KV usage is the fullest rank's.
"""

import re

from router.core.values import Gauges

__all__ = ["read"]

# A value, and the time that may follow it.
_NUMBER = rb"[ \t]+([0-9.eE+-]+)(?:[ \t]+-?[0-9]+)?[ \t]*\r?$"


def _series(name: bytes, labels: bytes = rb"(?:\{[^\n]*\})?") -> re.Pattern[bytes]:
    return re.compile(rb"^" + name + labels + _NUMBER, re.MULTILINE)


_RUNNING = _series(rb"vllm:num_requests_running")
_WAITING = _series(rb"vllm:num_requests_waiting")
_QUEUED = _series(rb"vllm:num_requests_waiting_by_reason", rb'\{[^\n]*reason="capacity"[^\n]*\}')
_PREEMPTIONS = _series(rb"vllm:num_preemptions_total")
_GENERATED = _series(rb"vllm:generation_tokens_total")
# The second name is vLLM 0.11's; it was gone by 0.13.
_KV_USAGE = _series(rb"vllm:(?:kv|gpu)_cache_usage_perc")
_CACHE_QUERIES = _series(rb"vllm:prefix_cache_queries_total")
_CACHE_HITS = _series(rb"vllm:prefix_cache_hits_total")
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_BLOCK_SIZE = re.compile(rb'\bblock_size="(\d{1,6})"')
_BLOCKS = re.compile(rb'\bnum_gpu_blocks="(\d{1,9})"')


def read(text: bytes) -> Gauges:
    """Read the gauges; one that is missing or unreadable is None."""
    return Gauges(
        running=_sum(_RUNNING, text),
        waiting=_sum(_WAITING, text),
        kv_usage=max(_numbers(_KV_USAGE, text), default=None),
        queued=_sum(_QUEUED, text),
        preemptions=_sum(_PREEMPTIONS, text),
        generated=_sum(_GENERATED, text),
        cache_tokens=_cache_tokens(text),
        cache_queries=_sum(_CACHE_QUERIES, text),
        cache_hits=_sum(_CACHE_HITS, text),
    )


def _cache_tokens(text: bytes) -> int | None:
    """Block size times number of blocks, summed over data-parallel ranks."""
    total = 0
    for labels in _CACHE_CONFIG.findall(text):
        size, blocks = _BLOCK_SIZE.search(labels), _BLOCKS.search(labels)
        if size is not None and blocks is not None:
            total += int(size.group(1)) * int(blocks.group(1))
    return total or None


def _sum(series: re.Pattern[bytes], text: bytes) -> int | None:
    found = _numbers(series, text)
    return int(sum(found)) if found else None


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
