"""Reads the few gauges that routing needs from an engine's /metrics page (Prometheus text format).

All of vLLM's page is 50 kB, which the engine writes and this process would parse for milliseconds:
it is asked for these series only, and searched for their names. There is one series per
data-parallel rank (label `engine`): counts are added, and the KV usage is that of the fullest rank.

SGLang, TensorRT-LLM and llama.cpp have the same gauges by other names (sources: docs/engines.md).
Their counters of tokens are not read: they grow when a request ends, and speed is measured by
tokens as they are generated.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from router.core.values import Gauges

__all__ = ["PAGES", "SERIES", "of_rank", "ranks", "read", "shortened"]

MAX_SERIES: Final = 4096
"""Most lines that are parsed: those of 400 data-parallel ranks. A limit, because an engine may send
anything."""

MAX_LORA_SERIES: Final = 64
"""Newest series of LoRA adapters that are kept: enough to name as many adapters as there is room
for."""

_NAMES: Final = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason"),
    *("num_preemptions_total", "generation_tokens_total", "request_success_total"),
    *("kv_cache_usage_perc", "gpu_cache_usage_perc", "cache_config_info"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total", "engine_sleep_state"),
    "lora_requests_info",
)

PAGES: Final = (
    "/metrics/?" + "&".join(f"name[]=vllm:{name}" for name in _NAMES),
    "/prometheus/metrics",
    "/metrics",
)
"""Paths in the order in which they are tried. The first one asks vLLM for these series only, by a
parameter of Prometheus' client library, which vLLM heeds behind a slash. An engine's API server
takes 2.5 ms for them and 12 ms for all, during which its streams wait (docs/tuning.md).
TensorRT-LLM's comes before /metrics, which is a queue there that every reader empties."""

_ELSEWHERE: Final = {
    b"sglang:num_running_reqs": b"num_requests_running",
    b"sglang:num_queue_reqs": b"num_requests_waiting",
    b"sglang:token_usage": b"kv_cache_usage_perc",
    b"sglang:max_total_num_tokens": b"max_total_num_tokens",
    b"sglang:num_requests_total": b"request_success_total",
    b"trtllm_num_requests_running": b"num_requests_running",
    b"trtllm_num_requests_waiting": b"num_requests_waiting",
    b"trtllm_kv_cache_utilization": b"kv_cache_usage_perc",
    b"trtllm_request_success_total": b"request_success_total",
    b"llamacpp:requests_processing": b"num_requests_running",
    b"llamacpp:requests_deferred": b"num_requests_waiting",
    b"llamacpp:kv_cache_usage_ratio": b"kv_cache_usage_perc",
}
"""The series of other engines, with vLLM's names for the same."""

SERIES: Final = {b"vllm:" + name.encode(): name.encode() for name in _NAMES} | _ELSEWHERE
"""vLLM's name without its prefix, for each series that is read."""

# A line of one of the series, with labels, value and perhaps a timestamp. The line is then taken
# apart by searches without backtracking: patterns that backtrack take minutes for a malicious line.
_LINE: Final = re.compile(rb"^(%b)([{ \t][^\n]*)$" % b"|".join(SERIES), re.MULTILINE)
_NUMBER: Final = re.compile(rb"[0-9.eE+-]+")
_TIME: Final = re.compile(rb"-?[0-9]+")
_BLOCK_SIZE: Final = re.compile(rb'\bblock_size="(\d{1,6})"')
_BLOCKS: Final = re.compile(rb'\bnum_gpu_blocks="(\d{1,9})"')

_LABEL: Final = {
    b"num_requests_waiting_by_reason": b'reason="capacity"',
    b"engine_sleep_state": b'sleep_state="awake"',
}
"""The label of the series that counts, where only one of them does."""

_MAX_LORA: Final = re.compile(rb'\bmax_lora="(\d{1,3})"')
_LISTED_LORAS: Final = re.compile(rb'\brunning_lora_adapters="([^"]*)"')
_LORA_NAME: Final = b"\nvllm:lora_requests_info{"
_LORA_SERIES: Final = re.compile(
    rb"(" + _LORA_NAME + rb"[^\n]*\} (\d{1,20}(?:\.\d{1,20})?(?:e\+\d{1,3})?))(?=\n)"
)

_PRIORITY: Final = re.compile(rb'\bpriority="[^"]')
"""A part of a sum that SGLang reports too, in a series without a priority."""

MAX_RANKS: Final = 256
"""Of one engine. Each rank takes one of the fleet's endpoints (roster.MAX_ENDPOINTS), of which a
page must not take all. Several times the largest data-parallel deployments of vLLM."""

_RANK: Final = re.compile(rb'^vllm:num_requests_running\{[^\n}]*\bengine="(\d{1,4})"', re.MULTILINE)
Samples = Mapping[bytes, Sequence[float]]


def read(text: bytes) -> Gauges:
    """Read the gauges. A missing or unreadable one is None."""
    found: dict[bytes, list[float]] = {}
    loras: list[tuple[float, bytes]] = []
    cache_tokens = block_tokens = 0
    for line in islice(_LINE.finditer(shortened(text)), MAX_SERIES):
        name, rest = SERIES[line.group(1)], line.group(2)
        labels, _, value = rest.rpartition(b"}")
        if name == b"cache_config_info":
            size, blocks = _number_in(labels, _BLOCK_SIZE), _number_in(labels, _BLOCKS)
            cache_tokens += size * blocks
            block_tokens = max(block_tokens, size)
        elif _LABEL.get(name, b"") in labels and not _PRIORITY.search(labels):
            number = _number(labels, value)
            if number is not None and name == b"lora_requests_info":
                loras.append((number, labels))
            elif number is not None:
                found.setdefault(name, []).append(number)
    usage = [
        # The second name is vLLM 0.11's; it was removed by 0.13.
        *found.get(b"kv_cache_usage_perc", ()),
        *found.get(b"gpu_cache_usage_perc", ()),
    ]
    adapters, are_full = _adapters(loras) if loras else ((), False)
    return Gauges(
        running=_sum(found, b"num_requests_running"),
        waiting=_sum(found, b"num_requests_waiting"),
        kv_usage=max(usage, default=None),
        queued=_sum(found, b"num_requests_waiting_by_reason"),
        preemptions=_sum(found, b"num_preemptions_total"),
        generated=_sum(found, b"generation_tokens_total"),
        cache_tokens=cache_tokens or _sum(found, b"max_total_num_tokens") or None,
        cache_queries=_sum(found, b"prefix_cache_queries_total"),
        cache_hits=_sum(found, b"prefix_cache_hits_total"),
        block_tokens=block_tokens or None,
        finished=_sum(found, b"request_success_total"),
        is_asleep=0.0 in found.get(b"engine_sleep_state", ()),
        adapters=adapters,
        adapters_are_full=are_full,
    )


def _adapters(seen: list[tuple[float, bytes]]) -> tuple[tuple[str, ...], bool]:
    """`Gauges.adapters` and `adapters_are_full`. vLLM writes a series for each list of adapters
    with requests, and its value is when that was last so. Its labels for running and for waiting
    ones both name all of these."""
    newest_first = [labels for _, labels in sorted(seen, reverse=True)]
    room = _number_in(newest_first[0], _MAX_LORA)
    names: dict[str, None] = {}
    in_use = 0
    for labels in newest_first:
        if len(names) >= room:
            break
        listed = _LISTED_LORAS.search(labels)
        if listed is not None and listed.group(1):
            names |= dict.fromkeys(listed.group(1).decode(errors="replace").split(","))
        if labels is newest_first[0]:
            in_use = len(names)
    return tuple(names)[:room], in_use >= room > 0


def shortened(text: bytes) -> bytes:
    """The page without old series of LoRA adapters, of which vLLM removes none: with 50 adapters it
    has 15,000 after an hour. An incomplete line at the end stays there."""
    if text.count(_LORA_NAME) <= MAX_LORA_SERIES:
        return text
    before, *found = _LORA_SERIES.split(text)
    times = map(float, found[1::3])
    newest = sorted(zip(times, found[::3], strict=True))[-MAX_LORA_SERIES:]
    return b"".join((before, *(series for _, series in newest), *found[2::3]))


def ranks(text: bytes) -> tuple[int, ...]:
    """The data-parallel ranks on the page; none if they are more than MAX_RANKS."""
    found = {int(rank) for rank in _RANK.findall(text)}
    return tuple(sorted(found)) if len(found) <= MAX_RANKS else ()


def of_rank(text: bytes, rank: int) -> bytes:
    """The lines of one data-parallel rank."""
    label = b'engine="%d"' % rank
    return b"\n".join(line for line in text.split(b"\n") if label in line)


def _number_in(labels: bytes, label: re.Pattern[bytes]) -> int:
    """The number in a label; 0 without the label."""
    found = label.search(labels)
    return 0 if found is None else int(found.group(1))


def _sum(found: Samples, name: bytes) -> int | None:
    values = found.get(name)
    return int(sum(values)) if values else None


def _number(labels: bytes, value: bytes) -> float | None:
    """The value of a series, which may be followed by a timestamp. None if it is not a usable
    number."""
    if labels and not labels.startswith(b"{"):
        return None
    words = value.split(maxsplit=2)
    if not 1 <= len(words) <= 2 or not _NUMBER.fullmatch(words[0]):
        return None
    if len(words) == 2 and not _TIME.fullmatch(words[1]):
        return None
    try:
        number = float(words[0])
    except ValueError:
        return None
    return number if 0 <= number < 1e12 else None  # excludes infinity too
