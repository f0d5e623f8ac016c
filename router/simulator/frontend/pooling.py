"""Embeddings, classes, scores and ranks: numbers that depend only on the model and the texts.

Shapes of vLLM 0.32. A real engine serves one kind of them, a simulated one serves all.
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4
from zlib import crc32

from router.simulator.api.errors import bad_request, check_form, no_model, not_valid, parse_body
from router.simulator.engine import Engine
from router.simulator.frontend.exchange import HttpExchange, Route
from router.simulator.model.language import encode
from router.simulator.records import Request

Body = Mapping[str, Any]

_DIMENSIONS = 8


def routes(engine: Engine) -> dict[tuple[str, str], Route]:
    """Routes by method and path."""
    return {("POST", path): _route(engine, answer) for path, answer in _ANSWERS.items()}


def _route(engine: Engine, answer: "_Answer") -> Route:
    async def handle(exchange: HttpExchange, request: Request) -> None:
        body = parse_body(request.headers, request.raw)
        model = body.get("model") or engine.config.model
        if model not in engine.config.models:
            raise no_model(model, engine.config.models)
        document = {"model": model, **answer(model, body)}
        if "object" in document:
            document["created"] = engine.wall_clock()
        await exchange.json(document)

    return handle


def _embeddings(model: str, body: Body) -> dict[str, Any]:
    size = body.get("dimensions") or _DIMENSIONS

    def embedding(text: str) -> object:
        vector = _numbers(model + text, size)
        if body.get("encoding_format") == "base64":
            return b64encode(struct.pack(f"<{size}f", *vector)).decode()
        return vector

    texts = _texts(body, "input")
    data = [{"object": "embedding", "embedding": embedding(text)} for text in texts]
    return _list("embd", data, texts)


def _pooling(model: str, body: Body) -> dict[str, Any]:
    texts = _texts(body, "input")
    data = [{"object": "pooling", "data": _numbers(model + text, _DIMENSIONS)} for text in texts]
    return _list("pooling", data, texts)


def _classify(model: str, body: Body) -> dict[str, Any]:
    def classes(text: str) -> dict[str, Any]:
        (number,) = _numbers(model + text, 1)
        probs = [(1 + number) / 2, (1 - number) / 2]
        return {"label": f"LABEL_{int(number < 0)}", "probs": probs, "num_classes": 2}

    texts = _texts(body, "input")
    return _list("classify", [classes(text) for text in texts], texts)


def _score(model: str, body: Body) -> dict[str, Any]:
    names = next((pair for pair in _PAIRS if pair[0] in body and pair[1] in body), _PAIRS[0])
    one, other = (_texts(body, name) for name in names)
    first = one * len(other) if len(one) == 1 else one
    if len(first) != len(other):
        raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
    pairs = zip(first, other, strict=True)
    data = [{"object": "score", "score": _similarity(model, *pair)} for pair in pairs]
    return _list("score", data, [*one, *other])


_PAIRS = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


def _rerank(model: str, body: Body) -> dict[str, Any]:
    (query,), documents = _texts(body, "query"), _texts(body, "documents")
    results = [
        {
            "index": index,
            "document": {"text": text, "multi_modal": None},
            "relevance_score": _similarity(model, query, text),
        }
        for index, text in enumerate(documents)
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    tokens = _tokens([query, *documents])
    return {
        "id": f"score-{uuid4().hex[:16]}",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results[: body.get("top_n") or len(results)],
    }


_Answer = Callable[[str, Body], dict[str, Any]]
_ANSWERS: Mapping[str, _Answer] = {
    "/v1/embeddings": _embeddings,
    "/pooling": _pooling,
    "/classify": _classify,
    **dict.fromkeys(("/score", "/v1/score"), _score),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _rerank),
}


def _texts(body: Body, name: str) -> list[str]:
    """The texts of a field: one, several, or token ids of one or several."""
    check_form(body, name)
    given = body[name]
    is_one = not isinstance(given, list) or (given and isinstance(given[0], int))
    texts = [given] if is_one else given
    if not all(isinstance(text, str | list) for text in texts):
        raise not_valid("string_type", f"body.{name}", "Input should be a valid string", given)
    return [str(text) for text in texts]


def _list(prefix: str, data: list[dict[str, Any]], texts: list[str]) -> dict[str, Any]:
    tokens = _tokens(texts)
    return {
        "id": f"{prefix}-{uuid4().hex[:16]}",
        "object": "list",
        "data": [{"index": index, **item} for index, item in enumerate(data)],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }


def _tokens(texts: list[str]) -> int:
    return sum(len(encode(text)) for text in texts)


def _numbers(text: str, count: int) -> list[float]:
    """Numbers from -1 to 1."""
    return [crc32(f"{place}{text}".encode()) / 0xFFFFFFFF * 2 - 1 for place in range(count)]


def _similarity(model: str, one: str, other: str) -> float:
    """Mostly the share of words that are in the other text too: plausible ranks."""
    words, others = ({*text.lower().split()} for text in (one, other))
    (noise,) = _numbers(f"{model}{one}\0{other}", 1)
    return 0.9 * len(words & others) / max(1, len(words)) + 0.05 * (noise + 1)
