"""Routes other than generation: health, metrics, models, tokenization, and development routes."""

from collections.abc import Sequence

from router.simulator.api.errors import not_valid
from router.simulator.api.fields import check_form, parse_body
from router.simulator.api.generation_request import read_generation_request, tokens_of
from router.simulator.engine import Engine
from router.simulator.frontend import exposition
from router.simulator.frontend.exchange import Exchange, Route
from router.simulator.model.tokenizer import decode, encode
from router.simulator.records import Request


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
        ("GET", "/metrics"): page.metrics,
        ("GET", "/metrics/"): page.metrics,
        ("GET", "/v1/models"): page.models,
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

    async def health(self, exchange: Exchange, _request: Request) -> None:
        """Alive, but not necessarily able to serve: vLLM answers 200 also when asleep or full."""
        is_dead = any(rank.machine.dead for rank in self._ranks)
        await exchange.answer(503 if is_dead else 200, b"", None)

    async def version(self, exchange: Exchange, _request: Request) -> None:
        await exchange.json({"version": self._config.version})

    async def load(self, exchange: Exchange, _request: Request) -> None:
        machines = [rank.machine for rank in self._ranks]
        load = sum(machine.running + machine.waiting for machine in machines)
        await exchange.json({"server_load": load})

    async def kv_event_sources(self, exchange: Exchange, _request: Request) -> None:
        first, *others = (rank.events.sources for rank in self._ranks)
        for other in others:
            first = first | other if isinstance(first, dict) else first + other
        await exchange.json(first)

    async def metrics(self, exchange: Exchange, request: Request) -> None:
        pages = []
        for rank in self._ranks:
            rank.machine.kv.references.expire(rank.driver.now())
            page = exposition.render(rank.machine, rank.config, asleep=rank.driver.asleep)
            pages.append(page)
        whole = exposition.merged(pages)
        # As in vLLM, only the path with a slash looks at the query.
        names = exchange.query.get("name[]") if request.path.endswith("/") else None
        text = whole if names is None else exposition.selected(whole, names)
        await exchange.answer(200, text, exposition.CONTENT_TYPE)

    async def models(self, exchange: Exchange, _request: Request) -> None:
        cards = [self._card(model) for model in self._config.models]
        await exchange.json({"object": "list", "data": cards})

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

    async def tokenize(self, exchange: Exchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        check_form(body, "messages" if "messages" in body else "prompt")
        tokens = tokens_of(body) if "messages" in body else encode(str(body["prompt"]))
        strings = [decode([token]) for token in tokens] if body.get("return_token_strs") else None
        limit = self._config.max_model_len
        answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens}
        await exchange.json({**answer, "token_strs": strings})

    async def detokenize(self, exchange: Exchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        check_form(body, "tokens")
        tokens = body["tokens"]
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise not_valid("list_type", "body.tokens", "Input should be a valid list", tokens)
        await exchange.json({"prompt": decode(tokens)})

    async def count_tokens(self, exchange: Exchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        asked = read_generation_request("messages", body, self._config)
        count = len(asked.prompts[0])
        context = {"original_input_tokens": count}
        await exchange.json({"input_tokens": count, "context_management": context})

    # Only with VLLM_SERVER_DEV_MODE=1; a router must not forward these.

    async def is_sleeping(self, exchange: Exchange, _request: Request) -> None:
        await exchange.json({"is_sleeping": self._engine.driver.asleep})

    async def sleep(self, exchange: Exchange, _request: Request) -> None:
        self._engine.driver.asleep = True
        await exchange.answer(200, b"", None)

    async def wake_up(self, exchange: Exchange, _request: Request) -> None:
        self._engine.driver.asleep = False
        self._engine.driver.wake()
        await exchange.answer(200, b"", None)

    async def reset_prefix_cache(self, exchange: Exchange, _request: Request) -> None:
        self._engine.machine.kv.pool.forget_prefixes()
        self._engine.events.flush()
        await exchange.answer(200, b"", None)
