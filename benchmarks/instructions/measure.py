"""One router: started under one tool after the other, warmed up, and counted load by load."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.instructions.clock import Clock
from benchmarks.instructions.cost import Cost, Costs, per_unit
from benchmarks.instructions.counters import INSTRUCTIONS, Callgrind, Strace, Tool, missing
from benchmarks.instructions.load import Load, Unit
from benchmarks.routers.fleet import Fleet
from benchmarks.routers.table import Router
from benchmarks.system.ports import free_port
from benchmarks.system.processes import Child, Process, StartError

# As in `compare`'s relay and pd.
DECODE_ENGINES, DECODE_OF_TWO, PREFILL_OF_TWO = 8, 4, 4
# Under valgrind, on a busy machine, an interpreter imports a web framework for half a minute.
READY_S = 300.0
LOAD_S = 300.0
# What a request leaves to be done later (its log line, its metrics) is due by then; a router does
# it before it answers the second of two looks. All loads together stay below the ten seconds after
# which the live page's counts are read, which took a third of a request in whichever load it met.
SETTLED_S = 0.5
LOOKS = 2

DAY_S = "86400"
# Looks at engines that never change would only be noise.
OURS = (
    *("--health-check-interval", DAY_S, "--engine-stats-interval", DAY_S),
    *("--speed-probe-interval", "0", "--idle-connection-timeout", DAY_S),
)
QUIET = dict.fromkeys(
    ("vllm-router", "vllm-router-round-robin"), ("--health-check-interval-secs", DAY_S)
)

PerUnit = dict[str, dict[str, float]]
"""By the key of the unit and the name of the count."""


@dataclass(frozen=True)
class Engines:
    """The process that is engines and client."""

    process: Child
    fleet: Fleet

    def offer(self, load: Load, port: int) -> None:
        """Put a load on the router at `port`. Raises StartError when it is answered wrongly."""
        self.process.tell(f"{port} {load.encode()}")
        report = self.process.expect("report", LOAD_S)
        legs = load.requests if self.fleet.prefill else 0
        expected = {"decodes": load.requests, "prefills": legs, "handovers": legs}
        seen = {name: report["seen"].get(name, 0) for name in expected}
        if report["failure"] is not None or seen != expected:
            failure = report["failure"] or f"the engines saw {seen}, not {expected}"
            raise StartError(f"the load went wrong: {failure}", self.process.log_tail())


def measure(
    router: Router, units: Sequence[Unit], place: Path, say: Callable[[str], None]
) -> Costs:
    """Count those of the units that the router can do. Raises StartError."""
    say(f"{router.name}: counting instructions")
    instructions = count(Callgrind(place), router, units, place)
    calls: PerUnit = {}
    if missing("strace") is None:
        say(f"{router.name}: counting system calls")
        calls = count(Strace(place), router, units, place)
    return {key: Cost(found[INSTRUCTIONS], calls.get(key)) for key, found in instructions.items()}


def count(tool: Tool, router: Router, units: Sequence[Unit], place: Path) -> PerUnit:
    """What the tool counts, for those of the units that the router can do. Raises StartError."""
    found: PerUnit = {}
    for two_legs in (False, True) if router.two_legs else (False,):
        fitting = [unit for unit in units if unit.two_legs == two_legs]
        if not fitting:
            continue
        with _engines(place, two_legs=two_legs) as engines:
            found |= _under(tool, router, engines, fitting, place)
    return found


@contextmanager
def _engines(place: Path, *, two_legs: bool) -> Iterator[Engines]:
    decode, prefill = (DECODE_OF_TWO, PREFILL_OF_TWO) if two_legs else (DECODE_ENGINES, 0)
    with Child(["lockstep", str(decode), str(prefill)], place / "engines.log") as process:
        urls = process.expect("ready", READY_S)
        yield Engines(process, Fleet(urls["decode"], urls["prefill"]))


def _under(
    tool: Tool, router: Router, engines: Engines, units: Sequence[Unit], place: Path
) -> PerUnit:
    """Start the router under the tool and count each unit."""
    assert router.command is not None
    port, clock = free_port(), Clock(place)
    quiet = OURS if router.peer is None else QUIET.get(router.name, ())
    command = [*router.command(engines.fleet, port, place), *quiet]
    # Hashes of strings decide how dictionaries are laid out.
    environment = ["env", "PYTHONHASHSEED=0", *clock.environment()]
    with Process([*environment, *tool.wrap(command)], place / f"{router.name}.log") as process:
        ready = f"http://127.0.0.1:{port}{router.ready_path}"
        process.wait_ready(ready, READY_S)

        def offer(load: Load) -> None:
            """Run the load on it, until all work caused by it is done."""
            engines.offer(load, port)
            clock.skip(SETTLED_S)
            for _ in range(LOOKS):
                process.wait_ready(ready, READY_S)

        def counted(load: Load) -> Counter[str]:
            return tool.count(process.pid, lambda: offer(load))

        with clock.held():
            for unit in units:
                offer(unit.larger)
            tool.begin(process.pid)
            # What the tool itself sets off is in this one.
            offer(units[0].smaller)
            return {
                unit.key: per_unit(counted(unit.smaller), counted(unit.larger), unit.units)
                for unit in units
            }
