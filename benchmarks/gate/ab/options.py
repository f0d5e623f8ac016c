"""The command line of `ab`, and the comparison that it comes to.

Everything about the load is as in `validate`.
"""

import argparse
import copy
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.command_line import VALIDATOR, positive, program
from benchmarks.gate import judge, options
from benchmarks.gate.endpoint.target import address
from benchmarks.gate.options import OURS, RESULTS, WRONG, Invalid, Plan

RESULT = "ab.json"
# With fewer engines there is no choice.
LEAST = 2
# Placeholder URL with which a plan is checked before a router has started.
NOWHERE = "http://127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one engine, `at` seconds into the measured phase: it hangs for `stall` seconds, or
    each of its steps takes `slow` times as long until the end."""

    engine: int
    at: float
    stall: float | None
    slow: float | None

    @property
    def body(self) -> dict[str, Any]:
        """The simulator's request body for it."""
        if self.stall is not None:
            return {"stall": True, "for_s": self.stall}
        return {"slow": self.slow}

    @property
    def line(self) -> str:
        """For display."""
        still = f"stands still for {self.stall:g} s" if self.stall is not None else ""
        return (
            f"engine {self.engine} {still or f'is {self.slow:g} times slower'}, from {self.at:g} s"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to do. Without `engines`, `count` simulated ones are started for every run."""

    policies: tuple[str, ...]
    rounds: int
    engines: tuple[str, ...]
    count: int
    model: str
    simulator: tuple[str, ...]
    router: tuple[str, ...]
    fault: Fault | None
    out: Path
    at: datetime
    arguments: argparse.Namespace = field(repr=False)

    def plan(self, number: int, policy: str, url: str) -> Plan:
        """The plan of one run. Raises what `options.plan` does."""
        given = copy.copy(self.arguments)
        given.url, given.out = url, self.folder(number, policy)
        found = options.plan(given, self.at)
        notes = {
            "policy": policy,
            "router options": shlex.join(self.router) or "the defaults",
            "engines": ", ".join(self.engines)
            or f"{self.count} simulated, {shlex.join(self.simulator)}",
            "fault": "none" if self.fault is None else self.fault.line,
        }
        label = f"{policy}, round {number}"
        return replace(found, label=label, notes=(*notes.items(), *found.notes))

    def folder(self, number: int, policy: str) -> Path:
        """The directory of one run's files."""
        return self.out / f"round-{number}-{policy}"

    def order(self, number: int) -> tuple[str, ...]:
        """The order of the policies in a round (from 1), rotated by one each time."""
        turn = (number - 1) % len(self.policies)
        return self.policies[turn:] + self.policies[:turn]


def parser() -> judge.Parser:
    """The command line."""
    top = judge.Parser(
        prog=program("ab"),
        description="Put the validator's load on the router with one policy after the other, in "
        "rounds. Exit status: 0 where all of it ran, whatever the verdicts; 3 broken.",
        epilog=VALIDATOR,
    )
    top.add_argument("--policies", required=True, help="of the router, with commas between them")
    top.add_argument("--rounds", type=positive, default=3)
    top.add_argument("--model", default="sim")
    top.add_argument("--router-options", default="", help="further ones for all, as one string")
    _add_engines(top.add_argument_group("engines"))
    options.add_options(top)
    usual: dict[str, Any] = {"runs": 1, "require": None, "worker": [], "workers_expected": None}
    top.set_defaults(**usual, generator=OURS, sentinel=False)
    return top


def _add_engines(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--engine", action="append", default=[], metavar="URL", help="a given one; repeat")
    add("--engines", type=positive, help="so many simulated ones, new for every run")
    add("--slots", type=positive, help="sequences that a simulated one has in a batch")
    add("--step-ms", type=options.seconds, default=10.0, help="a simulated one's step")
    add("--step-per-sequence-ms", type=float, help="what each sequence adds to it")
    wrong = group.add_mutually_exclusive_group()
    wrong.add_argument("--stall", type=options.seconds, help="one stands still so many seconds")
    wrong.add_argument("--slow", type=options.seconds, help="one is so many times slower")
    add("--stall-at", type=float, default=1.0, help="seconds into the measured phase; default: 1")
    add("--stall-engine", type=positive, default=2, help="which one, from 1; default: 2")


def read(argv: Sequence[str], at: datetime) -> Comparison:
    """Parse the options. Ends the process with status 3 if one is invalid."""
    top = parser()
    arguments = top.parse_args(argv)
    try:
        found = comparison(arguments, at)
        for policy in found.policies:
            found.plan(1, policy, NOWHERE)
    except (*WRONG, ValueError) as error:  # ValueError: unbalanced quotes
        top.error(str(error))
    return found


def comparison(arguments: argparse.Namespace, at: datetime) -> Comparison:
    """Raises Invalid, InvalidTarget, ValueError (unbalanced quotes)."""
    policies = tuple(dict.fromkeys(filter(None, map(str.strip, arguments.policies.split(",")))))
    if not policies:
        raise Invalid("--policies: name at least one")
    if wrong := [each for each in policies if not each.replace("_", "").isalnum()]:
        raise Invalid(f"--policies: {wrong[0]!r} is no name")
    engines = tuple(address(each).url for each in dict.fromkeys(arguments.engine))
    if bool(engines) == (arguments.engines is not None):
        raise Invalid("--engine URL, repeated, or --engines N: one of them")
    count = len(engines) or arguments.engines
    if count < LEAST:
        raise Invalid("one engine leaves no choice to a policy")
    arguments.workers_expected = count
    arguments.gpus = arguments.gpus or (None if arguments.platform else count)
    out = arguments.out or RESULTS / f"{at:%Y-%m-%dT%H%M%SZ}-ab"
    if (out / RESULT).exists():
        raise Invalid(f"--out: {out} holds results already")
    return Comparison(
        policies,
        arguments.rounds,
        engines,
        count,
        arguments.model,
        _simulator(arguments),
        tuple(shlex.split(arguments.router_options)),
        _fault(arguments, count),
        out,
        at,
        arguments,
    )


def _simulator(arguments: argparse.Namespace) -> tuple[str, ...]:
    given = {
        "--model": arguments.model,
        "--max-num-seqs": arguments.slots,
        "--step-ms": arguments.step_ms,
        "--step-per-sequence-ms": arguments.step_per_sequence_ms,
        # Answers have the requested length.
        "--eos-one-in": 0,
    }
    return tuple(f"{name}={value}" for name, value in given.items() if value is not None)


def _fault(arguments: argparse.Namespace, count: int) -> Fault | None:
    if arguments.stall is None and arguments.slow is None:
        return None
    if arguments.stall_engine > count:
        raise Invalid(f"--stall-engine: there are only {count}")
    if arguments.stall_at < 0:
        raise Invalid("--stall-at: must not be below 0")
    return Fault(arguments.stall_engine, arguments.stall_at, arguments.stall, arguments.slow)
