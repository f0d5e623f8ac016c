"""The list of routes to engines is short, and has no administration."""

import pytest

from router.core.routes import ROUTES


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_the_engine_gets_the_listed_path(path: str) -> None:
    assert ROUTES[path].path == path


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/resume",
        "/invocations",
        "/metrics",
        "/health",
        "/inference/v1/generate",
        "/v1/chat/completions/",
        "/",
        "",
    ],
)
def test_nothing_else_reaches_an_engine(path: str) -> None:
    assert path not in ROUTES


def test_four_routes_generate() -> None:
    assert sorted(path for path, route in ROUTES.items() if route.generates) == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    ]


VLLM = {
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/completions/render"),
    *("/v1/chat/completions/derender", "/v1/completions/derender", "/v1/messages/render"),
    *("/v1/responses/render", "/v1/responses/{response_id}/cancel", "/v1/messages/count_tokens"),
    *("/cohere/v2/chat", "/generative_scoring", "/inference/v1/generate", "/invocations"),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank"),
    *("/v1/rerank", "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/tokenize", "/detokenize", "/v1/systemone", "/ping"),
}
"""The POST routes of vLLM 0.32 that are no administration."""

LEFT_OUT = {
    "/inference/v1/generate": "its sampling_params.extra_args can name a KV reference",
    "/invocations": "SageMaker's name for several of the others",
    "/ping": "SageMaker's health; that of the router is /health",
    "/v1/chat/completions/derender": "turns tokens into text, for routers that tokenize",
    "/v1/completions/derender": "turns tokens into text, for routers that tokenize",
    "/v1/messages/render": "no public request for it is known",
    "/v1/responses/render": "no public request for it is known",
    "/v1/responses/{response_id}/cancel": "in web/stored_responses.py",
    "/v1/systemone": "no public request for it is known",
}
OTHERS = {"/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"}
"""Of vLLM-Omni."""


def test_each_difference_to_vllms_routes_has_a_reason() -> None:
    assert VLLM - ROUTES.keys() == LEFT_OUT.keys()
    assert ROUTES.keys() - VLLM == OTHERS
