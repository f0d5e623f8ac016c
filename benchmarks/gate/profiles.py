"""Loads by name or from a YAML file, and thresholds of platforms.

The numbers of `knee` are the validator's own (reference 1.2); those of the platforms are the
published overlays (1.13).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import yaml

from benchmarks.gate.analysis.constraints import Constraints


class InvalidProfile(ValueError):
    """A profile that cannot be run; the text names the field."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A workload. `requests` and `warmup` are totals; None follows the concurrency. After the last
    of `requests`, more are sent until the measured phase is `min_seconds` long.

    Tokens have no deviation. `prompts` is how many distinct prompts are cycled through, `timeout`
    the seconds after which a request counts as failed.
    """

    name: str
    concurrency_per_gpu: int = 256
    requests: int | None = None
    warmup: int | None = None
    input_tokens: int = 128
    output_tokens: int = 128
    prompts: int = 100
    seed: int = 100
    temperature: float = 0.0
    requests_per_concurrency: int = 8
    min_requests: int = 1000
    warmup_per_concurrency: int = 1
    timeout: float = 120.0
    min_seconds: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))

    def concurrency(self, gpus: int) -> int:
        """Requests in flight on so many GPUs."""
        return self.concurrency_per_gpu * gpus

    def request_count(self, gpus: int) -> int:
        """Requests of the measured phase."""
        if self.requests is not None:
            return self.requests
        return max(self.min_requests, self.requests_per_concurrency * self.concurrency(gpus))

    def warmup_count(self, gpus: int) -> int:
        """Requests before it, drained and excluded."""
        if self.warmup is not None:
            return self.warmup
        return self.warmup_per_concurrency * self.concurrency(gpus)

    def reuse(self, gpus: int) -> float:
        """Repetitions of each prompt, which decide about prefix-cache hits."""
        return (self.request_count(gpus) + self.warmup_count(gpus)) / self.prompts


MAY_BE_ABSENT = frozenset({"requests", "warmup"})
MAY_BE_ZERO = frozenset(
    {"warmup", "seed", "warmup_per_concurrency", "min_requests", "temperature", "min_seconds"}
)
MAY_BE_FRACTIONS = frozenset({"temperature", "timeout", "min_seconds"})


def _check(name: str, value: object) -> None:
    if name == "name":
        if not isinstance(value, str) or not value:
            raise InvalidProfile(f"name: must be a text, not {value!r}")
        return
    if value is None and name in MAY_BE_ABSENT:
        return
    kinds = (int, float) if name in MAY_BE_FRACTIONS else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InvalidProfile(f"{name}: must be a number, not {value!r}")
    least = 0 if name in MAY_BE_ZERO else 1
    if not (least <= value < float("inf") or (name == "timeout" and value > 0)):
        raise InvalidProfile(f"{name}: must be at least {least}, not {value!r}")


PROFILES: Mapping[str, Profile] = {
    # Where the published runs were made, and where a stall shows.
    "knee": Profile("knee"),
    # Below the knee, TTFT p99 was 292-533 ms everywhere: what fails here is no jitter.
    "sub-knee": Profile("sub-knee", concurrency_per_gpu=128),
    # Seconds on a laptop, also against real vLLM on a CPU; and never less, or a hiccup of some
    # milliseconds would make the client the limit, and the run void.
    "smoke": Profile(
        "smoke",
        concurrency_per_gpu=4,
        requests=40,
        input_tokens=32,
        output_tokens=16,
        prompts=20,
        min_seconds=2.0,
    ),
}


def read(path: Path) -> Profile:
    """A profile from YAML: fields of Profile, and `extends` (default knee) for the rest.

    Raises InvalidProfile.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidProfile(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidProfile(f"{path}: not a mapping of fields")
    known = {field.name for field in fields(Profile)}
    changes = {str(key): value for key, value in found.items() if key != "extends"}
    if unknown := sorted(changes.keys() - known):
        raise InvalidProfile(f"{path}: unknown field {', '.join(unknown)}")
    base = found.get("extends", "knee")
    if not isinstance(base, str) or base not in PROFILES:
        raise InvalidProfile(f"{path}: extends: {base!r} is none of {', '.join(PROFILES)}")
    try:
        return replace(PROFILES[base], **{"name": path.stem, **changes})
    except InvalidProfile as error:
        raise InvalidProfile(f"{path}: {error}") from None


def find(text: str) -> Profile:
    """By name, else from the file of that path. Raises InvalidProfile."""
    if text in PROFILES:
        return PROFILES[text]
    if Path(text).suffix in (".yaml", ".yml"):
        return read(Path(text))
    raise InvalidProfile(f"{text}: neither a .yaml file nor one of {', '.join(PROFILES)}")


@dataclass(frozen=True, slots=True)
class Platform:
    """A published overlay: the thresholds of a full node, and a measured result."""

    name: str
    gpus: int
    throughput: str
    ttft_p99: str
    measured_tokens_per_second: float
    measured_ttft_p99_ms: float

    @property
    def constraints(self) -> Constraints:
        """As published; errors and baselines stay at their defaults."""
        return Constraints(self.throughput, self.ttft_p99)


PLATFORMS: Mapping[str, Platform] = {
    platform.name: platform
    for platform in (
        Platform("h100-eks", 8, ">= 50000", "<= 2000", 108_790, 688),
        Platform("h100-gke", 8, ">= 50000", "<= 2000", 108_164, 730),
        Platform("h100-aks", 8, ">= 50000", "<= 2000", 148_004, 579.7),
        Platform("gb200", 4, ">= 50000", "<= 2000", 65_952, 1240),
        Platform("rtx-pro-6000", 8, ">= 50000", "<= 2000", 59_260, 445),
    )
}
