"""The counted metrics: names, labels, buckets, and what they mean.

Those that are read from the fleet at each scrape are in `fleet_gauges`, those of the processes in
`process_metrics`.
"""

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ALL", "LATE_SECONDS", "OF_ENGINE", "Family"]

# TTFT: 10 ms is a warm small model on loopback, 120 s a hopeless queue.
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_BUCKETS = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# A decode step takes 5 to 50 ms; readers are comfortable with 0.1 s, and notice 0.5 s.
GAP_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
# Streams should never wait for 20 ms; timers alone may be 1 ms late.
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)
LATE_SECONDS = 0.02
"""Lag in seconds from which streams visibly stop; shorter ones are due to timers and ordinary
work."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A metric. `name`: without the prefix pd_router_ and the suffix _total of counters."""

    type: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, +Inf included."""
    is_maximum: bool = False
    """Whether the largest value of all processes is exported. All others are summed."""

    @property
    def full_name(self) -> str:
        """The exported name of the family."""
        return f"pd_router_{self.name}"

    @property
    def size(self) -> int:
        """Numbers of a series: its value; of a histogram the count of each bucket, and the sum."""
        return len(self.bounds) + 1


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family("counter", name, text, labels)


def _gauge(name: str, text: str, *labels: str, is_maximum: bool = False) -> Family:
    return Family("gauge", name, text, labels, is_maximum=is_maximum)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Family:
    return Family("histogram", name, text, labels, (*map(float, buckets), float("inf")))


OF_ENGINE: Final = ("role", "endpoint")
"""The first labels of an engine's metrics. Their series are removed when the engine leaves."""

# Requests.

REQUESTS = _counter(
    "requests",
    "Requests by route, mode, status and outcome.",
    *("route", "mode", "status", "outcome"),
)
# Without labels it exists from the start, so that the first failure is an increase.
FAILED = _counter(
    "requests_failed", "Requests that failed for other reasons than the client: 5xx or broken off."
)
DECISIONS = _counter("decisions", "Routing decisions by mode and reason.", "mode", "reason")
FALLBACKS = _counter("fallbacks", "Legs that fell back, by reason.", "leg", "reason")
CONTINUATIONS = _counter(
    "stream_continuations",
    "Streams that left an engine behind the first token, by outcome: continued elsewhere after a "
    "failure, moved because it was drained, no_engine, attempts (three engines have failed), or "
    "why no other engine could go on.",
    "outcome",
)
CONTINUED_TOKENS = _counter(
    "stream_continuation_tokens",
    "Tokens of continued streams: carried to another engine, or discarded and generated again.",
    "kind",
)
PAUSE = _histogram(
    "stream_continuation_pause_seconds",
    "Time without a token of continued streams.",
    buckets=TTFT_BUCKETS,
)
CHUNKS = _counter("relayed_chunks", "Reads of engines' answers passed on to clients.")
BYTES = _counter("relayed_bytes", "Body bytes sent to clients.")
TTFT = _histogram(
    "time_to_first_byte_seconds",
    "Time from a request's arrival to the first byte of its answer's body, without errors. Unary "
    "answers (stream=false) start when all tokens are generated.",
    *("mode", "stream"),
    buckets=TTFT_BUCKETS,
)
# Without labels for the same reason as FAILED: alert rules subtract its buckets from its count.
ABANDONED = _histogram(
    "abandoned_wait_seconds",
    "Wait of clients that disconnected before the first byte of their stream.",
    buckets=TTFT_BUCKETS,
)
DURATION = _histogram(
    "request_duration_seconds",
    "Time from a request's arrival to the end of its answer.",
    "mode",
    buckets=DURATION_BUCKETS,
)
PREFILL = _histogram(
    "prefill_duration_seconds",
    "Duration of remote prefills, from the request to the whole answer.",
    buckets=TTFT_BUCKETS,
)
HANDOVER = _histogram(
    "handover_seconds",
    "Time from a remote prefill's answer to the first content of the stream: KV transfer, queueing "
    "and first step on the decode engine. Without fallbacks.",
    buckets=TTFT_BUCKETS,
)
OF_MODELS = _counter(
    "model_requests", "Requests by outcome, for models that engines list.", "model", "outcome"
)
PROMPT_TOKENS = _counter(
    "prompt_tokens",
    "Prompt tokens, estimated (characters / 4, media by size) and measured (the engine's usage), "
    "for prompts of at least 4 KiB or 1,024 tokens of text and media.",
    "kind",
)
INPUT_TOKENS = _histogram(
    "estimated_input_tokens",
    "Estimated input tokens per request.",
    "mode",
    buckets=TOKEN_BUCKETS,
)

# Engines.

ANSWERS = _counter("engine_answers", "Answers begun by engines.", *OF_ENGINE, "status")
FAILURES = _counter(
    "engine_failures", "Legs that an engine did not answer or did not complete.", *OF_ENGINE, "kind"
)
PROBES = _counter(
    "speed_probes",
    "Short generations that the router itself requests from engines without traffic.",
    *OF_ENGINE,
    "outcome",
)
ENDPOINT_TTFT = _histogram(
    "endpoint_time_to_first_token_seconds",
    "Time from the request to an engine to its first token: streams of decode engines, prefills of "
    "prefill engines; to the answers of encode engines.",
    *OF_ENGINE,
    buckets=TTFT_BUCKETS,
)
GAP = _histogram(
    "inter_token_latency_seconds",
    "Mean time between reads of a stream, by decode engine.",
    *OF_ENGINE,
    buckets=GAP_BUCKETS,
)

# The engines' KV caches.

KV_EVENTS = _counter("kv_events", "KV-cache events received from engines.", *OF_ENGINE)
KV_EVENT_TROUBLES = _counter(
    "kv_event_troubles",
    "Gaps in an engine's KV-cache events, requested replays, and failed replays (loss).",
    *OF_ENGINE,
    "kind",
)
CACHED_TOKENS = _counter(
    "cached_prompt_tokens",
    "Prompt tokens in the engine's cache: predicted from KV-cache events, and measured by the "
    "engine's usage.",
    *OF_ENGINE,
    "kind",
)
KNOWN_TOKENS = _counter(
    "prefix_cache_prompt_tokens",
    "Estimated prompt tokens sent to the engine, by the source of the prediction of its prefix "
    "cache.",
    *OF_ENGINE,
    "known_by",
)
REGRET_TOKENS = _counter(
    "prefix_cache_regret_tokens",
    "Estimated prompt tokens computed by the engine although another candidate had them cached.",
    *OF_ENGINE,
)

# Admission and API keys.

KEY_REQUESTS = _counter(
    "api_key_requests",
    "Requests by the name of the API key (--api-key-file).",
    *("api_key", "outcome"),
)
KEY_TOKENS = _counter(
    "api_key_input_tokens",
    "Estimated input tokens by the name of the API key (--api-key-file).",
    "api_key",
)
KEY_REFUSALS = _counter(
    "api_key_refusals",
    "Requests refused with 429 because the API key reached a limit: requests, tokens or streams.",
    *("api_key", "limit"),
)
ALIAS_REQUESTS = _counter(
    "model_alias_requests",
    "Requests for a model by an alias (--model-aliases), by the model that it stood for.",
    *("alias", "model"),
)
QUEUE_LENGTH = _gauge("queue_length", "Queued requests (--max-in-flight).")
ADMITTED = _gauge(
    "admitted_requests",
    "Admitted requests that have not ended; 0 without a limit (--max-in-flight, "
    "--max-in-flight-per-engine).",
)
BUFFERED = _gauge(
    "buffered_bytes",
    "Buffered bytes of request bodies and of answers (--max-buffered-bytes).",
    "kind",
)
QUEUE_WAIT = _histogram(
    "queue_wait_seconds", "Wait of queued requests that were admitted.", buckets=TTFT_BUCKETS
)
QUEUE_REJECTIONS = _counter(
    "queue_rejections",
    "Queued requests that were rejected: full (429), pushed_out (429) or timeout (503).",
    "reason",
)
IGNORED_MESSAGES = _counter(
    "envoy_messages_ignored",
    "Repeated parts of a request or an answer from Envoy, ignored by the endpoint picker.",
)

DEADLINE_REFUSALS = _counter(
    "deadline_refusals",
    "Requests refused with 503 because their first token was expected after their x-slo-ttft-ms.",
)

# The process itself.

LAG = _histogram(
    "event_loop_lag_seconds",
    "Delay of the event loop, and of all streams, measured a hundred times a second.",
    buckets=LAG_BUCKETS,
)
# By worker: in a sum, one that hangs would be hidden by the others.
LATE = _counter(
    "event_loop_late_seconds",
    "Time for which the event loop was late by more than 20 ms, or overloaded by its streams.",
    "worker",
)
WORST_LAG = _gauge(
    "event_loop_lag_max_seconds", "Longest delay of the event loop.", is_maximum=True
)
DISCOVERY_ANSWERED = _gauge(
    "discovery_last_answer_timestamp_seconds",
    "Unix time of a discovery source's last answer; 0: never.",
    "source",
    is_maximum=True,
)
DROPPED_LINES = _counter(
    "log_lines_dropped",
    "Log lines lost because the log was not read or could not be written.",
)
ACCEPT_DELAY = _histogram(
    "accept_delay_seconds",
    "Time from a client's last bytes (or its connect) until the router accepts the new connection.",
    buckets=LAG_BUCKETS,
)

ALL: Final[tuple[Family, ...]] = tuple(
    each for each in list(globals().values()) if isinstance(each, Family)
)
