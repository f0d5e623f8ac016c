"""The command line of `validate`, and the plan that it comes to.

Everything that can be wrong is found here, before any traffic.
"""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.command_line import VALIDATOR, positive, program
from benchmarks.gate import judge, profiles
from benchmarks.gate.aiperf import environment
from benchmarks.gate.analysis.constraints import Constraints, InvalidConstraint
from benchmarks.gate.analysis.records import Unreadable
from benchmarks.gate.analysis.slo import InvalidSlo, Slo, parse
from benchmarks.gate.endpoint.readiness import ReadinessLimits
from benchmarks.gate.endpoint.target import Address, InvalidTarget, address, check_model
from benchmarks.gate.inputs import prompts
from benchmarks.gate.load_options import Basis, InvalidLoad, add_load_options, load_of
from benchmarks.gate.output.results import NAME
from benchmarks.gate.profiles import PLATFORMS, InvalidProfile, Profile
from benchmarks.gate.traffic.load import Phase
from benchmarks.gate.traffic.offer import Offer
from benchmarks.gate.traffic.pace import UNLIMITED

# As many streams as one process carries with room to spare; more processes than cores only queue.
STREAMS_PER_PROCESS = 256
# A phase of fewer requests, and smoke, lasts seconds: samples are taken twice as often then.
SHORT, SAMPLE_S, SHORT_SAMPLE_S = 1000, 1.0, 0.5
# Who offers the load: ours, or the validator's.
OURS, AIPERF = "pd-bench", "aiperf"
RESULTS = Path("gate-results")


class Invalid(ValueError):
    """An invalid option; the text names it."""


WRONG = (
    *(Invalid, InvalidConstraint, InvalidLoad, InvalidProfile),
    *(InvalidSlo, InvalidTarget, Unreadable, OSError),
)
"""Exceptions for an invalid command line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. `profile` is resolved: its concurrency is for all GPUs together."""

    address: Address
    model: str
    gpus: int
    gpus_total: int | None
    profile: Profile
    constraints: Constraints
    slos: tuple[Slo, ...]
    runs: int
    required: int | None
    workers: tuple[str, ...]
    workers_expected: int | None
    processes: int
    out: Path
    key: str | None = field(repr=False)
    verify: bool
    live: bool
    sentinel: bool
    unique: bool
    generator: str
    readiness: ReadinessLimits
    # Where it is one of several that are compared; otherwise it is called by its profile.
    label: str | None = None
    # None: a closed loop through the profile's prompts.
    offer: Offer | None = None
    # Rows of the report that only the user knows, such as the policy.
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def concurrency(self) -> int:
        """Streams in all."""
        return self.profile.concurrency(1)

    @property
    def requests(self) -> int:
        """Of the measured phase."""
        return self.profile.request_count(1)

    @property
    def warmup(self) -> int:
        """Requests before it."""
        return self.profile.warmup_count(1)

    @property
    def must_pass(self) -> int:
        """Runs, of all planned ones: missing runs have not passed."""
        return self.runs if self.required is None else self.required

    def phases(self, number: int) -> tuple[Phase, Phase]:
        """Warm-up and measured phase of a run: they share one walk through the prompts, as AIPerf's
        do."""
        offset = number * (self.requests + self.warmup) if self.unique else 0
        streams, offer = self.concurrency, self.offer
        if offer is None:
            warm = Phase(streams, self.warmup, offset)
            hot = Phase(streams, self.requests, offset + self.warmup)
            return warm, replace(hot, min_seconds=self.profile.min_seconds)
        warm = offer.warmup(streams, self.warmup, offset)
        return warm, offer.phase(streams, offset + warm.requests)

    @property
    def prompts(self) -> int:
        """Distinct texts: of the profile, or one for every request of every run."""
        return (self.requests + self.warmup) * self.runs if self.unique else self.profile.prompts

    @property
    def sample_s(self) -> float:
        """Seconds between samples of the workers."""
        is_short = self.profile.name == "smoke" or self.requests < SHORT
        return SHORT_SAMPLE_S if is_short else SAMPLE_S


def parser() -> judge.Parser:
    """The command line."""
    top = judge.Parser(
        prog=program("validate"),
        description="Put the validator's load on an endpoint and judge the outcome by its rule. "
        "Exit status: 0 pass, 1 fail, 2 skipped (nothing was asked), 3 void or broken.",
        epilog=VALIDATOR,
    )
    top.add_argument("--url", required=True, help="base URL of the endpoint")
    top.add_argument("--model", required=True)
    add_options(top)
    _add_runs(top.add_argument_group("runs and workers"))
    return top


def add_options(top: argparse.ArgumentParser) -> None:
    """The options that do not depend on the endpoint or the number of runs."""
    top.add_argument("--gpus", type=positive, help="GPUs benchmarked; default: --platform's")
    top.add_argument("--profile", default="knee", help="knee, sub-knee, smoke or a .yaml file")
    judge.add_constraints(top)
    top.add_argument("--slo", action="append", default=[], help="ttft:MS, itl:MS or e2e:MS; repeat")
    _add_load(top.add_argument_group("load, instead of the profile's"))
    add_load_options(top.add_argument_group("load beyond the plain closed loop"))
    _add_process(top.add_argument_group("procedure"))


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--concurrency", type=positive, help="streams in all")
    group.add_argument("--requests", type=positive, help="of the measured phase")
    group.add_argument("--warmup", type=int, help="requests before it, drained and excluded")
    group.add_argument("--prompt-tokens", type=positive)
    group.add_argument("--output-tokens", type=positive)
    group.add_argument("--prompts", type=positive, help="distinct prompts, cycled through")
    group.add_argument("--unique-prompts", action="store_true", help="no prompt is sent twice")
    group.add_argument("--seed", type=int)
    group.add_argument("--timeout", type=float, help="seconds until a request counts as failed")


def _add_process(group: argparse._ArgumentGroup) -> None:
    usual = ReadinessLimits()
    add = group.add_argument
    add("--processes", type=positive, help="of the load generator")
    add("--out", type=Path, help=f"folder for the results; default: a dated one in {RESULTS}/")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the key")
    add("--api-key-file", type=Path, metavar="FILE", help="file that holds the key")
    add("--insecure", action="store_true", help="do not verify the endpoint's certificate")
    add("--no-live", action="store_true", help="plain lines also on a terminal")
    add(
        "--note",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="a row of the report's table, such as policy=round_robin; repeat",
    )
    add("--ready-timeout", type=seconds, default=usual.tries, help="seconds for one try")
    add("--ready-interval", type=seconds, default=usual.between, help="seconds between tries")
    add("--ready-window", type=seconds, default=usual.window, help="seconds in all")


def _add_runs(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--runs", type=positive, default=1, help="warm-up and measured phase, so many times")
    add("--require", type=positive, metavar="K", help="runs that must pass; default: all")
    add("--worker", action="append", default=[], metavar="URL", help="an engine's own; repeat")
    add("--workers-expected", type=positive, metavar="N", help="usable before the load")
    add("--generator", choices=(OURS, AIPERF), default=OURS, help="what sends the requests")
    add(
        "--sentinel",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="also print the result JSON on stdout, between sentinel lines as the validator does",
    )


def seconds(text: str) -> float:
    """A time above zero."""
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0 seconds, not {text}")
    return number


def read(argv: Sequence[str], at: datetime) -> Plan:
    """The plan. Ends the process with status 3 where an option is wrong."""
    top = parser()
    arguments = top.parse_args(argv)
    try:
        return plan(arguments, at)
    except WRONG as error:
        top.error(str(error))


def plan(arguments: argparse.Namespace, at: datetime) -> Plan:
    """Raises the exceptions of WRONG."""
    platform = PLATFORMS.get(arguments.platform)
    gpus = arguments.gpus or (platform.gpus if platform else None)
    if gpus is None:
        raise Invalid("--gpus: say how many are benchmarked, or name a --platform")
    if arguments.require is not None and arguments.require > arguments.runs:
        raise Invalid(f"--require: there are only {arguments.runs} --runs")
    profile = resolved(arguments, gpus)
    found = Plan(
        address=address(arguments.url),
        model=check_model(arguments.model),
        gpus=gpus,
        gpus_total=arguments.gpus_total or (platform.gpus if platform else None),
        profile=profile,
        constraints=judge.constraints_of(arguments, None, gpus),
        slos=tuple(parse(each) for each in arguments.slo),
        runs=arguments.runs,
        required=arguments.require,
        workers=tuple(address(each).url for each in dict.fromkeys(arguments.worker)),
        workers_expected=arguments.workers_expected,
        processes=arguments.processes
        or usual_processes(min(profile.concurrency(1), arguments.max_in_flight or UNLIMITED)),
        out=arguments.out or RESULTS / f"{at:%Y-%m-%dT%H%M%SZ}-{profile.name}",
        key=key_of(arguments),
        verify=not arguments.insecure,
        live=not arguments.no_live,
        sentinel=arguments.sentinel,
        unique=arguments.unique_prompts,
        generator=arguments.generator,
        readiness=ReadinessLimits(
            arguments.ready_timeout, arguments.ready_interval, arguments.ready_window
        ),
        notes=tuple(_note(each) for each in arguments.note),
    )
    _check(found)
    basis = Basis(profile, found.model, found.requests, arguments.requests, found.prompts)
    found = replace(found, offer=load_of(arguments, basis))
    if found.offer is not None:
        _check_offer(found, found.offer)
    if found.generator == AIPERF:
        _check_aiperf(found, arguments.processes)
    return found


def _note(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise Invalid(f"--note {text}: not NAME=TEXT, such as policy=round_robin")
    return name, value


def resolved(arguments: argparse.Namespace, gpus: int) -> Profile:
    """The profile, changed by the command line. Raises InvalidProfile."""
    base = profiles.find(arguments.profile)
    changes: dict[str, Any] = {
        "requests": arguments.requests,
        "warmup": arguments.warmup,
        "input_tokens": arguments.prompt_tokens,
        "output_tokens": arguments.output_tokens,
        "prompts": arguments.prompts,
        "seed": arguments.seed,
        "timeout": arguments.timeout,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if arguments.requests is not None or arguments.unique_prompts:  # so many, and no more
        given["min_seconds"] = 0.0
    return replace(
        base, concurrency_per_gpu=arguments.concurrency or base.concurrency(gpus), **given
    )


def _check(found: Plan) -> None:
    if (found.out / NAME).exists() or (found.out / "run-1").exists():
        raise Invalid(f"--out: {found.out} holds results already")
    if found.out.exists() and not found.out.is_dir():
        raise Invalid(f"--out: {found.out} is no folder")
    if found.processes > found.concurrency:
        raise Invalid(f"--processes: more than the {found.concurrency} streams")
    try:
        prompts.check(found.prompts, found.profile.input_tokens)
    except ValueError as error:
        raise Invalid(f"--prompts: {error}") from None


def _check_offer(found: Plan, offer: Offer) -> None:
    if found.unique and offer.conversations >= UNLIMITED:
        raise Invalid("--unique-prompts: with --duration say how many at most, by --requests")
    # Each process sends at least one, or the requests of its turn would never be sent.
    if offer.pace.cap is not None and found.processes > offer.pace.cap:
        raise Invalid(f"--processes: more than the {offer.pace.cap} of --max-in-flight")


def _check_aiperf(found: Plan, processes: int | None) -> None:
    """AIPerf has no place for some options; and a key on its command line would be seen by all."""
    wrong = {
        "--unique-prompts": found.unique,
        "--processes": processes is not None,
        "--api-key-env and --api-key-file": found.key is not None,
        "a load beyond the plain closed loop": found.offer is not None,
    }
    if names := [name for name, given in wrong.items() if given]:
        raise Invalid(f"{', '.join(names)}: not with --generator {AIPERF}")
    try:
        environment.check()
    except environment.NotInstalled as error:
        raise Invalid(f"--generator: {error}") from None


def usual_processes(concurrency: int) -> int:
    """By the streams and by the cores that we may use."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, math.ceil(concurrency / STREAMS_PER_PROCESS))


def key_of(arguments: argparse.Namespace) -> str | None:
    """The key, which is never shown. Raises Invalid."""
    name, path = arguments.api_key_env, arguments.api_key_file
    if name is not None and path is not None:
        raise Invalid("--api-key-env and --api-key-file: one of them")
    if name is None and path is None:
        return None
    option = "--api-key-env" if path is None else "--api-key-file"
    text = os.environ.get(name, "") if path is None else path.read_text(encoding="utf-8")
    key = str(text).strip()
    if not key:
        raise Invalid(f"{option}: {name or path} holds no key")
    if not key.isascii() or not key.isprintable():
        raise Invalid(f"{option}: {name or path} holds what is no key")
    return key
