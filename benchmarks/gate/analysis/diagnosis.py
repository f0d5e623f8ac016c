"""The shape of a run and its likely cause (reference 1.14 and 4.10).

Pure. It looks at evidence in this order: was it the client; did one worker hold too much; did
requests fail; were workers missing; did first tokens wait behind one worker; was the start slow;
and only then what all workers share.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks.gate.analysis.constraints import TTFT_TOLERANCE, Constraints
from benchmarks.gate.analysis.evidence import (
    MOSTLY,
    STALLED_SHARE,
    Span,
    backed_up,
    chunks_of,
    comparable,
    holder,
    onset,
    silence,
    slowest,
    standstills,
    tokens_per_request,
)
from benchmarks.gate.analysis.metrics import Metrics
from benchmarks.gate.analysis.records import Diagnosis, Kind, Run
from benchmarks.gate.analysis.timeline import (
    Timeline,
    attributed,
    chunk_times,
    end_of,
    rate,
    timeline,
    visits,
    workers_of,
)
from benchmarks.gate.analysis.verdict import client_limits, exhausted, refused, timed_out

# Jitter at the knee was 1 to 2 s, against ceilings of 1 s and of 2 s: it begins at half of the
# latter, and ends at 2.2 s or where the ceiling does.
QUIET = 0.5
JITTER, JITTER_MS = 2.0, 2200.0
# More failures than this are the diagnosis, before all other evidence.
ERROR_SHARE = 0.01
# Cold: less than half of the later rate, for a fifth of the phase or longer.
COLD_RATE, COLD_SHARE = 0.5, 0.2
BINS = 40


@dataclass(frozen=True, slots=True)
class Limits:
    """What the constraints come to: TTFT p99 that raises no question, that passes, and the least
    throughput."""

    quiet_ms: float
    ttft_ms: float
    throughput: float


def limits_of(asked: Constraints, benchmarked: int | None, total: int | None) -> Limits:
    """Tolerance and scaling included. Raises InvalidConstraint."""
    limit, floor = asked.ttft_limit_ms, asked.throughput_floor(benchmarked, total)
    return Limits(limit / TTFT_TOLERANCE * QUIET, limit, floor)


def classify(
    run: Run | None,
    metrics: Metrics,
    constraints: Constraints | None = None,
    gpus_total: int | None = None,
) -> Diagnosis:
    """The diagnosis. Without `run` (AIPerf's export) workers are unknown.

    The throughput limit is for `gpus_total`. Raises InvalidConstraint.
    """
    asked = limits_of(constraints or Constraints(), run.gpus if run else None, gpus_total)
    bad = unwell(metrics, asked)
    if run is None:
        return _errors(None, metrics, asked, None) or _shared(metrics, asked, "")
    seen = timeline(run)
    seen = None if seen is None else comparable(run, seen)
    found = _client(run, metrics, asked) or _backup(run, seen) or _errors(run, metrics, asked, seen)
    if found is None and bad:
        found = _missing(run) or _behind_one(run) or _cold(run)
    if found is not None:
        return found
    shared = _shared(metrics, asked, _balance(run, seen))
    # Named even if others took its load: the run shows it.
    for still in standstills(run)[:1]:
        text = f"{shared.text} {_still(still)} The load went elsewhere."
        return Diagnosis(shared.kind, still.worker, text, still.since, still.until)
    return shared


def unwell(metrics: Metrics, asked: Limits) -> bool:
    """Something to explain: a figure missing, slow first tokens, too little throughput."""
    ttft, throughput = metrics.ttft_p99_ms, metrics.output_token_throughput
    if ttft is None or throughput is None:
        return True
    return ttft > asked.quiet_ms or throughput < asked.throughput


def _client(run: Run, metrics: Metrics, asked: Limits) -> Diagnosis | None:
    failing = metrics.error_share > ERROR_SHARE
    reachable = None if failing else min(run.concurrency, len(run.requests))
    measured = None if refused(metrics) else run.client
    limits = exhausted(metrics) + client_limits(measured, reachable, asked.ttft_ms)
    if not limits:
        return None
    return Diagnosis(Kind.CLIENT, None, f"{'; '.join(limits)}: this says nothing about the server.")


def _backup(run: Run, seen: Timeline | None) -> Diagnosis | None:
    if seen is None or len(seen.loads) < 2:
        return None
    fair = run.concurrency / len(seen.loads)
    last_sent = max((each.sent for each in run.requests), default=0.0)
    spans = [span for name in seen.loads if (span := backed_up(seen, name, fair, last_sent))]
    if not spans:
        return None

    def excess(span: Span) -> float:
        return float(np.nansum(seen.loads[span.worker] - seen.others(span.worker)))

    worst = max(spans, key=excess)
    load, others = seen.loads[worst.worker], seen.others(worst.worker)
    peak = int(np.nanargmax(load))
    # At the peak of a tail, the median of the others may be unknown: then none were seen.
    beside = 0.0 if np.isnan(others[peak]) else others[peak]
    text = (
        f"{worst.worker} held up to {load[peak]:.0f} requests (at {seen.times[peak]:.1f} s) while "
        f"the median of the other {len(seen.loads) - 1} was {beside:.0f}; a fair share is "
        f"{fair:.0f}. It was backed up since {worst.since:.1f} s, for {worst.seconds:.1f} s."
    )
    # A backlog builds up for a while before it is one: what made it is older.
    began, silent = onset(seen, worst, fair), silence(run, worst)
    if silent is not None:
        began = min(began, silent.since)
        text += f" It sent nothing from {silent.since:.1f} s on, for {silent.seconds:.1f} s."
    text += _output(run, worst) + _tail(run, worst.worker)
    return Diagnosis(Kind.BACKUP, worst.worker, text, began, worst.until)


def _output(run: Run, span: Span) -> str:
    """Its tokens in that time, if requests name their worker.

    Per request held: the others starve while all requests wait behind one.
    """
    if not attributed(run):
        return ""
    chunks = chunks_of(run)
    requests = visits(run)
    rates = {name: tokens_per_request(requests[name], name, chunks[name], span) for name in chunks}
    mine = rates.pop(span.worker, None)
    others = [each for each in rates.values() if each is not None]
    if mine is None or not others:
        return ""
    text = (
        f" Meanwhile it produced {mine:.1f} tokens/s per request held, "
        f"the median of the others {float(np.median(others)):.1f}."
    )
    own = chunks[span.worker]
    if not len(own) or own[0] > span.since:
        text += " It had produced nothing before: it may not have been ready."
    return text


def _tail(run: Run, worker: str) -> str:
    tail = slowest(run)
    if not attributed(run) or not tail:
        return ""
    waited = [each for each in tail if each.waited_for == worker]
    text = f" {len(waited) / len(tail):.0%} of the slowest 1% of first tokens waited there"
    if moved := sum(bool(each.left) for each in waited):
        text += f", {moved} of these {len(waited)} until the router moved them to another worker"
    return f"{text}."


def _errors(
    run: Run | None, metrics: Metrics, asked: Limits, seen: Timeline | None
) -> Diagnosis | None:
    if not metrics.errors and metrics.requests != 0:
        return None
    kinds = "; ".join(f"{each.count} x {each.message}" for each in metrics.error_summary[:3])
    ended = metrics.errors + (metrics.requests or 0)
    text = f"{metrics.errors} of {ended} requests failed" + (f" ({kinds})." if kinds else ".")
    few = metrics.error_share <= ERROR_SHARE and unwell(metrics, asked)
    # A few failures do not explain slow answers: these are looked into first.
    if few and metrics.requests:
        return None
    if run is None:
        return Diagnosis(Kind.ERRORS, None, text)
    failed = [each for each in run.requests if not (each.succeeded or run.gave_up(each))]
    named = Counter(each.worker for each in failed if each.worker is not None)
    worker, count = named.most_common(1)[0] if named else (None, 0)
    since = min((each.ended for each in failed if each.ended is not None), default=None)
    if since is not None:
        text += f" The first did at {since:.1f} s."
    if worker is None or count < MOSTLY * len(failed) or len(workers_of(run)) < 2:
        worker, more = _stuck(metrics, seen, since)
        return Diagnosis(Kind.ERRORS, worker, text + more + _aside(run), since)
    return Diagnosis(Kind.ERRORS, worker, f"{text} {count} were {worker}'s." + _aside(run), since)


def _stuck(metrics: Metrics, seen: Timeline | None, since: float | None) -> tuple[str | None, str]:
    """Who had the requests that timed out. Who fails at once holds none: others would be named."""
    late = timed_out(metrics)
    if seen is None or since is None or late < MOSTLY * metrics.errors:
        return None, ""
    if (found := holder(seen, since)) is None:
        return None, ""
    worker, held, total = found
    return worker, f" {worker} held {held:.0f} of the {total:.0f} requests in flight then."


def _aside(run: Run) -> str:
    """The router's reasons for excluded workers."""
    said = {
        each.worker: (each.exclusion, each.at) for each in reversed(run.samples) if each.exclusion
    }
    return "".join(
        f" The router set {name} aside at {at:.1f} s: {why}."
        for name, (why, at) in sorted(said.items())
    )


def _missing(run: Run) -> Diagnosis | None:
    """Fewer workers than expected, or workers without an answer."""
    names, expected = workers_of(run), run.gpus if run.workers is None else run.workers
    if not names:
        return None
    served = {each.worker for each in run.requests if each.succeeded}
    # No answer names a prefill engine, but samples show its requests.
    held = {each.worker for each in run.samples if each.in_flight or each.running or each.waiting}
    idle = [n for n in names if n not in served | held] if attributed(run) else []
    if len(names) - len(idle) >= expected and not idle:
        return None
    text = f"{len(names) - len(idle)} of {max(expected, len(names))} workers served requests"
    text += f"; {', '.join(idle)} served none." if idle else "."
    return Diagnosis(
        Kind.UNDER_PROVISIONED, idle[0] if len(idle) == 1 else None, text + _aside(run)
    )


def _behind_one(run: Run) -> Diagnosis | None:
    """First tokens that waited behind one worker, though it never held more than others."""
    tail = slowest(run)
    if not attributed(run) or len(workers_of(run)) < 2 or not tail:
        return None
    worker, count = Counter(each.waited_for for each in tail).most_common(1)[0]
    if worker is None or count < MOSTLY * len(tail):
        return None
    still = next((span for span in standstills(run) if span.worker == worker), None)
    if still is None:
        return None
    text = _tail(run, worker).strip() + " " + _still(still)
    return Diagnosis(Kind.BACKUP, worker, text, still.since, still.until)


def _still(span: Span) -> str:
    return (
        f"{span.worker} stood still (under {STALLED_SHARE:.0%} of the others' tokens) from "
        f"{span.since:.1f} s for {span.seconds:.1f} s."
    )


def _cold(run: Run) -> Diagnosis | None:
    end = end_of(run)
    rates = rate(chunk_times(run.requests), np.linspace(0.0, end, BINS + 1)) if end > 0 else None
    if rates is None:
        return None
    steady = float(np.median(rates[BINS // 2 : BINS * 9 // 10]))
    slow = rates < COLD_RATE * steady
    lead = BINS if slow.all() else int(np.argmin(slow))
    if not COLD_SHARE * BINS <= lead < BINS:
        return None
    until = end * lead / BINS
    text = (
        f"For the first {until:.1f} of {end:.1f} s the rate was {float(rates[:lead].mean()):.0f} "
        f"tokens/s, later {steady:.0f}."
    )
    return Diagnosis(Kind.COLD, None, text, 0.0, until)


def _balance(run: Run, seen: Timeline | None) -> str:
    """What is known of the workers, of a run in which none of them is to blame."""
    loads = () if seen is None else seen.loads.values()
    peaks = [float(np.nanmax(load)) for load in loads if not np.isnan(load).all()]
    if len(loads) < 2 or not peaks:
        return " Nothing is known of single workers."
    return (
        f" None of the {len(loads)} workers stood out: each held {min(peaks):.0f} to "
        f"{max(peaks):.0f} requests at most."
    )


def _shared(metrics: Metrics, asked: Limits, balance: str) -> Diagnosis:
    """What all workers share."""
    ttft, throughput = metrics.ttft_p99_ms, metrics.output_token_throughput
    if ttft is None or throughput is None:
        return Diagnosis(Kind.ERRORS, None, "The result lacks the figures that are judged.")
    shown = f"TTFT p99 {ttft:.0f} ms at {throughput:.0f} tokens/s."
    if throughput < asked.throughput or ttft > max(
        asked.ttft_ms, min(asked.ttft_ms * JITTER, JITTER_MS)
    ):
        return Diagnosis(Kind.DEGRADED, None, shown + balance)
    if unwell(metrics, asked):
        return Diagnosis(Kind.JITTER, None, f"{shown} Bursts at the knee look so.{balance}")
    return Diagnosis(Kind.HEALTHY, None, shown + balance)
