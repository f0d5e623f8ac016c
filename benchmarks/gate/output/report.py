"""report.html: one file for a reader who did not see the run: the verdict, its reasons, the
evidence."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.distributions import Distribution
from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import Metrics
from benchmarks.gate.analysis.records import Diagnosis, Kind
from benchmarks.gate.analysis.verdict import Series, Verdict
from benchmarks.gate.output.results import Result

NOTHING = "–"
MEANING = {
    Kind.HEALTHY: "All workers took their share and first tokens came in time.",
    Kind.CLIENT: "The load generator was the limit, so this run says nothing about the server.",
    Kind.ERRORS: "Requests failed, or were not answered with content.",
    Kind.UNDER_PROVISIONED: "Fewer workers served than were expected.",
    Kind.COLD: "The workers were not up to speed when the measurement began.",
    Kind.BACKUP: "One worker stood still or slowed down, and requests waited behind it, while the "
    "others had room. A router that looks at the workers' load avoids this; one that takes "
    "turns does not.",
    Kind.JITTER: "No worker is to blame: at this concurrency the deployment is at its knee, where "
    "bursts of arrivals make some first tokens late. Fewer requests in flight (profile sub-knee) "
    "tell whether it is healthy.",
    Kind.DEGRADED: "All workers were slow alike: look at what they share, such as the machine, the "
    "network, or the deployment's settings.",
}
CAPTIONS = {
    "workers": "Every line is one worker. Balanced workers stay together near the fair share; a "
    "worker that stalls piles up requests while the others run empty.",
    "first-tokens": "Every dot is one request. The first wave is sent all at once and waits longer "
    "than the rest; what matters is what lies above the limit.",
    "throughput": "A dip in all workers at once is shared; a dip in one is its own.",
    "distributions": "The share that took longer than a time; both axes are logarithmic. Where a "
    "curve crosses 0.01 is its p99, which is judged.",
}
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1c2733;max-width:62rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.verdict{border-left:.5rem solid;padding:.8rem 1.2rem;background:#f5f7f9;margin:1rem 0}
.PASS{border-color:#2e7d32}.FAIL{border-color:#c62828}.VOID,.SKIPPED{border-color:#b26a00}
.verdict strong{font-size:1.3rem}
table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #dde3e8}
th:first-child,td:first-child,td.text{text-align:left}
td.PASS{color:#2e7d32}td.FAIL{color:#c62828}td.VOID,td.SKIPPED{color:#b26a00}
figure{margin:1rem 0}img{max-width:100%}figcaption{color:#52606d;font-size:.9rem}
ul{margin:.4rem 0}code{background:#eef1f4;padding:0 .25rem}.quiet{color:#52606d}
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """One run with all its texts; pictures are PNGs by name, notes are lines after the
    verdict's."""

    result: Result
    verdict: Verdict
    diagnosis: Diagnosis
    pictures: Mapping[str, bytes]
    notes: Sequence[str] = ()


def html(runs: Sequence[Judged], overall: Series, constraints: Constraints) -> str:
    """The whole page, self-contained."""
    word = overall.exit_code.name
    title = f"{word}: inference performance"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>Inference performance gate</h1>{_endpoint(runs)}",
        f'<div class="verdict {word}"><strong>{word}</strong> {escape(overall.lines[0])}',
        *(f"<br>{escape(line)}" for line in overall.lines[1:]),
        *([_why(runs[0])] if len(runs) == 1 else []),
        "</div>",
        "<h2>What was asked</h2>",
        _asked(constraints),
        _provenance("Who, what, how", _common(runs)),
        *([_table(runs)] if len(runs) > 1 else []),
        *(_section(each, common=_common(runs) if len(runs) > 1 else None) for each in runs),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _endpoint(runs: Sequence[Judged]) -> str:
    first = next((each.result.run for each in runs if each.result.run is not None), None)
    if first is None:
        return '<p class="quiet">From stored figures: nothing is known of single requests.</p>'
    return (
        f'<p class="quiet"><code>{escape(first.model)}</code> at <code>{escape(first.url)}</code>, '
        f"{first.gpus} GPUs, profile {escape(first.profile)}: {len(first.requests)} requests, "
        f"{first.concurrency} at once. Began {escape(first.started_at)}.</p>"
    )


def _common(runs: Sequence[Judged]) -> dict[str, str]:
    """The rows that are the same for all runs."""
    first, *others = (each.result.provenance for each in runs)
    return {
        name: text
        for name, text in first.items()
        if all(other.get(name) == text for other in others)
    }


def _provenance(title: str, rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td class='text'>{escape(text)}</td></tr>"
        for name, text in rows.items()
    )
    return f"<h2>{title}</h2><table>{cells}</table>"


def _why(judged: Judged) -> str:
    message = f"<p>{escape(judged.verdict.message)}</p>" if judged.verdict.message else ""
    kind = judged.diagnosis.kind
    return (
        f"{message}<p><b>{escape(kind.value)}{_named(judged.diagnosis)}.</b> "
        f"{escape(MEANING[kind])}</p><p>{escape(judged.diagnosis.text)}</p>"
    )


def _named(diagnosis: Diagnosis) -> str:
    if diagnosis.worker is None or diagnosis.kind is Kind.HEALTHY:
        return ""
    return f": {escape(diagnosis.worker)}"


def _asked(constraints: Constraints) -> str:
    rows = []
    if constraints.throughput is not None:
        rows.append(f"throughput <b>{escape(constraints.throughput)}</b> tokens/sec, less 10 %")
    if constraints.ttft_p99 is not None:
        rows.append(
            f"TTFT p99 <b>{escape(constraints.ttft_p99)}</b> ms, with 10 % tolerance: 99 of 100 "
            "requests have their first token by then"
        )
    if constraints.baseline is not None:
        rows.append(
            f"at least {constraints.baseline_floor:g} of the healthy median "
            f"{constraints.baseline:,.0f} tokens/sec"
        )
    if not rows:
        return "<p>Nothing: this is a measurement without a verdict.</p>"
    rows.append(f"at most {escape(constraints.max_errors)} failed requests")
    return "<ul>" + "".join(f"<li>{row}</li>" for row in rows) + "</ul>"


def _table(runs: Sequence[Judged]) -> str:
    rows = [
        f'<tr><td>{escape(each.result.name)}</td><td class="{each.verdict.word}">'
        f"{each.verdict.word}</td><td>{_figure(each.result.metrics.output_token_throughput)}</td>"
        f"<td>{_figure(each.result.metrics.ttft_p99_ms)}</td>"
        f"<td>{each.result.metrics.errors}</td>"
        f"<td>{escape(each.diagnosis.kind.value)}{_named(each.diagnosis)}</td></tr>"
        for each in runs
    ]
    head = "<tr><th>run<th>verdict<th>tokens/sec<th>TTFT p99, ms<th>errors<th>looks like</tr>"
    return f"<h2>Runs</h2><table>{head}{''.join(rows)}</table>"


def _section(judged: Judged, *, common: Mapping[str, str] | None) -> str:
    """One run; with `common`, one of several that have these rows in common."""
    name = escape(judged.result.name)
    parts = []
    if common is not None:
        word = judged.verdict.word
        parts.append(f"<h2>Run {name}</h2>")
        parts.append(f'<div class="verdict {word}"><strong>{word}</strong>{_why(judged)}</div>')
        own = judged.result.provenance.items()
        parts.append(_provenance("Its own", {k: v for k, v in own if k not in common}))
    for picture, data in judged.pictures.items():
        text = base64.b64encode(data).decode()
        caption = escape(CAPTIONS.get(picture, ""))
        parts.append(
            f'<figure><img alt="{escape(picture)}" src="data:image/png;base64,{text}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    parts.append("<h2>Figures</h2>" + _figures(judged.result.metrics))
    notes = "".join(f"<li>{escape(line)}</li>" for line in judged.notes)
    parts.append(_client(judged) + (f"<ul>{notes}</ul>" if notes else ""))
    parts.append(_judgement(judged.verdict))
    return "\n".join(parts)


def _judgement(verdict: Verdict) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in (*verdict.lines, *verdict.failures))
    said = {True: "passed", False: "failed", None: "skipped"}[verdict.validator]
    return f"<ul>{lines}</ul><p>The AICR validator's own rule would have {said} this run.</p>"


def _figures(metrics: Metrics) -> str:
    rows = [
        ("time to first token, ms", metrics.ttft_ms, 1),
        ("inter-token latency, ms", metrics.itl_ms, 2),
        ("request latency, ms", metrics.latency_ms, 1),
        ("gaps between chunks, ms", metrics.gap_ms, 2),
        ("output tokens", metrics.output_tokens, 1),
        ("input tokens", metrics.input_tokens, 1),
    ]
    head = "<tr><th><th>avg<th>p50<th>p90<th>p95<th>p99<th>min<th>max</tr>"
    body = "".join(_row(name, spread, digits) for name, spread, digits in rows if spread)
    counts = (
        f"{_figure(metrics.output_token_throughput)} tokens/sec, "
        f"{_figure(metrics.request_throughput, 1)} requests/sec; "
        f"{NOTHING if metrics.requests is None else metrics.requests} answered, "
        f"{metrics.errors} failed"
    )
    counts += f", {metrics.unfinished} given up" if metrics.unfinished else ""
    counts += f", {metrics.resent} sent again" if metrics.resent else ""
    if metrics.chunk_counted:
        counts += f"; in {metrics.chunk_counted} answers chunks were counted instead of tokens"
    return f"<p>{counts}.</p><table>{head}{body}</table>" + _failures(metrics)


def _failures(metrics: Metrics) -> str:
    rows = "".join(
        f"<tr><td>{escape(each.message)}</td>"
        f"<td>{NOTHING if each.status is None else each.status}</td><td>{each.count}</td></tr>"
        for each in metrics.error_summary
    )
    return f"<table><tr><th>failure<th>status<th>requests</tr>{rows}</table>" if rows else ""


def _row(name: str, spread: Distribution, digits: int) -> str:
    values = (spread.avg, spread.p50, spread.p90, spread.p95, spread.p99, spread.min, spread.max)
    cells = "".join(f"<td>{_figure(value, digits)}</td>" for value in values)
    return f"<tr><td>{name}</td>{cells}</tr>"


def _figure(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _client(judged: Judged) -> str:
    run = judged.result.run
    if run is None:
        return ""
    lag = run.client.lag_p99_ms
    late = "" if lag is None else f"; its loop was {lag:.1f} ms late (p99)"
    return (
        f"<p>The load generator reached {run.client.reached} requests in flight and used "
        f"{run.client.cpu:.2f} of a core at most per process{late}.</p>"
    )
