"""Router and benchmarks keep the rules of `tests/architecture.py`."""

import ast
from collections.abc import Callable, Iterable

import pytest

from tests.architecture import (
    BENCHMARKS,
    CORE,
    LAYERS,
    ROOT,
    ROUTER,
    Module,
    cycle,
    globals_of,
    impure,
    mutable_state,
    of_router,
    packages,
    past_the_public_api,
    tasks,
    wrong_layer,
)


def broken(rule: Callable[[Module], object], modules: Iterable[Module]) -> dict[str, object]:
    """What breaks a rule, by the module's name."""
    return {module.name: found for module in modules if (found := rule(module))}


def test_every_module_imports_from_layers_below_only() -> None:
    assert broken(wrong_layer, ROUTER) == {}


def test_no_module_has_globals() -> None:
    assert broken(globals_of, ROUTER) == {}


def test_no_module_has_state() -> None:
    assert broken(mutable_state, ROUTER) == {}


def test_packages_with_a_public_api_are_imported_through_it() -> None:
    assert broken(past_the_public_api, ROUTER) == {}


# What makes core testable without a loop.


def test_every_module_of_core_is_pure() -> None:
    assert broken(impure, CORE) == {}


def test_every_module_of_core_is_synchronous() -> None:
    assert broken(tasks, CORE) == {}


def test_nothing_imports_in_a_circle() -> None:
    assert cycle(ROUTER) == []
    assert cycle(BENCHMARKS) == []


@pytest.mark.parametrize("package", ["router.core", "router.net"])
def test_rooms_do_not_import_each_other_in_a_circle(package: str) -> None:
    assert len(packages(package, ROUTER)) > 5
    assert cycle(packages(package, ROUTER)) == []


def test_benchmarks_can_aim_at_a_bare_engine() -> None:
    assert [name for module in BENCHMARKS for name in of_router(module)] == []


def test_every_package_has_a_layer() -> None:
    assert {module.package for module in ROUTER} - {None} <= set(LAYERS)


# Nouns: they hold nothing that could be wrong by itself.
NOUNS = {
    *("events", "membership.entry", "plans.steps"),
    *("judge.tuning", "judge.verdict", "speed.tuning"),
}


def test_every_module_of_core_has_its_tests() -> None:
    missing = []
    for module in CORE:
        inner = module.name.removeprefix("router.core").removeprefix(".")
        folder, _, last = inner.rpartition(".")
        path = ROOT / "tests/core" / folder / f"test_{last}.py"
        if module.is_package:
            path = ROOT / "tests/core" / inner / f"test_{last}.py"
        is_public_api = module.is_package and all(
            isinstance(n, ast.ImportFrom | ast.Assign) for n in module.tree.body[1:]
        )
        if not (is_public_api or inner in NOUNS or path.exists()):
            missing.append(str(path.relative_to(ROOT)))
    assert missing == []
