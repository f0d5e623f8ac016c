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
waves of answers that end in the same step."""

SURE_SECONDS = 2
"""After so long a queue the most that ran in this time is the limit: a KV cache has filled up."""

HOLD_SECONDS = 5.0
"""From the last sign of a queue until the limit is tried again."""

RAISE_SECONDS = 1.0
"""Between two raises; in this time it shows whether the last one made first tokens late."""

LATE = 1.5
"""Times the mean time to first token before any raise: above that, the last raise was too much."""

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

    __slots__ = (
        "_growth",
        "_limit",
        "_queued_at",
        "_queueing_since",
        "_raised_at",
        "_recent",
        "_stated",
        "_usual_first",
        "_waits",
    )

    def __init__(self, stated: int | None = None) -> None:
        self._stated = stated
        self._recent: deque[tuple[int, int]] = deque()
        """(second, the most that ran in it), the last RECENT_SECONDS of them."""
        self.forget()

    def forget(self) -> None:
        """It may be another engine by now, or the same one at another speed."""
        self._limit = math.inf
        self._queued_at = self._raised_at = -math.inf
        self._queueing_since: float | None = None
        self._growth = 0
        self._usual_first: float | None = None
        """Seconds to a first token at a limit that was not raised, a moving average."""
        self._waits: list[float] = []
        """The same, tick by tick, since the last raise."""
        self._recent.clear()

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
            self._limit = float(running)

    def tick(
        self, in_flight: int, first_token_seconds: float | None, now: float, *, is_queueing: bool
    ) -> None:
        """Judge again. `in_flight` requests are there, `is_queueing` says that some wait for a
        slot, `first_token_seconds` is the mean time to first token since the last tick."""
        if is_queueing:
            since = self._queueing_since = self._queueing_since or now
            is_sure = now - since >= SURE_SECONDS
            self._take(SURE_SECONDS if is_sure else RECENT_SECONDS, now)
            return
        self._queueing_since = None
        if now - self._queued_at >= FORGET_SECONDS:
            self._limit = math.inf
        if self._limit == math.inf:
            return
        self._note_first(first_token_seconds)
        if now - max(self._queued_at + HOLD_SECONDS, self._raised_at) >= RAISE_SECONDS:
            self._try(in_flight, now)

    def _take(self, seconds: int, now: float) -> None:
        """The limit is what ran in the last `seconds`."""
        ran = (running for second, running in self._recent if second > int(now) - seconds)
        self._limit = float(max(1, *ran, 1))
        self._queued_at = self._raised_at = now
        self._growth = 0

    def _note_first(self, seconds: float | None) -> None:
        if seconds is None:
            return
        if self._growth:
            self._waits.append(seconds)
        elif self._usual_first is None:
            self._usual_first = seconds
        else:
            self._usual_first += (seconds - self._usual_first) / 4

    def _try(self, in_flight: int, now: float) -> None:
        """Take a raise back that made first tokens late, or raise a limit that binds.

        By 1, 2, 3 ... more each second: a limit that was taken in bad times (a full KV cache, long
        prompts) is left behind within seconds, and at the true limit a few requests wait, for some
        hundredths of a second.
        """
        usual, waits = self._usual_first, self._waits
        if usual is not None and waits and sum(waits) / len(waits) > LATE * usual:
            self._take(RECENT_SECONDS, now)
        elif in_flight >= self._limit:
            self._growth += 1
            self._limit += self._growth
            self._raised_at = now
        self._waits = []


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
