"""What pyproject.toml cannot say: with PD_ROUTER_COMPILE=1 the hot modules are compiled by mypyc.

They are compiled from the same source, and a module that is not stays Python. Without the variable
everything is pure Python and needs no compiler. MYPYC_OPT_LEVEL is gcc's -O (default: 3).
"""

import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent

COMPILED = (
    "router/core/*.py",
    "router/core/continuation/*.py",
    "router/core/fleet/*.py",
    "router/core/limits/*.py",
    "router/core/membership/*.py",
    "router/core/plans/*.py",
    "router/core/policies/*.py",
    "router/core/prefix/*.py",
    "router/core/gateway/*.py",
    "router/core/judge/*.py",
    "router/core/routing/*.py",
    "router/core/replicas/*.py",
    "router/core/speed/*.py",
    "router/core/wire/*.py",
    "router/net/client/client_connection.py",
    "router/net/client/client_request.py",
    "router/net/client/request_parser.py",
    "router/net/client/response_writer.py",
    "router/net/engine/answer.py",
    "router/net/engine/dial.py",
    "router/net/engine/engine_connection.py",
    "router/net/known_heads.py",
    "router/net/limits/timers.py",
    "router/net/limits/read_limiter.py",
    "router/net/limits/read_rotation.py",
    "router/net/limits/start_limiter.py",
    "router/net/request/charges.py",
    "router/net/request/downstream.py",
    "router/net/request/engine_leg.py",
    "router/net/request/event_readers.py",
    "router/net/request/network.py",
    "router/net/request/readers.py",
    "router/net/request/served_request.py",
    "router/net/request/upstream.py",
    "router/telemetry/access_log.py",
    "router/telemetry/series.py",
    "router/telemetry/event_counts.py",
    "router/telemetry/event_buffer.py",
    "router/telemetry/log_words.py",
    "router/web/request_handler.py",
)
"""The hot modules. What to heed in them: CONTRIBUTING.md, "Compiled modules"."""

GROUP = "router.compiled"
"""One shared library for all of them, so that calls between them are C calls."""


def modules() -> list[str]:
    """Their files."""
    found = [path for pattern in COMPILED for path in sorted(HERE.glob(pattern))]
    return [str(path.relative_to(HERE)) for path in found if path.name != "__init__.py"]


def build_requirements() -> list[str]:
    """mypyc, and what the compiled modules' types come from."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    dev = project["optional-dependencies"]["dev"]
    return [*project["dependencies"], *(each for each in dev if each.startswith("mypy"))]


class InParallel(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles as many files at a time as there are cores."""

    def build_extensions(self) -> None:
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: one_by_one([source], **options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_all
        super().build_extensions()


def arguments() -> dict[str, Any]:
    """Of `setup`."""
    if os.environ.get("PD_ROUTER_COMPILE") != "1":
        return {}
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - only here it is needed
    except ModuleNotFoundError:  # pip asks what a build needs before it installs that
        return {"setup_requires": build_requirements()}
    level = os.environ.get("MYPYC_OPT_LEVEL", "3")
    # gcc inlines calls within a file. Without optimisation many files compile sooner.
    found = mypycify(modules(), group_name=GROUP, opt_level=level, multi_file=level == "0")
    for each in found:
        each.include_dirs.append("build/router")  # the headers of GROUP
    return {"ext_modules": found, "cmdclass": {"build_ext": InParallel}}


if __name__ == "__main__":
    setup(**arguments())
