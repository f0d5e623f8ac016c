"""/v1/embeddings: a short vector that depends only on model and input."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4
from zlib import crc32

from router.simulator.api.errors import no_model
from router.simulator.config import EngineConfig
from router.simulator.model.tokenizer import encode

_DIMENSIONS = 8


def embed(body: Mapping[str, Any], config: EngineConfig, created: int) -> dict[str, Any]:
    """The response. Raises ApiError for an unknown model."""
    model = body.get("model") or config.model
    if model not in config.models:
        raise no_model(model, config.models)
    given = body["input"]
    texts = given if isinstance(given, list) else [given]
    tokens = sum(len(encode(str(text))) for text in texts)
    vectors = [
        {"index": index, "object": "embedding", "embedding": _vector(model, str(text))}
        for index, text in enumerate(texts)
    ]
    return {
        "id": f"embd-{uuid4().hex[:16]}",
        "object": "list",
        "created": created,
        "model": model,
        "data": vectors,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


def _vector(model: str, text: str) -> list[float]:
    numbers = [crc32(f"{place}{model}{text}".encode()) for place in range(_DIMENSIONS)]
    return [number / 0xFFFFFFFF * 2 - 1 for number in numbers]
