"""Imported packages are declared, declared packages are locked, and versions agree."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from router import __version__
from tests.deploy.places import ROOT, locked, project

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

OWN = frozenset({"router", "benchmarks", "tests", "tools"})

ELSEWHERE = frozenset(
    {
        "compression",  # part of Python from 3.14 on
        *("msgspec", "tokenizers", "torch", "transformers", "safetensors", "tiny_model"),
        *("cases", "anthropic", "langchain_core", "langchain_openai", "litellm", "llama_index"),
    }
)
"""What runs in environments of its own only: real vLLM engines (tests/engines/tiny_model.py), and
clients (tests/clients/programs)."""


EXTRAS = ("lmcache", "kv", "tracing", "kubernetes", "dns", "epp")
"""What the router can have beside what it must."""

NAMESPACES = {
    "backports": "backports-zstd",
    "google": "protobuf",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
}
"""Packages that several distributions share."""


def declared(*extras: str) -> set[str]:
    """The names of the dependencies, and of those of these extras."""
    found = [*project()["dependencies"]]
    for extra in extras:
        found += project()["optional-dependencies"][extra]
    return {str(canonicalize_name(Requirement(each).name)) for each in found} - {"pd-router"}


def imports(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """The modules that a module imports when it is loaded, or anywhere."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.expr):
            pass  # most nodes; it holds no statement
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, everywhere=everywhere)


@cache
def others(folder: str, *, everywhere: bool) -> set[str]:
    """The distributions that the files of a folder import, but for the standard library."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        found |= set(imports(ast.parse(path.read_text(encoding="utf-8")), everywhere=everywhere))
    ours = OWN | ELSEWHERE | sys.stdlib_module_names
    return {distribution(name) for name in found if name.partition(".")[0] not in ours}


@cache
def installed() -> Mapping[str, list[str]]:
    """Distributions by the packages that they hold; finding out takes a second."""
    return packages_distributions()


def distribution(name: str) -> str:
    """What a module is installed with."""
    inner = ".".join(name.split(".")[:2])
    top = name.partition(".")[0]
    if top in NAMESPACES:
        return NAMESPACES.get(inner, NAMESPACES[top])
    known = installed()
    return str(canonicalize_name(known[top][0])) if top in known else top


@pytest.mark.parametrize(
    ("folder", "everywhere", "extras"),
    [
        ("router", False, []),
        ("router", True, [*EXTRAS, "bench"]),
        ("benchmarks", True, ["bench", "kv"]),
        ("tests", True, [*EXTRAS, "bench", "dev", "fuzz"]),
    ],
)
def test_imported_packages_are_declared(folder: str, everywhere: bool, extras: list[str]) -> None:
    assert others(folder, everywhere=everywhere) - declared(*extras) == set()


def test_declared_packages_are_imported() -> None:
    used = others("router", everywhere=True) | others("benchmarks", everywhere=True)
    assert declared(*EXTRAS, "bench") - used == set()


def test_an_import_that_is_not_at_the_top_is_found() -> None:
    source = (
        "import a.b\ntry:\n    import c\nexcept ImportError: pass\ndef f():\n    from d.e import g"
    )
    assert set(imports(ast.parse(source), everywhere=True)) == {"a.b", "c", "d.e"}
    assert set(imports(ast.parse(source), everywhere=False)) == {"a.b", "c"}


def test_pythons_after_3_11_are_not_ruled_out() -> None:
    supported = SpecifierSet(project()["requires-python"])
    assert not supported.contains("3.10")
    assert all(supported.contains(f"3.{minor}") for minor in range(11, 30))


def test_packages_with_non_public_use_have_an_upper_bound() -> None:
    """What is not public of uvicorn is as it was in the versions that were run."""
    [uvicorn] = [r for r in map(Requirement, project()["dependencies"]) if r.name == "uvicorn"]
    assert {each.operator for each in uvicorn.specifier} == {">=", "<"}


# The lock files.


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("image", [*EXTRAS]),
        ("gate", ["bench"]),
        ("docs", ["docs"]),
        ("dev", [*EXTRAS, "bench", "dev"]),
    ],
)
def test_the_lock_is_of_these_dependencies(name: str, extras: list[str]) -> None:
    """If not: make lock"""
    pins: dict[str, list[str]] = {}
    for pin in locked(name):
        version = str(pin.specifier).removeprefix("==")
        pins.setdefault(canonicalize_name(pin.name), []).append(version)
    wanted = [*project()["dependencies"]]
    for extra in extras:
        wanted += project()["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        if requirement.name != "pd-router":
            versions = pins[canonicalize_name(requirement.name)]
            assert all(map(requirement.specifier.contains, versions)), requirement


@pytest.mark.parametrize("name", ["build", "image", "gate", "aiperf", "dev", "docs", "wheels"])
def test_every_pin_has_hashes_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^\w.*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^\w", text, re.MULTILINE)) > 0
    assert "://" not in text


def test_pins_have_the_requested_extras() -> None:
    """pip takes no pin of NAME for NAME[extra], and none at all once NAME has a newer version.

    If not: make lock
    """
    pins = {str(canonicalize_name(pin.name)): pin for pin in locked("dev")}
    asked: set[tuple[str, str]] = set()
    for pin in pins.values():
        try:
            needs = map(Requirement, requires(pin.name) or ())
        except PackageNotFoundError:  # of another platform or Python
            continue
        for need in needs:
            contexts = [{"extra": extra} for extra in ("", *pin.extras)]
            if need.marker is None or any(map(need.marker.evaluate, contexts)):
                asked |= {(str(canonicalize_name(need.name)), extra) for extra in need.extras}
    assert asked
    assert {(name, extra) for name, extra in asked if extra not in pins[name].extras} == set()


def test_the_build_is_locked() -> None:
    lines = (ROOT / "requirements/build.in").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    compiler = [
        each for each in PYPROJECT["project"]["optional-dependencies"]["dev"] if "mypy" in each
    ]
    assert wanted == [*PYPROJECT["build-system"]["requires"], *compiler]
    assert {"setuptools", "mypy"} <= {pin.name for pin in locked("build")}


def test_make_installs_the_locked_versions() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^\t\$\(INSTALL\) (.*)", makefile, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert "--require-hashes" in command or "--no-deps --editable ." in command


# One version.


def test_the_version_is_the_same_everywhere() -> None:
    assert project()["version"] == __version__
    for name in ("Dockerfile", "deploy/README.md"):
        tags = re.findall(r"pd-router:(\d+\.\d[\d.]*)", (ROOT / name).read_text(encoding="utf-8"))
        assert tags
        assert set(tags) == {__version__}
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_scripts_lead_to_functions() -> None:
    for target in project()["scripts"].values():
        module, _, name = target.partition(":")
        path = ROOT / Path(*module.split(".")).with_suffix(".py")
        functions = [
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions
