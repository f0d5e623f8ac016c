"""The routes that are forwarded to engines: an explicit list, so that nothing else can reach them.

Routes for an engine's administration (/sleep, /wake_up, /reset_prefix_cache, /collective_rpc,
/v1/load_lora_adapter, ...) are deliberately absent. A path is looked up after percent-decoding, and
the engine request uses the path as spelled here, never as sent by the client.
"""

from router.core.values import Route, RouteKind

__all__ = ["ROUTES"]

_GENERATION = {
    "/v1/chat/completions": RouteKind.CHAT,
    "/v1/completions": RouteKind.COMPLETIONS,
    "/v1/responses": RouteKind.RESPONSES,
    "/v1/messages": RouteKind.MESSAGES,
    "/inference/v1/generate": RouteKind.GENERATE,
}

_UNLIMITED = 1 << 62

_PROMPT_BYTES = 1 << 20
"""Bytes of a text for speech or an image: OpenAI allows 4,096 and 32,000 characters."""

_TEXT_BYTES = 16 << 20
"""Bytes of texts or token ids to tokenize, embed or rank: 2,048 inputs of 2,000 tokens."""

_PASS_THROUGH = (
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/responses/render",
    "/v1/messages/render",
    "/cohere/v2/chat",
    "/cohere/v2/chat/render",
    "/v1/systemone",
    "/v1/decisions",
    "/generative_scoring",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/tokenize",
    "/detokenize",
)

_LESS = {
    **dict.fromkeys(("/v1/audio/speech", "/v1/images/generations"), _PROMPT_BYTES),
    **dict.fromkeys(
        ("/tokenize", "/detokenize", "/rerank", "/v1/rerank", "/v2/rerank"), _TEXT_BYTES
    ),
}
"""Smaller limits of routes without images or audio."""

ROUTES: dict[str, Route] = {
    **{path: Route(path, kind, generates=True) for path, kind in _GENERATION.items()},
    **{
        path: Route(path, RouteKind.PASS_THROUGH, False, _LESS.get(path, _UNLIMITED))
        for path in _PASS_THROUGH
    },
}
"""POST routes by decoded path."""
