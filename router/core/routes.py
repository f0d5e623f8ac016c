"""The routes that reach an engine: an explicit list, so that nothing else can.

An engine's administration (/sleep, /wake_up, /reset_prefix_cache, /collective_rpc,
/v1/load_lora_adapter, ...) is absent on purpose. A path is looked up after percent-decoding and
the engine is asked for the path as spelled here, never as the client spelled it.
"""

from router.core.values import Route, RouteKind

__all__ = ["ROUTES"]

_GENERATION = {
    "/v1/chat/completions": RouteKind.CHAT,
    "/v1/completions": RouteKind.COMPLETIONS,
    "/v1/responses": RouteKind.RESPONSES,
    "/v1/messages": RouteKind.MESSAGES,
}

_UNLIMITED = 1 << 62

_PROMPT_BYTES = 1 << 20
"""A text of which speech or an image is made: OpenAI takes 4,096 and 32,000 characters."""

_TEXT_BYTES = 16 << 20
"""Texts to tokenize, embed or rank, or token ids: 2,048 inputs of 2,000 tokens."""

_PASS_THROUGH = (
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
"""Routes that take no images or recordings."""

ROUTES: dict[str, Route] = {
    **{path: Route(path, kind, generates=True) for path, kind in _GENERATION.items()},
    **{
        path: Route(path, RouteKind.PASS_THROUGH, False, _LESS.get(path, _UNLIMITED))
        for path in _PASS_THROUGH
    },
}
"""POST routes by decoded path."""
