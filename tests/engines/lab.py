"""Real vLLM engines on CPU: `python -m tests.engines.lab install|start|stop|status`."""

import argparse
import sys
import time
from collections.abc import Sequence

from tests.engines import installation
from tests.engines.fleet import READY_SECONDS, SPECS, service
from tests.engines.layout import LabError, Layout, layout
from tests.engines.service import Service

__all__ = ["engines", "main", "start"]


def engines(lab: Layout) -> list[Service]:
    """The prefill engine first, then the decode engines."""
    return [service(spec, lab) for spec in SPECS]


def start(lab: Layout, fleet: Sequence[Service]) -> list[Service]:
    """Start those of the engines that do not run, wait for all, return those started.

    Raises LabError; what was started is stopped again then.
    """
    installation.require(lab)
    for engine in fleet:
        if engine.is_outdated:
            engine.stop()
    started = [engine for engine in fleet if engine.process is None]
    try:
        for engine in started:
            engine.start()
        for engine in fleet:
            engine.wait_ready(READY_SECONDS)
    except BaseException:
        for engine in started:
            engine.stop()
        raise
    return started


def _install(lab: Layout) -> None:
    begun = time.monotonic()
    done = installation.install(lab)
    what = ", ".join(done) or "nothing to do"
    print(f"{lab.root}: {what} ({time.monotonic() - begun:.0f} s)")


def _start(lab: Layout) -> None:
    begun = time.monotonic()
    started = start(lab, engines(lab))
    print(f"{len(started)} engines started in {time.monotonic() - begun:.0f} s")
    _status(lab)


def _stop(lab: Layout) -> None:
    for engine in engines(lab):
        engine.stop()
    _status(lab)


def _status(lab: Layout) -> None:
    print(f"{lab.root}: {'installed' if installation.is_installed(lab) else 'not installed'}")
    for engine in engines(lab):
        process = engine.process
        state = "stopped" if process is None else "ready" if engine.is_ready() else "not ready"
        owner = f"pid {process.pid}" if process else ""
        print(f"{engine.name:<9} {engine.url}  {state:<9} {owner}")


COMMANDS = {"install": _install, "start": _start, "stop": _stop, "status": _status}


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit status 1 and one line (and a log's end) on stderr if it fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.lab", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    chosen = parser.parse_args(arguments).command
    try:
        COMMANDS[chosen](layout())
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
