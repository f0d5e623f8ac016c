"""The rendered overlays, each once per process, and the settings that routers read from them."""

import functools
from collections.abc import Callable

import pytest

from router.settings import Settings, load
from tests.deploy.places import KUBERNETES
from tests.deploy.rendered import Rendered, render

OVERLAYS = ("disaggregated", "dra", "lmcache", "plain", "production", "gate")

SettingsOf = Callable[[Rendered], Settings]


@functools.cache
def overlay(name: str) -> Rendered:
    """What an overlay comes to."""
    return render(KUBERNETES / "overlays" / name)


@pytest.fixture
def disaggregated() -> Rendered:
    """Prefill and decode engines."""
    return overlay("disaggregated")


@pytest.fixture
def plain() -> Rendered:
    """Whole engines."""
    return overlay("plain")


@pytest.fixture(params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    """Each of them."""
    return overlay(request.param)


@pytest.fixture(params=["disaggregated", "dra", "lmcache", "production"])
def two_pools(request: pytest.FixtureRequest) -> Rendered:
    """Each with prefill and decode engines."""
    return overlay(request.param)


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch, no_settings: None) -> SettingsOf:
    """Reads the router's settings as its pods would: from the environment that they get."""

    def read(rendered: Rendered) -> Settings:
        for name, value in rendered.configuration(rendered.router).items():
            monkeypatch.setenv(name, value)
        return load({})

    return read
