"""Pass or fail: the validator's rule (reference 1.4), and faults that it ignores.

Pure. The validator's part keeps to its operators, tolerance, scaling, order and messages. Beyond
it: missing figures fail, errors are gated, throughput may have a floor relative to a baseline, a
run that the client limited or that was interrupted is void, and several runs are one verdict.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from benchmarks.gate.analysis.constraints import (
    THROUGHPUT_TOLERANCE,
    TTFT_LIMIT_MS,
    TTFT_TOLERANCE,
    Constraints,
    errors_allowed,
    scaled,
    throughput_threshold,
    ttft_threshold,
)
from benchmarks.gate.analysis.metrics import Metrics
from benchmarks.gate.analysis.records import Client

# Fewer in flight were another workload: 446 of 2048 looked like a server's fault (r3 of 1.14).
REACHED = 0.95
# Above this share of a core, queueing in the generator shows in the latencies.
CLIENT_CPU = 0.9
# A loop that is later than this share of the TTFT that is judged has measured itself.
LAG_SHARE = 0.05
TIMED_OUT, REFUSED_SHARE = "timed out", 0.01
# Errors of a connection that are the client machine's own, not the endpoint's.
EXHAUSTED = {
    "cannot connect: EMFILE": "open files (ulimit -n)",
    "cannot connect: ENFILE": "open files (fs.file-max)",
    "cannot connect: EADDRNOTAVAIL": "local ports (net.ipv4.ip_local_port_range)",
}
SKIPPED = "no inference-throughput or inference-ttft-p99 constraint in recipe"


class Exit(IntEnum):
    """Process exit codes."""

    PASS = 0
    FAIL = 1
    SKIPPED = 2
    VOID = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one run. `lines` are for stdout, `failures` are the reasons; `validator` is the verdict of
    the AICR validator (None: skipped), which ignores errors and a missing TTFT."""

    passed: bool
    lines: tuple[str, ...]
    failures: tuple[str, ...]
    void_reason: str | None = None
    skipped: bool = False
    validator: bool | None = None

    @property
    def exit_code(self) -> Exit:
        """Void before skipped before failed."""
        if self.void_reason is not None:
            return Exit.VOID
        if self.skipped:
            return Exit.SKIPPED
        return Exit.PASS if self.passed else Exit.FAIL

    @property
    def word(self) -> str:
        """PASS, FAIL, SKIPPED or VOID."""
        return self.exit_code.name

    @property
    def message(self) -> str:
        """Why, in one line."""
        if self.void_reason is not None:
            return f"void: {self.void_reason}"
        return SKIPPED if self.skipped else "; ".join(self.failures)


def judge(
    metrics: Metrics,
    constraints: Constraints,
    gpus_benchmarked: int | None = None,
    gpus_total: int | None = None,
    *,
    client: Client | None = None,
    in_flight: int | None = None,
    interrupted: bool = False,
) -> Verdict:
    """Judge one run. `in_flight` is how many requests the client should have reached.

    Raises InvalidConstraint.
    """
    constraints.check()
    lines, failures = _validator(metrics, constraints, gpus_benchmarked, gpus_total)
    # The validator reads a missing figure as 0: throughput fails then, TTFT passes.
    blind = metrics.ttft_p99_ms is None and len(failures) == 1 and failures[0].startswith(MISSING)
    judged = constraints.throughput is not None or constraints.ttft_p99 is not None
    validator = (not failures or blind) if judged else None
    beyond = [*_baseline(metrics, constraints), *_errors(metrics, constraints)]
    failures = [*failures, *(text for text, fine in beyond if not fine)]
    lines = [*lines, *(text for text, fine in beyond if fine)]
    too_many = metrics.errors > _allowed(metrics, constraints)
    measured = None if too_many and refused(metrics) else client
    limits = exhausted(metrics)
    limits += client_limits(measured, None if too_many else in_flight, constraints.ttft_limit_ms)
    void = "; ".join((["interrupted"] if interrupted else []) + limits) or None
    return Verdict(
        passed=not failures and not constraints.empty and void is None,
        lines=tuple(lines),
        failures=tuple(failures),
        void_reason=void,
        skipped=constraints.empty,
        validator=validator,
    )


MISSING = "inference TTFT p99 is missing"


def _validator(
    metrics: Metrics, constraints: Constraints, benchmarked: int | None, total: int | None
) -> tuple[list[str], list[str]]:
    """The validator's lines and its failure: throughput first, which ends it."""
    value, ttft = metrics.output_token_throughput, metrics.ttft_p99_ms
    lines = [
        f"RESULT: Inference throughput: {_shown(value, 'tokens/sec')}",
        f"RESULT: Inference TTFT p99: {_shown(ttft, 'ms')}",
    ]
    if (asked := constraints.throughput) is not None:
        full = throughput_threshold(asked)
        floor = scaled(full, benchmarked, total)
        if floor != full:
            lines.append(
                f"Throughput gate scaled to {benchmarked} of {total} node GPUs benchmarked: "
                f"{full:.2f} -> {floor:.2f} tokens/sec"
            )
        if value is None or not value >= floor * THROUGHPUT_TOLERANCE:
            return lines, [f"inference throughput {_shown(value, 'tokens/sec')} {_unmet(asked)}"]
        lines.append(f"Throughput constraint: {asked} → PASS")
    if (asked := constraints.ttft_p99) is not None:
        if ttft is None:
            return lines, [f'{MISSING} from the result: constraint "{asked}" cannot be met']
        if not ttft <= ttft_threshold(asked) * TTFT_TOLERANCE:
            return lines, [f"inference TTFT p99 {_shown(ttft, 'ms')} {_unmet(asked)}"]
        lines.append(f"TTFT p99 constraint: {asked} → PASS")
    return lines, []


def _shown(value: float | None, unit: str) -> str:
    return f"missing ({unit})" if value is None else f"{value:.2f} {unit}"


def _unmet(constraint: str) -> str:
    return f'does not satisfy constraint "{constraint}" (with 10% tolerance)'


def _baseline(metrics: Metrics, constraints: Constraints) -> list[tuple[str, bool]]:
    if constraints.baseline is None:
        return []
    floor, value = (
        constraints.baseline * constraints.baseline_floor,
        metrics.output_token_throughput,
    )
    asked = (
        f"{constraints.baseline_floor:g} of the healthy median {constraints.baseline:.2f} "
        f"({floor:.2f} tokens/sec)"
    )
    if value is None or not value >= floor:
        return [(f"inference throughput {_shown(value, 'tokens/sec')} is below {asked}", False)]
    return [(f"Baseline: at least {asked} → PASS", True)]


def _allowed(metrics: Metrics, constraints: Constraints) -> int:
    return errors_allowed(constraints.max_errors, metrics.errors + (metrics.requests or 0))


def _errors(metrics: Metrics, constraints: Constraints) -> list[tuple[str, bool]]:
    """No line about errors without other constraints."""
    if constraints.empty:
        return []
    allowed, ended = _allowed(metrics, constraints), metrics.errors + (metrics.requests or 0)
    if metrics.errors > allowed:
        kinds = "; ".join(f"{each.count} x {each.message}" for each in metrics.error_summary[:3])
        text = f"{metrics.errors} of {ended} requests failed, {allowed} may"
        return [(f"{text}: {kinds}" if kinds else text, False)]
    return [(f"Errors: {metrics.errors}, at most {allowed} → PASS", True)]


def refused(metrics: Metrics) -> bool:
    """Many failures were no time-outs. Who is refused at once asks again at once: that keeps a
    client as busy as it can be, and is not its limit."""
    ended = metrics.errors + (metrics.requests or 0)
    return metrics.errors - timed_out(metrics) > REFUSED_SHARE * ended


def timed_out(metrics: Metrics) -> int:
    """Failures that were time-outs."""
    return sum(e.count for e in metrics.error_summary if e.message.startswith(TIMED_OUT))


def exhausted(metrics: Metrics) -> list[str]:
    """What the client had too few of for its connections; their failures are not the endpoint's."""
    return [
        f"the client ran out of {EXHAUSTED[each.message]}: {each.count} requests had no connection"
        for each in metrics.error_summary
        if each.message in EXHAUSTED
    ]


def client_limits(
    client: Client | None, in_flight: int | None, ttft_limit_ms: float = TTFT_LIMIT_MS
) -> list[str]:
    """Why the client was the limit; empty if it had room, or is unknown.

    Even if all constraints are met: a smaller load than requested is easy to meet.
    """
    if client is None:
        return []
    late, lag = LAG_SHARE * ttft_limit_ms, client.lag_p99_ms or 0.0
    checks = (
        (
            in_flight is not None and client.reached < REACHED * in_flight,
            f"the client reached {client.reached} of {in_flight} requests in flight",
        ),
        (client.cpu > CLIENT_CPU, f"the client used {client.cpu:.2f} of a core"),
        (lag > late, f"the client's loop was late: p99 {lag:.0f} ms"),
    )
    return [reason for limited, reason in checks if limited]


@dataclass(frozen=True, slots=True)
class Series:
    """Several runs as one: how many passed, of how many, and how far they lie apart. `broken` is
    the reason for fewer runs than planned."""

    passed: int
    void: int
    runs: int
    required: int
    skipped: bool
    throughputs: tuple[float, ...]
    ttfts_ms: tuple[float, ...]
    broken: str | None = None

    @property
    def exit_code(self) -> Exit:
        """Void where it broke off, or where repeating the void runs could still decide it."""
        if self.broken is not None:
            return Exit.VOID
        if self.skipped:
            return Exit.SKIPPED
        if self.runs and self.passed >= self.required:
            return Exit.PASS
        return Exit.VOID if self.passed + self.void >= self.required else Exit.FAIL

    @property
    def lines(self) -> tuple[str, ...]:
        """k of N, then median and spread."""
        void = f", {self.void} void" if self.void else ""
        found = [f"{self.passed} of {self.runs} passed{void} ({self.required} required)"]
        found += [] if self.broken is None else [f"void: {self.broken}"]
        kinds = (
            ("throughput", self.throughputs, "tokens/sec"),
            ("TTFT p99", self.ttfts_ms, "ms"),
        )
        for name, values, unit in kinds:
            if len(values) == 1:
                found.append(f"{name}: {values[0]:.2f} {unit}")
            elif values:
                found.append(
                    f"{name}: median {statistics.median(values):.2f} "
                    f"[{min(values):.2f}–{max(values):.2f}] {unit}"
                )
        return tuple(found)


def series(
    verdicts: Sequence[Verdict],
    metrics: Sequence[Metrics],
    required: int | None = None,
    broken: str | None = None,
) -> Series:
    """One verdict of several runs; all must pass unless fewer are required. Void runs are in no
    median."""
    counted = [m for v, m in zip(verdicts, metrics, strict=True) if v.void_reason is None]
    codes = [each.exit_code for each in verdicts]
    return Series(
        passed=codes.count(Exit.PASS),
        void=codes.count(Exit.VOID),
        runs=len(codes),
        required=len(codes) if required is None else required,
        skipped=bool(codes) and all(code is Exit.SKIPPED for code in codes),
        throughputs=tuple(
            each.output_token_throughput
            for each in counted
            if each.output_token_throughput is not None
        ),
        ttfts_ms=tuple(each.ttft_p99_ms for each in counted if each.ttft_p99_ms is not None),
        broken=broken,
    )
