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
