"""The rendered overlays, each once per process, and the settings that routers read from them."""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from router.settings import Settings, load
from tests.deploy.places import KUBERNETES
from tests.deploy.rendered import Rendered, render

OVERLAYS = ("disaggregated", "dra", "lmcache", "plain", "production", "gate")

SettingsOf = Callable[[Rendered], Settings]


@functools.cache
def overlay(name: str) -> Rendered:
    """What an overlay comes to."""
    return render(KUBERNETES / "overlays" / name)


@functools.cache
def with_admin_key(name: str) -> Rendered:
    """What an overlay comes to with the component `admin-key`."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        resources, components = (
            [os.path.relpath(KUBERNETES / place, folder)]
            for place in (f"overlays/{name}", "components/admin-key")
        )
        given = {"resources": resources, "components": components}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(given))
        return render(folder)


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
