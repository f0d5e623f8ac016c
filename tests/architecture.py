"""The rules of the architecture, checked on imports: each function returns the violations of a
rule.

A file imports only from layers below its own, or from its own package; core touches neither the
clock nor the network nor the environment; nothing at module level changes while the program runs.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent

LAYERS = {
    "core": 0,
    "certificates": 0,  # TLS contexts
    "garbage": 0,  # the collector of a process
    "net": 1,
    "discovery": 1,
    "telemetry": 1,
    "settings": 1,
    "simulator": 1,
    "web": 2,
    "commands": 3,  # what the command line can do
    "cli": 4,
    "__main__": 5,
}

CORE_MAY_IMPORT = frozenset(
    {
        *(
            "abc",
            "array",
            "base64",
            "binascii",
            "bisect",
            "collections",
            "copy",
            "dataclasses",
            "decimal",
        ),
        *(
            "enum",
            "fractions",
            "functools",
            "hashlib",
            "heapq",
            "hmac",
            "ipaddress",
            "itertools",
            "json",
        ),
        *("math", "operator", "orjson", "random.Random", "re", "statistics", "string", "struct"),
        *("types", "typing", "unicodedata", "urllib.parse", "zlib"),
    }
)
"""Pure modules: no time, no randomness, no I/O. Of `random` only the class, which must be passed
in. Add only modules that are equally pure."""


@dataclass(frozen=True)
class Module:
    """One source file, by its dotted name."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """The file parsed."""
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree: each walk takes as long as the parsing."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> frozenset[str]:
        """What it imports anywhere, as dotted names; names taken from a module are added to it."""
        return frozenset(_imports(self.nodes))

    @property
    def package(self) -> str | None:
        """The part of the router it belongs to; None for the package itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else None


def _imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_in(folder: Path, package: str) -> list[Module]:
    """All modules of a package."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join((package, *(parts[:-1] if is_package else parts)))
        found.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return found


ROUTER = modules_in(ROOT / "router", "router")
BENCHMARKS = modules_in(ROOT / "benchmarks", "benchmarks")
CORE = [module for module in ROUTER if module.package == "core"]


def of_router(module: Module) -> Iterator[str]:
    """The parts of the router that a module imports; `router.__version__` belongs to none."""
    for name in module.imports:
        if name.startswith("router.") and name != "router.__version__":
            yield name


# The rules. Each returns what breaks it.


def wrong_layer(module: Module) -> list[str]:
    """Imports from the own layer's other packages, or from above."""
    wrong = []
    for name in of_router(module):
        package = Module(name, "").package
        if package == module.package:
            continue
        below = module.package is not None and LAYERS[str(package)] < LAYERS[module.package]
        if not below:
            wrong.append(name)
    return sorted(wrong)


def impure(module: Module) -> list[str]:
    """Imports that reach out of the process, or further than orjson."""
    return sorted(
        name
        for name in module.imports
        if not any(f"{name}.".startswith(f"{pure}.") for pure in (*CORE_MAY_IMPORT, "router"))
    )


def tasks(module: Module) -> list[str]:
    """Coroutines and awaits."""
    kinds = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    return [f"line {node.lineno}" for node in module.nodes if isinstance(node, kinds)]


PUBLIC_ONLY = (
    *("router.core.kv_events", "router.net.kv_events"),
    *("router.core.replicas", "router.net.replicas"),
)
"""Packages that others import from through their package only."""


def past_the_public_api(module: Module) -> list[str]:
    """Imports of modules within a package of `PUBLIC_ONLY`."""
    known = {each.name for each in ROUTER}
    return sorted(
        name
        for name in of_router(module)
        for package in PUBLIC_ONLY
        if f"{name}.".startswith(f"{package}.")
        and not f"{module.name}.".startswith(f"{package}.")
        and _module_of(name, known) != package
    )


def globals_of(module: Module) -> list[str]:
    """`global` statements."""
    return [name for node in module.nodes if isinstance(node, ast.Global) for name in node.names]


EMPTY_MAKERS = frozenset({"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"})
MUTATING = frozenset(
    {
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
        *("insert", "intersection_update", "pop", "popitem", "popleft", "remove", "reverse"),
        *("setdefault", "sort", "symmetric_difference_update", "update"),
    }
)
CACHES = frozenset({"cache", "lru_cache", "functools.cache", "functools.lru_cache"})


def mutable_state(module: Module) -> list[str]:
    """Module-level containers that are made to be filled, or that a function changes.

    A container without changes is a constant. Caches around functions are such state too.
    """
    names = _module_level_names(module.tree)
    empty = [name for name, value in names.items() if value is not None and _is_empty(value)]
    functions = [n for n in module.nodes if isinstance(n, ast.FunctionDef)]
    cached = [f.name for f in functions if any(_text(d) in CACHES for d in f.decorator_list)]
    changed = [
        name
        for node in module.nodes
        if (name := _changes(node)) is not None and (name in names or name.isupper())
    ]
    return sorted({*empty, *cached, *changed} - {"__all__"})


def _module_level_names(tree: ast.Module) -> dict[str, ast.expr | None]:
    names: dict[str, ast.expr | None] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node.value
    return names


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call():
            return _text(value) in EMPTY_MAKERS and not (
                value.args and _text(value) in ("dict", "list", "set")
            )
    return False


def _text(node: ast.expr) -> str:
    """A decorator's or a call's dotted name."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _changes(node: ast.AST) -> str | None:
    """The plain name whose object a statement changes in place."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in MUTATING:
            return name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return name
        case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name.isupper():
            return name
    return None


def cycle(modules: list[Module]) -> list[str]:
    """Modules that import each other in a circle.

    Importing a module runs its packages too, but a package that gathers its own modules is no
    circle of theirs.
    """
    known = {module.name for module in modules}
    graph = {
        module.name: {_module_of(name, known) for name in module.imports} for module in modules
    }
    edges = {
        name: {there for there in to if there not in (None, name)} for name, to in graph.items()
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def packages(parent: str, modules: list[Module]) -> list[Module]:
    """The packages in a package, each as one module that imports what all of its own do."""
    found = {m.name: set[str]() for m in modules if m.name.rpartition(".")[0] == parent}
    found = {m.name: found[m.name] for m in modules if m.is_package and m.name in found}
    for module in modules:
        package = _package_in(parent, module.name)
        if package in found:
            found[package].update(_package_in(parent, name) for name in module.imports)
    lines = {package: "\n".join(f"import {name}" for name in to) for package, to in found.items()}
    return [Module(package, text) for package, text in lines.items()]


def _package_in(parent: str, name: str) -> str:
    """Of a dotted name: the parent, and one name more."""
    return ".".join(name.split(".")[: parent.count(".") + 2])


def _module_of(name: str, known: set[str]) -> str | None:
    """The module behind a dotted name: itself, or the one that it is taken from."""
    if name in known:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in known else None
