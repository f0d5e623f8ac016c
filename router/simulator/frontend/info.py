"""Routes other than generation: health, metrics, models, tokenization, and development routes.

Metrics have vLLM's names, in Prometheus' text format. They are written without a client library,
because the names contain a colon and a library would count each token.
"""

from collections.abc import Mapping, Sequence

from router.simulator.api.errors import check_form, not_valid, parse_body
from router.simulator.api.generation_request import read_generation_request
from router.simulator.api.prompts import tokens_of
from router.simulator.config import EngineConfig
from router.simulator.engine import Engine
from router.simulator.frontend.exchange import HttpExchange, Route
from router.simulator.model.language import decode, encode
from router.simulator.model.machine import Machine
from router.simulator.model.sequence import Histogram
from router.simulator.records import Request

HELP = b"# HELP "
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def render(machine: Machine, config: EngineConfig, *, asleep: bool = False) -> bytes:
    """The page of one engine, or of one of its data-parallel ranks."""
    rank = str(config.data_parallel_start_rank)
    page = _Page({"engine": rank, "model_name": config.model})
    _write_load(page, machine, asleep=asleep)
    _write_tokens(page, machine)
    _write_ends(page, machine)
    if config.loras:
        page.gauge("lora_requests_info", _adapters(machine.counters.adapters))
    if config.connector.startswith("nixl"):
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


_MAX_LORAS = 4


def _adapters(seen: Mapping[str, float]) -> dict[str, float]:
    """When each adapter last got a request, as vLLM does when no two of them run at a time."""
    form = 'max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters=""'
    return {form.format(_MAX_LORAS, name): at for name, at in seen.items()}


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


def routes(ranks: Sequence[Engine]) -> dict[tuple[str, str], Route]:
    """Routes by method and path; `ranks` are those of one engine."""
    page = _Info(ranks)
    return {
        ("GET", "/health"): page.health,
        ("GET", "/ping"): page.health,
        ("POST", "/ping"): page.health,
        ("GET", "/version"): page.version,
        ("GET", "/load"): page.load,
        ("GET", "/kv_event_sources"): page.kv_event_sources,
        ("GET", "/query"): page.query,
        ("GET", "/metrics"): page.metrics,
        ("GET", "/metrics/"): page.metrics,
        ("GET", "/v1/models"): page.models,
        ("POST", "/v1/load_lora_adapter"): page.load_adapter,
        ("POST", "/tokenize"): page.tokenize,
        ("POST", "/detokenize"): page.detokenize,
        ("POST", "/v1/messages/count_tokens"): page.count_tokens,
        ("GET", "/is_sleeping"): page.is_sleeping,
        ("POST", "/sleep"): page.sleep,
        ("POST", "/wake_up"): page.wake_up,
        ("POST", "/reset_prefix_cache"): page.reset_prefix_cache,
    }


class _Info:
    def __init__(self, ranks: Sequence[Engine]) -> None:
        self._ranks = ranks
        self._engine = ranks[0]
        self._config = self._engine.config

    async def health(self, exchange: HttpExchange, _request: Request) -> None:
        """Alive, but not necessarily able to serve: vLLM answers 200 also when asleep or full."""
        is_dead = any(rank.machine.dead for rank in self._ranks)
        await exchange.answer(503 if is_dead else 200, b"", None)

    async def version(self, exchange: HttpExchange, _request: Request) -> None:
        await exchange.json({"version": self._config.version})

    async def load(self, exchange: HttpExchange, _request: Request) -> None:
        machines = [rank.machine for rank in self._ranks]
        load = sum(machine.running + machine.waiting for machine in machines)
        await exchange.json({"server_load": load})

    async def kv_event_sources(self, exchange: HttpExchange, _request: Request) -> None:
        first, *others = (rank.events.sources for rank in self._ranks)
        for other in others:
            first = first | other if isinstance(first, dict) else first + other
        await exchange.json(first)

    async def query(self, exchange: HttpExchange, _request: Request) -> None:
        """Mooncake's bootstrap server; a real one has a port of its own."""
        if self._config.connector != "mooncake" or self._config.role == "decode":
            await exchange.json({"detail": "Not Found"}, 404)
            return
        addresses = [rank.machine.kv.references.address for rank in self._ranks]
        await exchange.json(
            {
                str(place): {
                    "engine_id": rank.engine_id,
                    "worker_addr": {"0": {"0": f"http://{host}:{port}"}},
                }
                for place, (rank, (host, port)) in enumerate(
                    zip(self._ranks, addresses, strict=True)
                )
            }
        )

    async def metrics(self, exchange: HttpExchange, request: Request) -> None:
        pages = []
        for rank in self._ranks:
            rank.machine.kv.references.expire(rank.driver.now())
            page = render(rank.machine, rank.config, asleep=rank.driver.asleep)
            pages.append(page)
        whole = merged(pages)
        # As in vLLM, only the path with a slash looks at the query.
        names = exchange.query.get("name[]") if request.path.endswith("/") else None
        text = whole if names is None else selected(whole, names)
        await exchange.answer(200, text, CONTENT_TYPE)

    async def models(self, exchange: HttpExchange, _request: Request) -> None:
        cards = [self._card(model) for model in self._config.models]
        await exchange.json({"object": "list", "data": cards})

    async def load_adapter(self, exchange: HttpExchange, request: Request) -> None:
        name = str(parse_body(request.headers, request.raw)["lora_name"])
        self._engine.load_adapter(name)
        text = f"Success: LoRA adapter '{name}' added successfully."
        await exchange.answer(200, text.encode(), "text/plain; charset=utf-8")

    def _card(self, model: str) -> dict[str, object]:
        is_base, created = model == self._config.model, self._engine.started
        permission = {
            "id": f"modelperm-{model}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": f"/models/{model}",
            "parent": None if is_base else self._config.model,
            "max_model_len": self._config.max_model_len if is_base else None,
            "permission": [permission],
        }

    async def tokenize(self, exchange: HttpExchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        check_form(body, "messages" if "messages" in body else "prompt")
        tokens = tokens_of(body) if "messages" in body else encode(str(body["prompt"]))
        strings = [decode([token]) for token in tokens] if body.get("return_token_strs") else None
        limit = self._config.max_model_len
        answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens}
        await exchange.json({**answer, "token_strs": strings})

    async def detokenize(self, exchange: HttpExchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        check_form(body, "tokens")
        tokens = body["tokens"]
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise not_valid("list_type", "body.tokens", "Input should be a valid list", tokens)
        await exchange.json({"prompt": decode(tokens)})

    async def count_tokens(self, exchange: HttpExchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        asked = read_generation_request("messages", body, self._config)
        count = len(asked.prompts[0])
        context = {"original_input_tokens": count}
        await exchange.json({"input_tokens": count, "context_management": context})

    # Only with VLLM_SERVER_DEV_MODE=1; a router must not forward these.

    async def is_sleeping(self, exchange: HttpExchange, _request: Request) -> None:
        await exchange.json({"is_sleeping": self._engine.driver.asleep})

    async def sleep(self, exchange: HttpExchange, _request: Request) -> None:
        """As `level=1` with `mode=abort`: what runs ends with status 200."""
        for rank in self._ranks:
            rank.driver.sleep()
        await exchange.answer(200, b"", None)

    async def wake_up(self, exchange: HttpExchange, _request: Request) -> None:
        for rank in self._ranks:
            rank.driver.asleep = False
            rank.driver.wake()
        await exchange.answer(200, b"", None)

    async def reset_prefix_cache(self, exchange: HttpExchange, _request: Request) -> None:
        self._engine.machine.kv.pool.forget_prefixes()
        self._engine.events.flush()
        await exchange.answer(200, b"", None)
