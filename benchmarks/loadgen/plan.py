"""What a load generator is to offer, and the bytes of its requests.

Pure.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from benchmarks.engines import frames

FILLER = "The quick brown fox jumps over the lazy dog and runs on along the river. "


@dataclass(frozen=True)
class Plan:
    """What to offer. Seconds; `targets` are host and port, clients take turns.

    With `requests` it is a finite job and `drain_s` is its limit; without, a window after a ramp.
    """

    targets: Sequence[Sequence[Any]]
    clients: int
    tokens: int
    stream: bool
    prompt_bytes: int
    ramp_s: float
    window_s: float
    drain_s: float
    requests: int | None = None
    prompts: int = 1
    # So many clients ask a few times each before a job, and all at once only then.
    warm_up_clients: int = 0
    is_warm_up: bool = False
    # All connect at once, and a request's time begins with its connection.
    burst: bool = False
    # Answers outlast the turn: open ones are cut off at its end, which is no failure.
    endless: bool = False
    # So many of the clients read no faster than this, an answer that does not end.
    slow_clients: int = 0
    slow_bytes_per_s: int = 1000
    # The time of a hang: requests that start in it have separate figures.
    frozen: Sequence[float] | None = None
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """As one command line argument."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def decode(cls, text: str) -> "Plan":
        """The inverse of `encode`."""
        return cls(**orjson.loads(text))

    @property
    def events_expected(self) -> int | None:
        """The events of a whole answer; None without a stream."""
        return frames.stream_events(self.tokens, True) if self.stream else None


def requests(plan: Plan) -> list[bytes]:
    """The bytes of each distinct request. Those of a job differ from the first words on."""
    mark = frames.WARM_UP_MARK if plan.is_warm_up else frames.JOB_MARK if plan.requests else b""
    return [_request(plan, f"{mark.decode()}{n}. " if mark else "") for n in range(plan.prompts)]


def _request(plan: Plan, first_words: str) -> bytes:
    content = first_words + FILLER * (plan.prompt_bytes // len(FILLER) + 1)
    system = {"role": "system", "content": "You are a helpful assistant."}
    user = {"role": "user", "content": content[: plan.prompt_bytes]}
    body: dict[str, Any] = {
        "model": frames.MODEL,
        "messages": [user] if plan.requests else [system, user],
        "max_tokens": plan.tokens,
        "temperature": 0 if plan.requests else 0.7,
        "stream": plan.stream,
    }
    if plan.stream:
        body["stream_options"] = {"include_usage": True}
    payload = orjson.dumps(body)
    head = {
        "host": "bench.local",
        "content-type": "application/json",
        "accept": "*/*",
        "user-agent": "pd-router-bench",
        "content-length": str(len(payload)),
    } | plan.headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {plan.path} HTTP/1.1\r\n{lines}\r\n".encode() + payload
