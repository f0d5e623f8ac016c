"""The compiled form: its modules, and that a checkout is in one form."""

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_of_pd_router", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pattern_finds_modules(setup: ModuleType) -> None:
    for pattern in setup.COMPILED:
        assert list(ROOT.glob(pattern)), pattern
    assert "router/core/routing/schedule.py" in setup.modules()
    assert not [path for path in setup.modules() if path.endswith("__init__.py")]


def test_a_checkout_is_compiled_or_is_not(setup: ModuleType) -> None:
    names = [path.removesuffix(".py").replace("/", ".") for path in setup.modules()]
    files = {str(importlib.import_module(name).__file__) for name in names}
    assert len({Path(file).suffix for file in files}) == 1, "make compile, or make clean-compiled"


def test_by_default_nothing_is_compiled(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PD_ROUTER_COMPILE", raising=False)
    assert setup.arguments() == {}


def test_a_build_by_pip_gets_the_compiler_and_the_types(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PD_ROUTER_COMPILE", "1")
    monkeypatch.setitem(sys.modules, "mypyc.build", None)
    required = setup.arguments()["setup_requires"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["dependencies"]) < set(required)
    assert [each for each in required if each.startswith("mypy>=")]
