"""`python -m benchmarks.overload bodies|readers [NUMBER]`: 1,000 bodies of 16 MiB at once, or 5,000
clients that do not read; the effect on 16 others, and the router's memory.

`tenants`: the first token of a tenant with 8 streams, alone and beside one with 500. `goodput`: at
up to twice the capacity of the engines.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.overload.engine import STEP_SECONDS as STEPS
from benchmarks.overload.observers import Event, Observers
from benchmarks.overload.processes import children, cpu_seconds, metric, peak_bytes, process, ready
from benchmarks.overload.tenants import goodput, tenants
from benchmarks.system.ports import free_port

STEP_SECONDS = STEPS[False]
QUIET_SECONDS = 4.0
NUMBERS = {"bodies": 1000, "readers": 5000}


def _spread(seconds: Iterable[float]) -> str:
    ordered = sorted(seconds)
    p99, most = ordered[len(ordered) * 99 // 100], ordered[-1]
    return f"p99 {p99 * 1e3:.0f} ms, most {most * 1e3:.0f} ms"


def _told(name: str, events: Sequence[Event]) -> str:
    """The gaps that clients saw, and what made them."""
    gap, step, held, computed, unread = (1e3 * each for each in max(events))
    return f"""{name}: gaps {_spread(each.gap for each in events)} of {len(events)}
  late at the engine: {_spread(each.step - STEP_SECONDS for each in events)}
  in the router: {_spread(each.held for each in events)}
  in the router while it computed: {_spread(each.computed for each in events)}
  unread by these clients: {_spread(each.unread for each in events)}
  the largest gap, {gap:.0f} ms: {step:.0f} ms between the engine's writes, {held:.0f} ms in the \
router ({computed:.0f} of them computing), {unread:.0f} ms unread"""


@contextlib.contextmanager
def _router(*options: str) -> Iterator[tuple[int, int]]:
    """Port and process id of a router before one engine."""
    engine, port = free_port(), free_port()
    serve = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "error")
    url = f"http://127.0.0.1:{engine}"
    with (
        process("benchmarks.overload.engine", str(engine)),
        process("router", "serve", *serve, "--decode", url, *options) as router,
    ):
        ready(f"http://127.0.0.1:{port}/ready")
        yield port, router.pid


async def attack(kind: str, number: int) -> None:
    """What the others notice."""
    with _router() as (port, pid):
        quiet, harmed = Observers(port, pid), Observers(port, pid)
        for observers in (quiet, harmed):
            observers.start()
            if observers is quiet:
                await asyncio.sleep(QUIET_SECONDS)
                print(f"memory before: {peak_bytes(pid) >> 20} MiB")
            else:
                command = (sys.executable, "-m", "benchmarks.overload.attack", kind)
                began, before = time.perf_counter(), cpu_seconds(pid)
                attacker = await asyncio.create_subprocess_exec(*command, str(port), str(number))
                await attacker.wait()
                share = (cpu_seconds(pid) - before) / (time.perf_counter() - began)
                print(f"the router used {share:.0%} of a core")
            observers.stop()
        print(_told("quiet", quiet.events))
        print(_told("under attack", harmed.events))
        print(f"streams that the router ended: {quiet.ended + harmed.ended}")
        for each in (pid, *children(pid)):
            print(f"memory at most: {peak_bytes(each) >> 20} MiB (pid {each})")
        name = "pd_router_event_loop_lag"
        worst = metric(port, f"{name}_max_seconds")
        looks = metric(port, f"{name}_seconds_count")
        late = looks - metric(port, f'{name}_seconds_bucket{{le="0.05"}}')
        print(
            f"the router's event loop was late by {worst * 1e3:.0f} ms at most, and by more than "
            f"50 ms at {late:.0f} of {looks:.0f} looks"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = (*NUMBERS, "tenants", "goodput")
    parser.add_argument("kind", nargs="?", choices=kinds, default="tenants")
    parser.add_argument("number", nargs="?", type=int, help="of bodies or readers")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.kind in NUMBERS:
        asyncio.run(attack(given.kind, given.number or NUMBERS[given.kind]))
    elif given.number is not None:
        parser.error(f"{given.kind} takes no number")
    else:
        asyncio.run(tenants() if given.kind == "tenants" else goodput())
    return 0


if __name__ == "__main__":
    sys.exit(main())
