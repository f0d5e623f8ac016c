"""/metrics: an engine's metrics under vLLM's names, in Prometheus' text format.

Written without a client library, because the names contain a colon and a library would count each
token.
"""

from collections.abc import Mapping, Sequence

from router.simulator.config import EngineConfig
from router.simulator.model.counters import Histogram
from router.simulator.model.machine import Machine

HELP = b"# HELP "
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def render(machine: Machine, config: EngineConfig, *, asleep: bool = False) -> bytes:
    """The page of one engine, or of one of its data-parallel ranks."""
    rank = str(config.data_parallel_start_rank)
    page = _Page({"engine": rank, "model_name": config.model})
    _write_load(page, machine, asleep=asleep)
    _write_tokens(page, machine)
    _write_ends(page, machine)
    if config.connector == "nixl":
        _write_nixl(page, machine)
    for name, histogram in (
        ("time_to_first_token_seconds", machine.counters.to_first_token),
        ("inter_token_latency_seconds", machine.counters.between_tokens),
        ("e2e_request_latency_seconds", machine.counters.whole),
        ("request_queue_time_seconds", machine.counters.queued),
    ):
        page.histogram(name, histogram)
    page.gauge("cache_config_info", {_cache_config(config): 1})
    return page.text()


def merged(pages: Sequence[bytes]) -> bytes:
    """The pages of an engine's ranks as one page: each family once, with the series of all."""
    families = [page.split(HELP)[1:] for page in pages]
    parts = []
    for first, *others in zip(*families, strict=True):
        parts += [HELP, first, *(other.split(b"\n", 2)[2] for other in others)]
    return b"".join(parts)


def selected(page: bytes, names: Sequence[str]) -> bytes:
    """The series with these names."""
    begins = (b"%b{", b"# HELP %b ", b"# TYPE %b ")
    wanted = tuple(begin % name.encode() for name in names for begin in begins)
    return b"".join(line for line in page.splitlines(keepends=True) if line.startswith(wanted))


def _cache_config(config: EngineConfig) -> str:
    """Some of vLLM's labels of the cache configuration."""
    labels = {
        "block_size": config.block_size,
        "enable_prefix_caching": config.prefix_caching,
        "hash_block_size": None,
        "kv_cache_size_tokens": config.block_size * config.total_blocks,
        "mamba_block_size": None,
        "num_cpu_blocks": None,
        "num_gpu_blocks": config.total_blocks,
        "num_gpu_blocks_override": None,
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


class _Page:
    """Lines with common labels."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = ",".join(f'{name}="{value}"' for name, value in labels.items())
        self._lines: list[str] = []

    def gauge(self, name: str, samples: float | Mapping[str, float]) -> None:
        self._series(name, "gauge", name, samples)

    def counter(self, name: str, samples: float | Mapping[str, float]) -> None:
        self._series(f"{name}_total", "counter", name, samples)

    def histogram(self, name: str, histogram: Histogram) -> None:
        self._head(name, "histogram")
        total = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += count
            self._sample(f"{name}_bucket", f'le="{bound}"', total)
        self._sample(f"{name}_count", "", total)
        self._sample(f"{name}_sum", "", histogram.sum)

    def _series(
        self, name: str, kind: str, title: str, samples: float | Mapping[str, float]
    ) -> None:
        self._head(name, kind, title)
        for labels, value in samples.items() if isinstance(samples, Mapping) else [("", samples)]:
            self._sample(name, labels, value)

    def _head(self, name: str, kind: str, title: str | None = None) -> None:
        words = (title or name).replace("_", " ").capitalize()
        self._lines += (f"# HELP vllm:{name} {words}.", f"# TYPE vllm:{name} {kind}")

    def _sample(self, name: str, labels: str, value: float) -> None:
        labels = f"{self._labels},{labels}" if labels else self._labels
        self._lines.append(f"vllm:{name}{{{labels}}} {float(value)}")

    def text(self) -> bytes:
        return "\n".join((*self._lines, "")).encode()


def _by(label: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f'{label}="{name}"': value for name, value in values.items()}


def _write_load(page: _Page, machine: Machine, *, asleep: bool) -> None:
    loading = machine.loading
    page.gauge("num_requests_running", machine.running)
    page.gauge("num_requests_waiting", machine.waiting)
    reasons = {"capacity": machine.waiting - loading, "deferred": loading}
    page.gauge("num_requests_waiting_by_reason", _by("reason", reasons))
    page.gauge("engine_sleep_state", _by("sleep_state", {"awake": not asleep}))
    page.gauge("kv_cache_usage_perc", machine.kv.pool.usage)


def _write_tokens(page: _Page, machine: Machine) -> None:
    counters = machine.counters
    page.counter("prefix_cache_queries", counters.prefix_queries)
    page.counter("prefix_cache_hits", counters.prefix_hits)
    page.counter("external_prefix_cache_queries", counters.external_queries)
    page.counter("external_prefix_cache_hits", counters.external_hits)
    page.counter("num_preemptions", counters.preemptions)
    page.counter("prompt_tokens", counters.prompt)
    sources = {
        "local_compute": counters.computed_here,
        "local_cache_hit": counters.cached_here,
        "external_kv_transfer": counters.external,
    }
    page.counter("prompt_tokens_by_source", _by("source", sources))
    page.counter("prompt_tokens_cached", counters.cached_here + counters.external)
    page.counter("generation_tokens", counters.generated)


_FINISHES = ("stop", "length", "abort", "error", "repetition")


def _write_ends(page: _Page, machine: Machine) -> None:
    finished = {reason: machine.counters.finished[reason] for reason in _FINISHES}
    page.counter("request_success", _by("finished_reason", finished))
    rejected = {"max_num_queued_reqs": machine.counters.rejected, "max_num_queued_tokens": 0}
    page.counter("admission_rejections", _by("reason", rejected))


def _write_nixl(page: _Page, machine: Machine) -> None:
    page.counter("nixl_num_failed_transfers", machine.counters.failed_transfers)
    page.counter("nixl_num_failed_notifications", 0)
    page.counter("nixl_num_kv_expired_reqs", machine.kv.references.expired)
    page.counter("nixl_num_notifications_after_expiry", machine.kv.references.late)
