"""Stored results read back: our run, our result, AIPerf's own export, or a log with one in it.

Whatever is malformed is Unreadable; a figure that is not there is None.
"""

import gzip
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from benchmarks.distributions import Distribution
from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import ErrorCount, Metrics, summarise
from benchmarks.gate.analysis.records import (
    Client,
    Diagnosis,
    Run,
    Unreadable,
    client_of,
    diagnosis_of,
    run_of,
)

NAME = "profile_export_aiperf.json"
RUN = "run.json.gz"
GZIP = b"\x1f\x8b"
SENTINEL = "===AIPERF-RESULT==="
# Everything that is not AIPerf's is under this key.
OURS = "pd_router"

RATES = (
    ("output_token_throughput", "tokens/sec"),
    ("request_throughput", "requests/sec"),
)
DISTRIBUTIONS = (
    ("time_to_first_token", "ttft_ms", "ms"),
    ("inter_token_latency", "itl_ms", "ms"),
    ("request_latency", "latency_ms", "ms"),
    ("inter_chunk_latency", "gap_ms", "ms"),
    ("output_sequence_length", "output_tokens", "tokens"),
    ("input_sequence_length", "input_tokens", "tokens"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run read back. `run` is None where only figures were stored; `constraints` are those
    that it was judged by, where it says so."""

    name: str
    metrics: Metrics
    run: Run | None = None
    constraints: Constraints | None = None
    gpus: int | None = None
    gpus_total: int | None = None
    interrupted: bool = False
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Who measured what, where and how, by the name of the row."""
    client: Client | None = None
    in_flight: int | None = None
    diagnosis: Diagnosis | None = None
    """Where `run` is None: the load generator's evidence, how many requests it should have had in
    flight, and what the requests looked like to whoever still had them."""


def to_json(found: Mapping[str, Any]) -> bytes:
    """Readable, with a newline at the end."""
    return orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def unframed(log: str) -> dict[str, Any]:
    """The document between the first two sentinels of a log. Raises Unreadable."""
    parts = log.split(SENTINEL, 2)
    if len(parts) == 1:
        raise Unreadable("no sentinel in the log: benchmark likely failed")
    if len(parts) == 2:
        raise Unreadable("one sentinel in the log: it may have been truncated")
    return _object(parts[1])


def _object(data: str | bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unreadable("not a JSON object")
    return found


def metrics_of(found: Mapping[str, Any]) -> Metrics:
    """The figures in AIPerf's export or ours; None if missing or not finite.

    Raises Unreadable where an entry is not an object, or counts are no counts.
    """
    values: dict[str, Any] = {tag: _number(_entry(found, tag), "avg") for tag, _ in RATES}
    for tag, name, _ in DISTRIBUTIONS:
        if (entry := _entry(found, tag)) is not None:
            values[name] = _distribution(entry)
    ours = found.get(OURS)
    evidence = ours if isinstance(ours, Mapping) else {}
    return Metrics(
        **values,
        duration=_number(_entry(found, "benchmark_duration"), "avg"),
        requests=_count(_number(_entry(found, "request_count"), "avg"), "request_count"),
        errors=_count(_number(_entry(found, "error_request_count"), "avg"), "errors") or 0,
        unfinished=_count(_number(evidence, "unfinished"), "unfinished") or 0,
        chunk_counted=_count(_number(evidence, "chunk_counted"), "chunk_counted") or 0,
        resent=_count(_number(evidence, "resent"), "resent") or 0,
        error_summary=_summary(found.get("error_summary")),
    )


def _entry(found: Mapping[str, Any], tag: str) -> Mapping[str, Any] | None:
    entry = found.get(tag)
    if entry is not None and not isinstance(entry, Mapping):
        raise Unreadable(f"{tag}: not an object")
    return entry


def _number(entry: Mapping[str, Any] | None, key: str) -> float | None:
    value = None if entry is None else entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _count(value: float | None, name: str) -> int | None:
    if value is not None and (value < 0 or value != int(value)):
        raise Unreadable(f"{name}: {value} is no count")
    return None if value is None else int(value)


def _distribution(entry: Mapping[str, Any]) -> Distribution:
    values: dict[str, Any] = {
        field.name: _number(entry, field.name) for field in fields(Distribution)
    }
    return Distribution(**{**values, "count": _count(values["count"], "count")})


def _summary(found: object) -> tuple[ErrorCount, ...]:
    """AIPerf's error summary; entries in another format are skipped, but counted."""
    kinds = []
    for each in found if isinstance(found, list) else []:
        if isinstance(each, Mapping) and isinstance(each.get("count"), int):
            details = each.get("error_details")
            inner = details if isinstance(details, Mapping) else each
            code, text = inner.get("code"), inner.get("message") or inner.get("type")
            kinds.append(
                ErrorCount(code if isinstance(code, int) else None, str(text), each["count"])
            )
    return tuple(kinds)


def result_of(name: str, data: str | bytes) -> Result:
    """From a stored run, our result, AIPerf's, or a log with one between sentinels.

    Raises Unreadable.
    """
    plain = data if isinstance(data, str) else _plain(data)
    text = plain if isinstance(plain, str) else plain.decode("utf-8", "replace")
    found = unframed(text) if SENTINEL in text else _object(plain)
    if "requests" in found and "samples" in found:
        run = run_of(found)
        return Result(name, summarise(run), run, gpus=run.gpus, interrupted=run.interrupted)
    metrics = metrics_of(found)
    if metrics == Metrics() and "aiperf_version" not in found and OURS not in found:
        raise Unreadable("neither a run, nor a result of ours or of AIPerf's")
    said = found.get(OURS)
    ours = said if isinstance(said, Mapping) else {}
    gpus, total = (ours.get(key) for key in ("gpus", "gpus_total"))
    client = client_of(ours.get("client"))
    return Result(
        name=name,
        metrics=metrics,
        constraints=_constraints(ours.get("constraints")),
        gpus=gpus if isinstance(gpus, int) else None,
        gpus_total=total if isinstance(total, int) else None,
        interrupted=found.get("was_cancelled") is True,
        provenance=_texts(ours.get("provenance")),
        client=client,
        in_flight=None if client is None else _in_flight(ours, metrics),
        diagnosis=diagnosis_of(ours.get("diagnosis")),
    )


def _in_flight(ours: Mapping[str, Any], metrics: Metrics) -> int | None:
    """As many as there were streams, or requests where these were fewer."""
    streams = _count(_number(ours, "concurrency"), "concurrency")
    asked = (metrics.requests or 0) + metrics.errors + metrics.unfinished
    return None if streams is None else min(streams, asked)


def _texts(found: object) -> dict[str, str]:
    """What of it is text."""
    rows = found.items() if isinstance(found, Mapping) else ()
    return {str(name): text for name, text in rows if isinstance(text, str)}


def _plain(data: bytes) -> bytes:
    """Unpacked, where it was packed."""
    if not data.startswith(GZIP):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise Unreadable(f"not gzip: {error}") from None


def _constraints(found: object) -> Constraints | None:
    if not isinstance(found, Mapping):
        return None
    try:
        constraints = Constraints(**found)
        constraints.check()
    except (TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"constraints: {error}") from None
    return constraints


def read(path: Path) -> Result:
    """A file, or a folder written by us or by AIPerf: the run, if stored, and its constraints.
    Raises Unreadable."""
    try:
        if not path.is_dir():
            return result_of(path.stem, path.read_bytes())
        summary = path / NAME
        if not (path / RUN).exists():
            return result_of(path.name, summary.read_bytes())
        found = result_of(path.name, (path / RUN).read_bytes())
        if not summary.exists():
            return found
        told = result_of(path.name, summary.read_bytes())
    except OSError as error:
        raise Unreadable(f"{error.filename}: {error.strerror}") from None
    except Unreadable as error:
        raise Unreadable(f"{path}: {error}") from None
    return Result(
        found.name,
        found.metrics,
        found.run,
        told.constraints,
        found.gpus,
        told.gpus_total,
        found.interrupted,
        told.provenance,
    )


@dataclass(frozen=True, slots=True)
class Baseline:
    """Healthy runs to compare with: tokens per second of each, and the GPUs they had."""

    throughputs: tuple[float, ...]
    gpus: int | None = None

    @property
    def median(self) -> float:
        """What the floor is relative to."""
        ordered = sorted(self.throughputs)
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[~middle]) / 2

    def to_json(self) -> bytes:
        """A small file."""
        return to_json({"baseline": {"throughputs": self.throughputs, "gpus": self.gpus}})


def read_baseline(path: Path) -> Baseline:
    """From a baseline file, or from one result. Raises Unreadable."""
    if path.is_file():
        try:
            data = path.read_bytes()
            inner = _object(data).get("baseline")
        except OSError as error:
            raise Unreadable(f"{path}: {error.strerror}") from None
        except Unreadable:
            inner = None
        if isinstance(inner, dict):
            return _baseline(path, inner)
    result = read(path)
    if result.metrics.output_token_throughput is None:
        raise Unreadable(f"{path}: no throughput")
    return Baseline((result.metrics.output_token_throughput,), result.gpus)


def _baseline(path: Path, inner: Mapping[str, Any]) -> Baseline:
    values, gpus = inner.get("throughputs"), inner.get("gpus")
    if not isinstance(values, list) or not values:
        raise Unreadable(f"{path}: baseline.throughputs: not a list of numbers")
    numbers = [_number({"value": each}, "value") for each in values]
    found = tuple(each for each in numbers if each is not None and each > 0)
    if len(found) != len(values):
        raise Unreadable(f"{path}: baseline.throughputs: not all are above zero")
    return Baseline(found, gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else None)
