"""From a run to figures, by AIPerf's definitions (reference 2.3).

Pure. Latencies are in ms here, as AIPerf's are. Absence is None: a figure that cannot be taken is
never 0.
"""

from collections import Counter
from dataclasses import dataclass

from benchmarks.distributions import Distribution, distribution
from benchmarks.gate.analysis.records import Request, Run


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """So many requests failed in this way."""

    status: int | None
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of one run. Throughputs are per second, `requests` counts successes.

    `chunk_counted` successes had no token count, so that their chunks were counted; `unfinished`
    requests were given up, on purpose or by an interruption, and are in no other figure. `resent`
    are those of all that were written to a connection that was just being closed.
    """

    output_token_throughput: float | None = None
    request_throughput: float | None = None
    ttft_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    latency_ms: Distribution | None = None
    gap_ms: Distribution | None = None
    output_tokens: Distribution | None = None
    input_tokens: Distribution | None = None
    duration: float | None = None
    requests: int | None = None
    errors: int = 0
    unfinished: int = 0
    chunk_counted: int = 0
    resent: int = 0
    error_summary: tuple[ErrorCount, ...] = ()

    @property
    def ttft_p99_ms(self) -> float | None:
        """What is judged."""
        return self.ttft_ms.p99 if self.ttft_ms else None

    @property
    def error_share(self) -> float:
        """Errors of all that ended."""
        ended = self.errors + (self.requests or 0)
        return self.errors / ended if ended else 0.0


def _over_at(each: Request) -> float:
    """When a request gave its last content, or failed."""
    at = each.last if each.succeeded else each.ended
    return each.sent if at is None else at


def summarise(run: Run) -> Metrics:
    """AIPerf's figures (reference 2.3): of successes only. Tokens per second are successes' tokens
    over the time from the first request sent to the last content, or the last failure: requests
    that hang until they time out are no reason to look faster (as AIPerf 0.13 does it, measured).
    Raises nothing."""
    good = [each for each in run.requests if each.succeeded]
    unfinished = [each for each in run.requests if run.gave_up(each)]
    failed = len(run.requests) - len(good) - len(unfinished)
    first, last = [_ms(each, each.first) for each in good], [_ms(each, each.last) for each in good]
    over = [each for each in run.requests if not run.gave_up(each)]
    begin = min((each.sent for each in good), default=0.0)
    duration = max((each.last or 0.0 for each in good), default=0.0) - begin
    window = max(map(_over_at, over), default=0.0) - min((e.sent for e in over), default=0.0)
    rate = 1 / window if good and window > 0 else None
    tokens = [each.tokens for each in good]
    return Metrics(
        output_token_throughput=sum(tokens) * rate if rate else None,
        request_throughput=len(good) * rate if rate else None,
        ttft_ms=distribution(first),
        itl_ms=distribution(
            (b - a) / (n - 1) for a, b, n in zip(first, last, tokens, strict=True) if n >= 2
        ),
        latency_ms=distribution(last),
        gap_ms=distribution(gap * 1e3 for each in good for gap in each.gaps),
        output_tokens=distribution(tokens),
        input_tokens=distribution(e.input_tokens for e in good if e.input_tokens is not None),
        duration=duration if good else None,
        requests=len(good),
        errors=failed,
        unfinished=len(unfinished),
        chunk_counted=sum(each.output_tokens is None for each in good),
        resent=sum(each.resent for each in run.requests),
        error_summary=_errors(run),
    )


def _ms(request: Request, at: float | None) -> float:
    return ((at or 0.0) - request.sent) * 1e3


def _errors(run: Run) -> tuple[ErrorCount, ...]:
    failed = [each for each in run.requests if not (each.succeeded or run.gave_up(each))]
    seen = Counter((each.status, reason(each)) for each in failed)
    return tuple(ErrorCount(*key, count) for key, count in seen.most_common())


def reason(request: Request) -> str:
    """Why a request does not count as answered."""
    if request.error is not None:
        return request.error
    if request.status is not None and not 200 <= request.status < 300:
        return f"status {request.status}"
    return "never ended" if request.ended is None else "no content"
