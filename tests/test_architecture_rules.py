"""The rules of `tests/architecture.py` find violations."""

import pytest

from tests.architecture import (
    Module,
    cycle,
    globals_of,
    impure,
    mutable_state,
    packages,
    past_the_public_api,
    tasks,
    wrong_layer,
)


def code(source: str, name: str = "router.core.x") -> Module:
    """A module that was never written."""
    return Module(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("router.core.x", "from router.net import pool"),
        ("router.core.x", "import router.settings"),
        ("router.net.x", "from router.telemetry.metrics import Metrics"),
        ("router.net.x", "def f():\n    from router.settings import Settings"),
        ("router.settings", "from router.simulator import engine"),
        ("router.settings.values", "from router.net import pool"),
        (
            "router.simulator.x",
            "if TYPE_CHECKING:\n    from router.net.engine.pool import EnginePool",
        ),
        ("router.telemetry.x", "from router.web.app import Router"),
        ("router.web.x", "import router.cli"),
        ("router", "from router.core import urls"),
    ],
)
def test_an_import_from_beside_or_above_is_caught(name: str, source: str) -> None:
    assert wrong_layer(code(source, name))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("router.core.x", "from router.core.plans import steps"),
        (
            "router.net.x",
            "from router.core.values import Role\nfrom router.net.engine.pool import P",
        ),
        ("router.settings", "from router.core.urls import origin"),
        ("router.web.x", "from router.net.engine.pool import P\nfrom router import __version__"),
        ("router.cli", "from router.web.app import Router\nfrom router.commands import demo"),
        ("router.telemetry.x", "import prometheus_client"),
    ],
)
def test_an_import_from_below_is_fine(name: str, source: str) -> None:
    assert wrong_layer(code(source, name)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os.path",
        "from time import monotonic",
        "import random",
        "from random import random",
        "from random import choice, Random",
        "def f():\n    import logging",
        "from concurrent.futures import Future",
        "import urllib.request",
        "from urllib import request",
        "import prometheus_client",
        "from datetime import datetime",
        "import uuid",
    ],
)
def test_an_impure_import_is_caught(source: str) -> None:
    assert impure(code(source))


def test_a_random_source_may_be_named() -> None:
    assert (
        impure(code("from random import Random\nimport orjson, json.decoder, urllib.parse")) == []
    )


@pytest.mark.parametrize(
    "source", ["async def f():\n    pass", "async def f():\n    async with x:\n        await y"]
)
def test_a_coroutine_is_caught(source: str) -> None:
    assert tasks(code(source))


def test_a_global_is_caught() -> None:
    assert globals_of(code("def f():\n    global x, y\n    x = 1")) == ["x", "y"]


@pytest.mark.parametrize(
    "source",
    [
        "SEEN = {}",
        "SEEN: dict[str, int] = {}",
        "SEEN = set()",
        "SEEN = []",
        "SEEN = defaultdict(list)",
        "SEEN = deque(maxlen=5)",
        "TABLE = {1: 2}\ndef f():\n    TABLE[3] = 4",
        "TABLE = {1: 2}\ndef f():\n    del TABLE[1]",
        "TABLE = {1: 2}\ndef f():\n    TABLE.update(x)",
        "names = ['a']\ndef f():\n    names.append('b')",
        "from x import ROUTES\ndef f():\n    ROUTES.pop('/')",
        "from x import CONFIG\ndef f():\n    CONFIG.level = 1",
        "@lru_cache\ndef f():\n    pass",
        "@functools.lru_cache(maxsize=5)\ndef f():\n    pass",
    ],
)
def test_state_at_module_level_is_caught(source: str) -> None:
    assert mutable_state(code(source))


@pytest.mark.parametrize(
    "source",
    [
        "TABLE = {1: 2}\ndef f():\n    return TABLE[1]",
        "__all__ = []",
        "log = logging.getLogger()",
        "def f():\n    seen = {}\n    seen[1] = 2\n    seen.pop(1)",
        "class C:\n    def __init__(self):\n        self.seen = []\n        self.seen.append(1)",
        "NAMES = list(OTHER)",
        "EMPTY = frozenset()",
    ],
)
def test_constants_and_local_state_are_fine(source: str) -> None:
    assert mutable_state(code(source)) == []


def test_an_import_past_the_public_api_is_caught() -> None:
    source = "from router.core.kv_events import BadBatch, lookups\n"
    behind = ["router.core.kv_events.lookups"]
    assert past_the_public_api(Module("router.core.fleet.fleet", source)) == behind
    assert past_the_public_api(Module("router.core.kv_events.kv_sources", source)) == []


def test_a_circle_is_caught_and_a_gathering_package_is_none() -> None:
    a = code("from b import x", "a")
    b = code("import c.d", "b")
    back = code("from a import y", "c.d")
    assert cycle([a, b, back])
    assert cycle([a, b, code("", "c.d")]) == []
    gathering = Module("p", "from p.one import f", is_package=True)
    assert cycle([gathering, code("from p.two import g", "p.one"), code("", "p.two")]) == []


def test_a_circle_of_packages_is_caught_though_its_modules_make_none() -> None:
    package, other = (Module(f"p.{name}", "", is_package=True) for name in ("package", "other"))
    there = code("from p.other import x", "p.package.a")
    back = code("from p.package.b import y", "p.other.x")
    beside = code("import p.package.a", "p.beside")
    modules = [package, other, there, back, code("", "p.package.b"), beside]
    assert cycle(modules) == []
    assert cycle(packages("p", modules))
    assert cycle(packages("p", [package, other, there, code("", "p.other.x")])) == []
