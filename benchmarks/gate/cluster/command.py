"""`pd-bench cluster`: the gate on a Kubernetes cluster, in its own namespace.

Exit status as of `validate`: 0 pass, 1 fail, 2 skipped (no thresholds), 3 void or broken.
Faults of the cluster or of the user's rights are 3, never a verdict on the deployment.
"""

import argparse
import contextlib
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command_line import VALIDATOR, positive, program
from benchmarks.gate import judge
from benchmarks.gate.analysis.constraints import InvalidConstraint
from benchmarks.gate.analysis.records import Unreadable
from benchmarks.gate.analysis.verdict import SKIPPED, Exit, Verdict
from benchmarks.gate.cluster.kubectl import ClusterTrouble, Kubectl
from benchmarks.gate.cluster.procedure import Measured, Plan, Procedure
from benchmarks.gate.options import RESULTS, seconds
from benchmarks.gate.output import export, results
from benchmarks.gate.profiles import PLATFORMS
from router import __version__

OVERLAY = Path(__file__).parents[3] / "deploy" / "kubernetes" / "overlays" / "gate"
LOG = "gate.log"
DEFAULT_GPUS = 8


def parser() -> judge.Parser:
    """The command line."""
    top = judge.Parser(
        prog=program("cluster"),
        description="Start one router and whole engines on one node of a cluster, run the gate "
        "beside them as a Job, judge it, and delete all of it. Exit status: 0 pass, 1 fail, "
        "2 skipped (no thresholds), 3 void, or the cluster or your rights do not allow it.",
        epilog=VALIDATOR,
    )
    add = top.add_argument
    add("--platform", choices=PLATFORMS, help="the published thresholds, and its GPUs per node")
    add("--throughput", help='tokens per second, such as ">= 50000"')
    add("--ttft-p99", help='milliseconds, such as "<= 2000"')
    add("--gpus", type=positive, help="GPUs benchmarked; default: --platform's, else 8")
    add("--profile", choices=("knee", "sub-knee", "smoke"), help="the load; default: knee")
    add("--overlay", type=Path, default=OVERLAY, help="what is applied; default: this checkout's")
    add("--context", help="of the kubeconfig file")
    add("--no-cleanup", action="store_true", help="leave the namespace, to look into it")
    add("--out", type=Path, help=f"folder for the results; default: a dated one in {RESULTS}/")
    add("--ready-timeout", type=seconds, default=2400.0, help="seconds for the engines' start")
    add("--measure-timeout", type=seconds, default=1800.0, help="seconds for the load")
    return top


def main(argv: Sequence[str]) -> int:
    """Run it and return the exit status."""
    top, at = parser(), datetime.now(UTC)
    arguments = top.parse_args(argv)
    try:
        constraints = judge.constraints_of(_with_defaults(arguments), None, None)
    except (InvalidConstraint, Unreadable) as error:
        top.error(str(error))
    out = arguments.out or RESULTS / f"{at:%Y-%m-%dT%H%M%SZ}-cluster"
    if any((out / name).exists() for name in (LOG, results.NAME, "run-1")):
        top.error(f"--out: {out} holds results already")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        top.error(f"--out: {error}")
    if constraints.empty:
        return _without_figures(out, at, Verdict(False, (), (), skipped=True))
    try:
        return _judged(out, at, _carried_out(arguments))
    except (ClusterTrouble, OSError, ValueError) as trouble:
        return _without_figures(out, at, Verdict(False, (), (), void_reason=str(trouble)))


def _with_defaults(arguments: argparse.Namespace) -> argparse.Namespace:
    """The options, with defaults for the options that only `judge` has."""
    nothing = {"max_errors": None, "baseline": None, "baseline_floor": None}
    return argparse.Namespace(**{**nothing, **vars(arguments)})


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan, with the name of a new namespace."""
    platform = PLATFORMS.get(arguments.platform)
    thresholds = {"--throughput": arguments.throughput, "--ttft-p99": arguments.ttft_p99}
    # Without --platform the overlay's own thresholds do not apply either.
    options = {"--platform": arguments.platform, **thresholds, "--profile": arguments.profile}
    return Plan(
        overlay=arguments.overlay,
        namespace=f"pd-router-gate-{secrets.token_hex(4)}",
        gpus=arguments.gpus or (platform.gpus if platform else DEFAULT_GPUS),
        options=options,
        cleanup=not arguments.no_cleanup,
        ready_s=arguments.ready_timeout,
        measure_s=arguments.measure_timeout,
    )


def _carried_out(arguments: argparse.Namespace) -> Measured:
    kubectl = Kubectl(arguments.context)
    try:
        return Procedure(plan_of(arguments), kubectl, _say).carry_out()
    except KeyboardInterrupt:
        raise ClusterTrouble("interrupted before the gate had ended") from None


def _say(text: str) -> None:
    # Clean up even if the terminal is gone.
    with contextlib.suppress(OSError):
        print(text, flush=True)


def _judged(out: Path, at: datetime, measured: Measured) -> int:
    """Store the Job's output and repeat its verdict. The Job's exit status is ours."""
    (out / LOG).write_text(measured.log, encoding="utf-8")
    try:
        results.unframed(measured.log)
        found = results.read(out / LOG)
    except Unreadable as error:
        last = "\n".join(measured.log.splitlines()[-12:])
        why = f"the gate ended with status {measured.exit_status}: {error}\n{last}"
        return _without_figures(out, at, Verdict(False, (), (), void_reason=why))
    asked = found.constraints
    assert asked is not None, "the gate was given thresholds, and writes them down"
    evaluation = judge.evaluate(found, asked, found.gpus, found.gpus_total)
    judge.show([evaluation], judge.series_of([evaluation]))
    (out / export.CTRF).write_bytes(results.to_json(judge.ctrf_of([evaluation])))
    print(f"written to {out}")
    known = {int(each) for each in Exit}
    return measured.exit_status if measured.exit_status in known else int(Exit.VOID)


def _without_figures(out: Path, at: datetime, verdict: Verdict) -> int:
    """Write a CTRF report with the reason why there are no results. Returns the exit status."""
    lasted = (datetime.now(UTC) - at).total_seconds()
    document = export.ctrf([verdict], [at], [lasted], __version__)
    (out / export.CTRF).write_bytes(results.to_json(document))
    if verdict.skipped:
        print(f"skipped: {SKIPPED}")
    else:
        print(f"error: {verdict.void_reason}", file=sys.stderr)
    return int(verdict.exit_code)
