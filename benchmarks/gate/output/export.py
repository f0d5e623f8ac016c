"""What is kept of a run: AIPerf's JSON with our evidence in it, a line per request, CTRF, stdout.

Reading back is in results.py.
"""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import Metrics, reason
from benchmarks.gate.analysis.records import Diagnosis, Run
from benchmarks.gate.analysis.verdict import Exit, Verdict
from benchmarks.gate.output.results import DISTRIBUTIONS, NAME, OURS, RATES, RUN, SENTINEL, to_json

RECORDS, CTRF = "profile_export.jsonl", "ctrf.json"
# Of the AIPerf that the shape was taken from (0.13.0).
SCHEMA = "1.4"
# A termination log holds no more (reference 1.11).
MESSAGE_LIMIT = 4096


def document(
    run: Run,
    metrics: Metrics,
    constraints: Constraints | None = None,
    verdict: Verdict | None = None,
    diagnosis: Diagnosis | None = None,
    extra: Mapping[str, Any] | None = None,
    gpus_total: int | None = None,
) -> dict[str, Any]:
    """The result of one run in AIPerf's shape; `extra` joins our evidence."""
    start = datetime.fromisoformat(run.started_at)
    end = start + timedelta(seconds=metrics.duration or 0.0)
    found: dict[str, Any] = {"schema_version": SCHEMA}
    for tag, unit in RATES:
        if (value := getattr(metrics, tag)) is not None:
            found[tag] = {"unit": unit, "avg": value}
    for tag, name, unit in DISTRIBUTIONS:
        if (spread := getattr(metrics, name)) is not None:
            found[tag] = {"unit": unit, **_present(asdict(spread))}
    found |= _counts(metrics)
    found["input_config"] = {
        "endpoint": {"model_names": [run.model], "urls": [run.url], "streaming": True},
        "loadgen": {"concurrency": run.concurrency, "request_count": len(run.requests)},
    }
    found |= {
        "was_cancelled": run.interrupted,
        "is_complete": not run.interrupted,
        "error_summary": [
            {"error_details": {"code": each.status, "message": each.message}, "count": each.count}
            for each in metrics.error_summary
        ],
        "start_time": start.isoformat(),
        "end_time": end.isoformat(),
    }
    evidence = {
        "profile": run.profile,
        "gpus": run.gpus,
        "gpus_total": gpus_total,
        "concurrency": run.concurrency,
        "client": asdict(run.client),
        "unfinished": metrics.unfinished,
        "chunk_counted": metrics.chunk_counted,
        "resent": metrics.resent,
        "constraints": None if constraints is None else asdict(constraints),
        "verdict": None if verdict is None else {**asdict(verdict), "word": verdict.word},
        "diagnosis": None if diagnosis is None else asdict(diagnosis),
    }
    return {**found, OURS: {**evidence, **(extra or {})}}


def _counts(metrics: Metrics) -> dict[str, Any]:
    """AIPerf omits counts that are zero, errors too."""
    found = {}
    if metrics.requests is not None:
        found["request_count"] = {"unit": "requests", "avg": metrics.requests}
    if metrics.errors:
        found["error_request_count"] = {"unit": "requests", "avg": metrics.errors}
        found["request_error_rate"] = {"unit": "%", "avg": 100 * metrics.error_share}
    if metrics.duration is not None:
        found["benchmark_duration"] = {"unit": "sec", "avg": metrics.duration}
    return found


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def framed(found: Mapping[str, Any]) -> str:
    """The document between two sentinel lines, for log parsers (reference 1.7)."""
    return f"{SENTINEL}\n{to_json(found).decode()}{SENTINEL}\n"


def request_lines(run: Run) -> bytes:
    """One JSON line per request, in AIPerf's shape of records, with the worker that served it."""
    start = _nanoseconds(datetime.fromisoformat(run.started_at).timestamp())
    rows = []
    for each in run.requests:
        times: dict[str, Any] = {}
        if each.first is not None:
            times["time_to_first_token"] = _in((each.first - each.sent) * 1e3, "ms")
        if each.last is not None:
            times["request_latency"] = _in((each.last - each.sent) * 1e3, "ms")
        if each.first is not None and each.last is not None and each.tokens >= 2:
            itl = (each.last - each.first) / (each.tokens - 1) * 1e3
            times["inter_token_latency"] = _in(itl, "ms")
        if each.succeeded:
            times["output_sequence_length"] = _in(each.tokens, "tokens")
        if each.input_tokens is not None:
            times["input_sequence_length"] = _in(each.input_tokens, "tokens")
        ended = None if each.ended is None else start + _nanoseconds(each.ended)
        given_up = run.gave_up(each)
        row = {
            "metadata": {
                "session_num": each.number,
                "request_start_ns": start + _nanoseconds(each.sent),
                "request_end_ns": ended,
                "worker_id": each.worker,
                "moved_from": list(each.left),
                "benchmark_phase": "profiling",
                "was_cancelled": given_up,
                "prompt": each.prompt,
            },
            "metrics": times,
            "error": None
            if each.succeeded or given_up
            else {"code": each.status, "message": reason(each)},
        }
        rows.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    return b"".join(rows)


def _in(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


STATUS = {Exit.PASS: "passed", Exit.FAIL: "failed", Exit.SKIPPED: "skipped", Exit.VOID: "other"}


def ctrf(
    verdicts: Sequence[Verdict],
    started_at: Sequence[datetime],
    durations: Sequence[float],
    version: str,
    diagnoses: Sequence[Diagnosis] = (),
) -> dict[str, Any]:
    """The validator's report (1.11): a test for each run, as AICR's own reads it. The first of them
    have diagnoses."""
    codes = [each.exit_code for each in verdicts]
    begins = [round(each.timestamp() * 1e3) for each in started_at]
    tests = []
    for number, verdict in enumerate(verdicts):
        diagnosis = diagnoses[number] if number < len(diagnoses) else None
        extra = {} if diagnosis is None else {"diagnosis": diagnosis.kind.value}
        why = [verdict.message] if verdict.message else []
        why += [diagnosis.text] if diagnosis and codes[number] is not Exit.PASS else []
        tests.append(
            {
                "name": "inference-perf",
                "status": STATUS[codes[number]],
                "duration": round(durations[number] * 1e3),
                "suite": ["performance"],
                "message": "\n".join(why)[:MESSAGE_LIMIT],
                "stdout": list(verdict.lines),
                "extra": extra,
            }
        )
    ends = [begin + round(each * 1e3) for begin, each in zip(begins, durations, strict=True)]
    counts = {status: [STATUS[code] for code in codes].count(status) for status in STATUS.values()}
    return {
        "reportFormat": "CTRF",
        "specVersion": "0.0.1",
        "timestamp": max(started_at).isoformat() if started_at else None,
        "generatedBy": "pd-router",
        "results": {
            "tool": {"name": "pd-router", "version": version},
            "summary": {
                "tests": len(tests),
                **counts,
                "pending": 0,
                "start": min(begins, default=0),
                "stop": max(ends, default=0),
            },
            "tests": tests,
        },
    }


def write(folder: Path, run: Run, found: Mapping[str, Any]) -> None:
    """All of one run into its folder, which is made: result, requests, and the run itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(to_json(found))
    (folder / RECORDS).write_bytes(request_lines(run))
    # Not the best there is: half a second for the largest run, and nearly as small.
    (folder / RUN).write_bytes(gzip.compress(run.to_json(), compresslevel=4, mtime=0))
