"""`python -m tests.house [FOLDER]`: the size of the router's source, by which a redesign is judged.

Prints Markdown tables. Counts come from the syntax tree; nothing is imported. The base of a
comparison is a checkout of it: `python -m tests.house ../base`.
"""

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["House", "table"]

MANY_PARAMETERS = 6
"""A constructor with more of them is counted."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class House:
    """The source files of a package, by their paths relative to it."""

    sources: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "House":
        """All Python files below a folder."""
        paths = sorted(folder.rglob("*.py"))
        return cls({str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in paths})

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        trees = [ast.parse(source) for source in self.sources.values()]
        return [node for tree in trees for node in ast.walk(tree)]

    @cached_property
    def _classes(self) -> list[ast.ClassDef]:
        return [node for node in self._nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def file_lines(self) -> dict[str, int]:
        """Lines of each file, blank ones and comments included."""
        return {name: len(source.splitlines()) for name, source in self.sources.items()}

    @cached_property
    def function_lines(self) -> list[int]:
        """Lines of each function and method, its signature and docstring included, in order."""
        functions = (node for node in self._nodes if isinstance(node, Function))
        return sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)

    def public_names(self) -> set[str]:
        """Distinct public names of classes, functions, methods and module-level values."""
        named = [node.name for node in self._nodes if isinstance(node, Function | ast.ClassDef)]
        modules = [node for node in self._nodes if isinstance(node, ast.Module)]
        assigned = [name for module in modules for name in _assigned(module)]
        return {name for name in (*named, *assigned) if not name.startswith("_")}

    def chains(self) -> list[list[str]]:
        """Each class with its longest line of ancestors defined here, base first, longest first.

        Protocols do not count.
        """
        protocols = {c.name for c in self._classes if "Protocol" in _bases(c)}
        bases = {c.name: _bases(c) for c in self._classes if c.name not in protocols}

        def chain(name: str) -> list[str]:
            above = [chain(base) for base in bases[name] if base in bases and base != name]
            return [*max(above, key=len, default=[]), name]

        return sorted(map(chain, bases), key=len, reverse=True)

    @cached_property
    def constructors(self) -> dict[str, list[ast.arg]]:
        """Parameters of each `__init__` that is written out, `self` excepted.

        Keys are names of classes; of two classes with the same name, the second has a suffix.
        """
        found: dict[str, list[ast.arg]] = {}
        for node in self._classes:
            parameters = _parameters(node)
            if parameters is not None:
                same = sum(name.partition("#")[0] == node.name for name in found)
                found[f"{node.name}#{same + 1}" if same else node.name] = parameters
        return found

    def callables(self) -> list[str]:
        """Constructor parameters that are functions, as `Class.parameter`."""
        aliases = {name for node in self._nodes for name in _callable_aliases(node)}
        aliases -= {node.name for node in self._classes}
        return [
            f"{name}.{parameter.arg}"
            for name, parameters in self.constructors.items()
            for parameter in parameters
            if _names_in(parameter.annotation) & (aliases | {"Callable"})
        ]

    def wide_constructors(self) -> dict[str, int]:
        """Constructors with many parameters, and how many each has, the widest first."""
        counts = Counter({name: len(found) for name, found in self.constructors.items()})
        return {name: count for name, count in counts.most_common() if count > MANY_PARAMETERS}

    def closures(self) -> int:
        """Lambdas, and calls of `partial`."""
        partials = [
            n for n in self._nodes if isinstance(n, ast.Call) and "partial" in _tail(n.func)
        ]
        return len(partials) + sum(isinstance(node, ast.Lambda) for node in self._nodes)

    def prose_lines(self) -> int:
        """Lines of docstrings, and those that hold nothing but a comment."""
        return sum(map(_prose_lines, self.sources.values()))

    def packages(self) -> dict[str, tuple[int, int]]:
        """Files and lines of each folder, of `core`, `net` and `web` two levels deep."""
        files, lines = Counter[str](), Counter[str]()
        for name, count in self.file_lines.items():
            folders = name.split("/")[:-1]
            deep = folders[:2] if folders[:1] in (["core"], ["net"], ["web"]) else folders[:1]
            package = "/".join(deep) or "."
            files[package] += 1
            lines[package] += count
        return {package: (files[package], lines[package]) for package in sorted(files)}


def _assigned(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _tail(node: ast.expr) -> str:
    """The last part of a dotted name, without its type arguments."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(node).rpartition(".")[2]


def _bases(node: ast.ClassDef) -> set[str]:
    return {_tail(base) for base in node.bases}


def _parameters(node: ast.ClassDef) -> list[ast.arg] | None:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            arguments = statement.args
            return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]
    return None


def _names_in(annotation: ast.expr | None) -> set[str]:
    nodes = ast.walk(annotation) if annotation else []
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _callable_aliases(node: ast.AST) -> Iterator[str]:
    """Names that stand for a type of functions: `Clock = Callable[[], float]`."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=value)):
            if _tail(value) == "Callable":
                yield name


def _prose_lines(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = sum(t.type == tokenize.COMMENT and t.line.lstrip().startswith("#") for t in tokens)
    strings = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    docstrings = (s for s in strings if isinstance(s.value, str))
    return comments + sum((s.end_lineno or s.lineno) - s.lineno + 1 for s in docstrings)


def table(router: House, tests: House) -> str:
    """All counts as Markdown: a table of the whole, and one of the packages."""
    lines, functions = sorted(router.file_lines.values()), router.function_lines
    largest = max(router.file_lines, key=lambda name: router.file_lines[name])
    wide = router.wide_constructors()
    widest = ", ".join(f"{name} {count}" for name, count in list(wide.items())[:5])
    callables = router.callables()
    chains = router.chains()
    of_tests = sum(tests.file_lines.values())
    rows = [
        ("files, lines of router/", f"{len(lines)}, {sum(lines):,}"),
        ("files, lines of tests/", f"{len(tests.file_lines)}, {of_tests:,}"),
        ("test lines per source line", f"{of_tests / sum(lines):.2f}"),
        ("file median, largest", f"{statistics.median(lines):.0f}, {lines[-1]} ({largest})"),
        ("files below 100 lines, above 350", f"{_below(lines, 100)}, {_above(lines, 350)}"),
        (
            "function median, p95, longest",
            f"{statistics.median(functions):.0f}, {functions[len(functions) * 95 // 100]}, "
            f"{functions[-1]}",
        ),
        ("distinct public names", f"{len(router.public_names()):,}"),
        ("inheritance depth", f"{len(chains[0])} ({' <- '.join(chains[0])})"),
        ("classes more than 2 deep", f"{sum(len(chain) > 2 for chain in chains)}"),
        ("constructors", f"{len(router.constructors)}"),
        (f"constructors with over {MANY_PARAMETERS} parameters", f"{len(wide)} ({widest})"),
        ("constructor parameters that are callables", f"{len(callables)}"),
        ("lambda and partial", f"{router.closures()}"),
        ("docstrings and comments", f"{router.prose_lines() / sum(lines):.0%} of lines"),
    ]
    whole = [f"| {name} | {value} |" for name, value in rows]
    packages = [
        f"| {package} | {n} | {count:,} |" for package, (n, count) in router.packages().items()
    ]
    head = ["| router/ | |", "|---|---|"]
    head_of_packages = ["", "| package | files | lines |", "|---|---|---|"]
    return "\n".join([*head, *whole, *head_of_packages, *packages])


def _below(lines: Sequence[int], limit: int) -> int:
    return sum(count < limit for count in lines)


def _above(lines: Sequence[int], limit: int) -> int:
    return sum(count > limit for count in lines)


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    print(table(House.read(root / "router"), House.read(root / "tests")))
