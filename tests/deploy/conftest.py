"""The rendered overlays, each once per session, and the settings that routers read from them."""

import os
from collections.abc import Callable

import pytest

from router.settings import ENV_PREFIX, Settings, load
from tests.deploy.places import KUBERNETES
from tests.deploy.rendered import Rendered, render

NAMED = ("disaggregated", "plain")
"""Overlays in which the router knows its engines by URL."""

OVERLAYS = (*NAMED, "discovery")

SettingsOf = Callable[[Rendered], Settings]


@pytest.fixture(scope="session")
def disaggregated() -> Rendered:
    """Prefill and decode engines."""
    return render(KUBERNETES / "overlays" / "disaggregated")


@pytest.fixture(scope="session")
def plain() -> Rendered:
    """Whole engines."""
    return render(KUBERNETES / "overlays" / "plain")


@pytest.fixture(scope="session")
def discovery() -> Rendered:
    """Prefill and decode engines that are found by their labels."""
    return render(KUBERNETES / "overlays" / "discovery")


@pytest.fixture(params=NAMED)
def named(request: pytest.FixtureRequest) -> Rendered:
    """Each in which engines are named."""
    overlay: Rendered = request.getfixturevalue(request.param)
    return overlay


@pytest.fixture(params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    """Each of them."""
    overlay: Rendered = request.getfixturevalue(request.param)
    return overlay


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> SettingsOf:
    """Reads the router's settings as its pods would: from the environment that they get."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)

    def read(rendered: Rendered) -> Settings:
        for name, value in rendered.configuration(rendered.router).items():
            monkeypatch.setenv(name, value)
        return load({})

    return read
