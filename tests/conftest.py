"""Hypothesis without a clock, and with the same examples in every run; how many tests run at once;
ports that no other test gets.

`--hypothesis-profile=deep` looks for new examples; `few` is for tests under a tracer.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import ports

GARBAGE = 10_000
"""New objects after which the garbage collector looks at them; usual are 700."""

MOST_WORKERS = 8
"""Each collects all tests first: more of them would only do that."""

settings.register_profile(
    "suite",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("few", parent=settings.get_profile("suite"), max_examples=10)
settings.register_profile(
    "deep", parent=settings.get_profile("suite"), max_examples=3000, derandomize=False
)


ENV_PREFIX = "PD_ROUTER_"
"""Of settings; not imported: what is imported here is not in the coverage of workers."""

TESTS = Path(__file__).parent
ROUTER = TESTS.parent / "router"

ONE_CA = TESTS / "unused_ca.pem"
"""In place of the system's CAs: no test needs them, and each process would read them three times, a
fifth of the CPU time of its start. (Its key is thrown away.)"""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile unless the command line did. Refuse compiled modules of older sources.
    Restore the default SIGHUP, which nohup ignores, for tests and their processes."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ["SSL_CERT_FILE"] = str(ONE_CA)
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("suite")
    if stale := _stale():
        raise pytest.UsageError(
            f"{stale} is newer than its compiled form: make compile, or make clean-compiled"
        )


def _stale() -> Path | None:
    """A compiled module whose source has changed since."""
    for library in ROUTER.glob("compiled__mypyc*.so"):  # `make compile` touches it
        for compiled in ROUTER.rglob("*.so"):
            source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
            if source.exists() and source.stat().st_mtime > library.stat().st_mtime:
                return source
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Ten thousand tests are no garbage: without this a seventh of the suite's time goes into
    looking whether they are."""
    gc.disable()
    try:
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _import_share(getattr(session.config, "workerinput", {}))
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        gc.enable()


def _import_share(worker: Mapping[str, Any]) -> None:
    """In a worker: import a share of the tests. All workers import all tests in the same order, and
    without bytecode files each would compile them."""
    if worker:
        place, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        for path in sorted(TESTS.rglob("test_*.py"))[place::count]:
            name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collection reports it
                importlib.import_module(name)


def pytest_report_header() -> str:
    """Which form of the router is tested."""
    return f"router: {'compiled' if any(ROUTER.rglob('*.so')) else 'pure Python'}"


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two for each core. Half of the time of a run is waiting, mostly for processes."""
    return min(2 * len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the caller sets nothing."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def closed_port() -> Generator[int]:
    """A port of 127.0.0.1 without a listener for the whole test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def own_port() -> int:
    """A port for a process that cannot choose one itself."""
    return ports.own_port()
