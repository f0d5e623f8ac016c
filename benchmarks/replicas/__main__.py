"""`python -m benchmarks.replicas`: the cost of several routers, and the gain by `--peers`: evenness
of the load of 8 simulated engines, and prefix-cache hits of conversations."""

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.replicas import conversations, evenness


def _cases(replicas: list[int]) -> Iterator[tuple[str, int, bool]]:
    """Name, number of routers, and whether they report to each other."""
    yield "1", 1, False
    for number in replicas:
        yield f"{number}, each alone", number, False
        yield f"{number} with --peers", number, True


def _table(title: str, head: str, replicas: list[int], run: Callable[[int, bool], object]) -> None:
    print(f"{title}\n{'routers':<16}{head}", flush=True)
    for name, number, told in _cases(replicas):
        print(f"{name:<16}{run(number, told)}", flush=True)


def parser() -> argparse.ArgumentParser:
    """Reads the command line."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    found.add_argument("what", nargs="?", choices=("load", "prefixes"), help="default: both")
    found.add_argument("--replicas", type=int, action="append", help="default: 2 and 3")
    defaults = evenness.Load()
    for name in ("engines", "slots", "tokens", "share", "seconds", "interval", "seed"):
        value = getattr(defaults, name)
        found.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    return found


def main() -> int:
    """The command line."""
    options = vars(parser().parse_args())
    what, replicas = options.pop("what"), options.pop("replicas") or [2, 3]
    if what != "prefixes":
        load = evenness.Load(**options)
        title = f"{load.engines} engines with {load.slots} slots each, {load.share:.0%} load"
        _table(
            f"{title}, {load.seconds:g} s",
            evenness.HEAD,
            replicas,
            lambda number, told: evenness.measure(load, number, told=told),
        )
    if what != "load":
        _table(
            "conversations of 6 turns, each turn to any router",
            conversations.HEAD,
            replicas,
            lambda number, told: conversations.measure(number, told=told),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
