"""AIPerf's records of single requests (profile_export.jsonl) as ours, and its prompts.

AIPerf's own figures stay unchanged: times, gaps of chunks, tokens. It does not record the worker of
a request, nor the status of a success. A stream that ends in an error event, or with an
abort, counts as answered there, and so here.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.gate.analysis.records import Unreadable
from benchmarks.gate.inputs.prompts import Prompts
from benchmarks.gate.traffic.generator import kind_of
from benchmarks.streaming.client import Seen

RECORDS, PROMPTS = "profile_export.jsonl", "inputs.json"
# Of the data set's entries.
ENTRY = re.compile(r"session_(\d+)")
HTTP = range(100, 600)


@dataclass(frozen=True, slots=True)
class Record:
    """One request; its times are seconds since 1970."""

    warmup: bool
    seen: Seen


def records(lines: Iterable[bytes]) -> Iterator[Record]:
    """In the order of the file, which is that of ends. Raises Unreadable."""
    for number, line in enumerate(lines, 1):
        try:
            row = orjson.loads(line)
            yield _record(row["metadata"], row.get("metrics") or {}, row.get("error"))
        except orjson.JSONDecodeError:
            raise Unreadable(f"line {number}: not JSON") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            wrong = f"{type(error).__name__} {error}"
            raise Unreadable(f"line {number}: no record of AIPerf's: {wrong}") from None


def _record(about: Mapping[str, Any], metrics: Mapping[str, Any], error: object) -> Record:
    sent, ended = about["request_start_ns"] / 1e9, about["request_end_ns"] / 1e9
    entry = ENTRY.fullmatch(about["conversation_id"])
    number = int(about["session_num"])
    seen = Seen(number, number if entry is None else int(entry[1]), sent, written=sent, ended=ended)
    seen.cancelled = bool(about["was_cancelled"])
    if error is not None:
        seen.status, seen.error = _wrong(error)
    first, last = (_value(metrics, tag) for tag in ("time_to_first_token", "request_latency"))
    if first is not None and last is not None:
        seen.first, seen.last = sent + first / 1e3, sent + last / 1e3
        seen.gaps = array("d", (gap / 1e3 for gap in _value(metrics, "inter_chunk_latency") or ()))
    seen.output_tokens = _whole(metrics, "output_sequence_length")
    seen.input_tokens = _whole(metrics, "usage_prompt_tokens", "input_sequence_length")
    seen.cached_tokens = _whole(metrics, "usage_prompt_cache_read_tokens")
    return Record(about["benchmark_phase"] == "warmup", seen)


def _value(metrics: Mapping[str, Any], tag: str) -> Any:
    return metrics[tag]["value"] if tag in metrics else None


def _whole(metrics: Mapping[str, Any], *tags: str) -> int | None:
    """Of the first tag present."""
    found = next((value for tag in tags if (value := _value(metrics, tag)) is not None), None)
    return None if found is None else int(found)


def _wrong(error: Any) -> tuple[int | None, str]:
    """Status and reason in our generator's words: the error, without the request's id."""
    code, kind = error.get("code"), str(error.get("type") or "unnamed")
    if code not in HTTP:
        return None, kind[:80]
    try:
        body = orjson.loads(error.get("message") or "")
    except orjson.JSONDecodeError:
        body = None
    inner = body.get("error") if isinstance(body, dict) else None
    return code, f"status {code}: {kind[:80] if inner is None else kind_of(inner)}"


def prompts(path: Path, tokens: int, counted_by: str) -> Prompts:
    """What AIPerf made up, in its order, of `tokens` by that tokenizer; none where it
    was stopped before. Raises Unreadable."""
    if not path.exists():
        return Prompts((), tokens)
    try:
        entries = orjson.loads(path.read_bytes())["data"]
        texts = tuple(each["payloads"][0]["messages"][-1]["content"] for each in entries)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        raise Unreadable(f"{path}: not the inputs of AIPerf") from None
    return Prompts(texts, tokens, counted_by)
