"""How many sequences an engine runs side by side: its max_num_seqs, or what its KV cache holds.

vLLM does not report the limit, so it is inferred. Two things are certain: an engine can run what
it was seen to run, and while requests really queue it runs no more than it can. So the limit is
the most that ran lately, it applies from the moment queueing is seen, and it is raised step by
step once nothing queues any more. Gauges alone prove little: an engine at the start of a wave of
requests shows a queue and few that run, a decode engine counts requests that wait for a KV
transfer as waiting. Hence the rules in `waits_for_slot` and `QueueGauge`.
"""

import math
from collections import deque

from router.core.pace import Pace
from router.core.values import Gauges

__all__ = ["Capacity", "QueueGauge", "waits_for_slot"]

RECENT_SECONDS = 10
"""The limit never falls below the most that ran in this time. Longer than the pause between two
waves of answers that end in the same step; short enough to follow a KV cache that fills up."""

HOLD_SECONDS = 5.0
"""From the last sign of a queue until the limit is tried again."""

FORGET_SECONDS = 60.0
"""From the last sign of a queue until the limit is unknown again."""

QUEUE_SECONDS = 0.5
"""The shortest wait for a first token that can be a wait for a slot."""

QUEUE_STEPS = 10.0
"""In the engine's own seconds between tokens: a first token takes a few steps by itself."""

PREFILL_SLACK = 2.0
"""Times the seconds that the prompts ahead take at the best prefill speed that was seen."""

STEADY = 0.1
"""Two gauges of running requests that differ by this share or less (or by 1) are the same."""


class Capacity:
    """One engine's limit. `stated` is what the operator says; it is then used as it is."""

    __slots__ = ("_grown_at", "_growth", "_limit", "_queued_at", "_recent", "_stated")

    def __init__(self, stated: int | None = None) -> None:
        self._stated = stated
        self._limit = math.inf
        self._queued_at = self._grown_at = -math.inf
        self._growth = 0
        self._recent: deque[tuple[int, int]] = deque()
        """(second, the most that ran in it), the last RECENT_SECONDS of them."""

    @property
    def slots(self) -> float:
        """Sequences that run side by side; infinite while nothing is known of a limit."""
        return self._limit if self._stated is None else self._stated

    def ran(self, running: int, now: float) -> None:
        """So many were seen to run: it can do that."""
        second, recent = int(now), self._recent
        while recent and recent[0][0] <= second - RECENT_SECONDS:
            recent.popleft()
        if recent and recent[-1][0] >= second:
            recent[-1] = (recent[-1][0], max(running, recent[-1][1]))
        else:
            recent.append((second, running))
        if running > self._limit:
            self._limit = running

    def tick(self, in_flight: int, now: float, *, is_queueing: bool) -> None:
        """Judge again; `in_flight` requests are there, `is_queueing` says that some wait."""
        if is_queueing:
            self._limit = max(1, *(running for _, running in self._recent), 1)
            self._queued_at = self._grown_at = now
            self._growth = 0
        elif now - self._queued_at >= FORGET_SECONDS:
            self._limit = math.inf
        elif (
            now - self._queued_at >= HOLD_SECONDS
            and in_flight >= self._limit
            and now - self._grown_at >= 1.0
        ):
            # 1, 2, 3 ... more each second: one too many waits for a moment, and a limit that was
            # taken in bad times (a full KV cache, long prompts) is left behind within seconds.
            self._growth += 1
            self._limit += self._growth
            self._grown_at = now

    def forget(self) -> None:
        """It may be another engine by now, or the same one at another speed."""
        self._limit = math.inf
        self._recent.clear()


def waits_for_slot(pace: Pace, now: float) -> bool:
    """Whether this router's own requests show a queue: one has waited for its first token for much
    longer than its prefill explains, none that came later was served first, and others run."""
    waiting = pace.oldest_waiting
    if waiting is None or not pace.all_streams or pace.is_stalled:
        return False
    since, work = waiting
    prefill = PREFILL_SLACK * (pace.best_per_prompt_token or 0.0) * work
    return now - since > max(QUEUE_SECONDS, QUEUE_STEPS * (pace.per_token or 0.0), prefill)


class QueueGauge:
    """Whether the engine's own gauges show a queue, for traffic whose waits are not seen here:
    unary requests, and those of other routers."""

    __slots__ = ("_before", "is_queueing")

    def __init__(self) -> None:
        self._before: Gauges | None = None
        self.is_queueing = False

    def scraped(self, gauges: Gauges | None, *, has_transfers: bool) -> None:
        """Take a scrape. Two in a row with requests that wait for capacity while as many run as
        before are a queue; when more run than before the engine is still letting them in.

        A preemption says that the KV cache is full. `has_transfers`: requests may wait for a KV
        cache from elsewhere; vLLM says apart who waits for capacity from 0.20.2 on
        (`num_requests_waiting_by_reason`), and before that its gauge proves nothing there.
        """
        before, self._before = self._before, gauges
        self.is_queueing = (
            before is not None
            and gauges is not None
            and _queued(before, has_transfers) > 0
            and _queued(gauges, has_transfers) > 0
            and (_is_steady(before, gauges) or _has_preempted(before, gauges))
        )


def _queued(gauges: Gauges, has_transfers: bool) -> int:
    if gauges.queued is not None:
        return gauges.queued
    return 0 if has_transfers else gauges.waiting or 0


def _is_steady(before: Gauges, now: Gauges) -> bool:
    if not before.running or not now.running:
        return False
    return abs(now.running - before.running) <= max(1.0, STEADY * before.running)


def _has_preempted(before: Gauges, now: Gauges) -> bool:
    if before.preemptions is None or now.preemptions is None:
        return False
    return now.preemptions > before.preemptions
