"""Constraints of a run: the validator's as written, and ours.

Pure. Parsed as strictly as the validator does (reference 1.4), before any traffic.
"""

import re
from dataclasses import dataclass

# "With 10% tolerance", as all AICR performance checks.
THROUGHPUT_TOLERANCE, TTFT_TOLERANCE = 0.9, 1.1
# A stalled worker of eight took 30 to 60 % of the throughput; healthy runs spread by 10 to 15 %.
BASELINE_FLOOR = 0.85
# The published ceiling: what lag is set against where TTFT is not judged.
TTFT_LIMIT_MS = 2000.0
# Go's ParseFloat without its hexadecimal, infinities and not-a-number: those pass anything.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


class InvalidConstraint(ValueError):
    """A constraint without meaning; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """The validator's constraints as written, and ours.

    `max_errors` is a count ("3") or a share of the requests ("1%"); `baseline` is the healthy
    median in tokens per second, for as many GPUs as are benchmarked.
    """

    throughput: str | None = None
    ttft_p99: str | None = None
    max_errors: str = "0"
    baseline: float | None = None
    baseline_floor: float = BASELINE_FLOOR

    def check(self) -> None:
        """Raises InvalidConstraint for an invalid value, before any traffic."""
        if self.throughput is not None:
            throughput_threshold(self.throughput)
        if self.ttft_p99 is not None:
            ttft_threshold(self.ttft_p99)
        errors_allowed(self.max_errors, 0)
        if self.baseline is not None and not 0 < self.baseline < float("inf"):
            raise InvalidConstraint(f"baseline must be above 0 tokens/sec, not {self.baseline}")
        if not 0 < self.baseline_floor <= 1:
            raise InvalidConstraint(f"baseline floor must be in (0, 1], not {self.baseline_floor}")

    @property
    def empty(self) -> bool:
        """Nothing to judge by."""
        return self.throughput is None and self.ttft_p99 is None and self.baseline is None

    @property
    def ttft_limit_ms(self) -> float:
        """The TTFT p99 that still passes."""
        return TTFT_TOLERANCE * (
            TTFT_LIMIT_MS if self.ttft_p99 is None else ttft_threshold(self.ttft_p99)
        )

    def throughput_floor(self, benchmarked: int | None = None, total: int | None = None) -> float:
        """The throughput that still passes, of all floors the highest."""
        asked = 0.0 if self.throughput is None else throughput_threshold(self.throughput)
        floor = THROUGHPUT_TOLERANCE * scaled(asked, benchmarked, total)
        return max(floor, self.baseline_floor * (self.baseline or 0.0))


def threshold(text: str, operator: str, name: str) -> float:
    """The number of a constraint. Raises InvalidConstraint as the validator does."""
    trimmed = text.strip()
    if not trimmed.startswith(operator):
        raise InvalidConstraint(f'{name} constraint must start with "{operator}" (got "{text}")')
    rest = trimmed[len(operator) :].lstrip(" ")
    if rest[:1] in (">", "<", "=", "!"):
        raise InvalidConstraint(
            f'{name} constraint must start with exactly "{operator}" (got "{text}")'
        )
    number = rest.split(" ", 1)[0]
    if not NUMBER.fullmatch(number) or not float(number) < float("inf"):
        raise InvalidConstraint(f'{name} constraint has no number (got "{text}")')
    return float(number)


def throughput_threshold(text: str) -> float:
    """Tokens per second. Raises InvalidConstraint."""
    return threshold(text, ">=", "inference-throughput")


def ttft_threshold(text: str) -> float:
    """Milliseconds. Raises InvalidConstraint."""
    return threshold(text, "<=", "inference-ttft-p99")


def scaled(asked: float, benchmarked: int | None, total: int | None) -> float:
    """The required throughput for a part of a node's GPUs; unchanged if counts are unknown."""
    if not benchmarked or not total or benchmarked < 0 or benchmarked >= total:
        return asked
    return asked * benchmarked / total


def errors_allowed(text: str, requests: int) -> int:
    """How many may fail of so many: "3", or "1%" rounded down. Raises InvalidConstraint."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    if percent and NUMBER.fullmatch(number) and 0 <= float(number) <= 100:
        return int(requests * float(number) / 100)
    if not percent and number.isascii() and number.isdigit():
        return int(number)
    raise InvalidConstraint(f'max errors must be a count or a percentage (got "{text}")')
