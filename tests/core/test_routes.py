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
        "/inference/v1/abort_requests",
        "/v1/chat/completions/",
        "/",
        "",
    ],
)
def test_nothing_else_reaches_an_engine(path: str) -> None:
    assert path not in ROUTES


def test_five_routes_generate() -> None:
    assert sorted(path for path, route in ROUTES.items() if route.generates) == [
        "/inference/v1/generate",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    ]


VLLM = {
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/completions/render"),
    *("/v1/chat/completions/derender", "/v1/completions/derender", "/v1/messages/render"),
    *("/v1/responses/render", "/v1/messages/count_tokens", "/cohere/v2/chat"),
    *("/cohere/v2/chat/render", "/generative_scoring", "/inference/v1/generate", "/invocations"),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank"),
    *("/v1/rerank", "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/tokenize", "/detokenize", "/v1/systemone", "/v1/decisions", "/v1/realtime"),
    *("/v1/models", "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"),
    *("/health", "/ping", "/ready", "/readyz", "/load", "/version", "/docs", "/static"),
    *("/is_sleeping", "/sleep", "/wake_up", "/release_kv_cache_memory", "/server_info"),
    *("/abort_requests", "/inference/v1/abort_requests", "/pause", "/resume", "/is_paused"),
    *("/collective_rpc", "/start_profile", "/stop_profile", "/tokenizer_info"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/kv_event_sources"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/get_world_size", "/weight_info"),
    *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/weight_checker"),
    *("/start_weight_update", "/start_draft_weight_update", "/finish_weight_update"),
    *("/update_weights", "/update_weight_version", "/fault_tolerance/apply"),
    *("/fault_tolerance/status", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
}
"""All routes of vLLM 0.33 (vllm/entrypoints)."""

ADMINISTRATION = {
    *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/server_info", "/load"),
    *("/pause", "/resume", "/is_paused", "/collective_rpc", "/start_profile", "/stop_profile"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/kv_event_sources"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/get_world_size", "/weight_info"),
    *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/weight_checker"),
    *("/start_weight_update", "/start_draft_weight_update", "/finish_weight_update"),
    *("/update_weights", "/update_weight_version", "/fault_tolerance/apply"),
    *("/fault_tolerance/status", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    *("/abort_requests", "/inference/v1/abort_requests"),  # of any client
}
LEFT_OUT = {
    **dict.fromkeys(ADMINISTRATION, "administers an engine"),
    **dict.fromkeys(("/health", "/ready", "/version", "/docs", "/v1/models"), "the router's own"),
    **dict.fromkeys(("/ping", "/readyz", "/static"), "other names of these, or their files"),
    "/invocations": "SageMaker's name for several of the others",
    "/tokenizer_info": "the whole tokenizer of the first engine: a download",
    "/v1/realtime": "a WebSocket",
    "/v1/responses/{response_id}": "in web/stored_responses.py",
    "/v1/responses/{response_id}/cancel": "in web/stored_responses.py",
}
OTHERS = {"/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"}
"""Of vLLM-Omni."""


def test_each_difference_to_vllms_routes_has_a_reason() -> None:
    assert VLLM - ROUTES.keys() == LEFT_OUT.keys()
    assert ROUTES.keys() - VLLM == OTHERS
