"""Traces in Mooncake's format (FAST '25, kvcache-ai/Mooncake).

Each line is a JSON object: `timestamp` in milliseconds, `input_length` and `output_length` in
tokens, and `hash_ids`, one for each block of 512 prompt tokens. Equal ids mean equal prefixes up to
there.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import orjson

from router.simulator.virtual.values import Session, Turn

BLOCK_SIZE = 512


class TraceError(Exception):
    """A line is invalid."""


def sessions(
    lines: Iterable[bytes], *, time_scale: float = 1.0, limit: int | None = None
) -> Iterator[Session]:
    """Yields a session of one request for each line, at its own time. Raises TraceError.

    `time_scale`: factor on all times; 0.5 doubles the load. `limit`: the most requests.
    """
    for number, line in enumerate(islice(lines, limit), 1):
        try:
            yield _session(orjson.loads(line), time_scale)
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"line {number}: {type(error).__name__}: {error}") from None


def _session(row: dict[str, Any], time_scale: float) -> Session:
    prompt, output = int(row["input_length"]), int(row["output_length"])
    if prompt < 1:
        raise ValueError("input_length is below 1")
    # The last block may be partly filled; like vLLM's, the cache keeps only full ones.
    contents = tuple(map(int, row["hash_ids"][: prompt // BLOCK_SIZE]))
    at = float(row["timestamp"]) / 1000 * time_scale
    return Session(at, (Turn(prompt, max(1, output), contents),))
