"""Learns how many sequences an engine runs side by side: max_num_seqs, or what its KV cache holds.

vLLM does not report the limit, so it is inferred: while requests queue, it is the most that ran
lately; once nothing queues any more, it is raised step by step. Gauges alone prove no queue: at the
start of a wave of requests many wait and few run, and a decode engine counts requests that wait for
a KV transfer as waiting. Hence `waits_for_slot` and `QueueDetector`.
"""

import math
from collections import deque

from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import (
    BURST_REQUESTS,
    DELAY_SECONDS,
    FORGET_LIMIT_SECONDS,
    FRESH_SECONDS,
    HOLD_SECONDS,
    PREFILL_SLACK,
    QUEUE_SECONDS,
    QUEUE_STEPS,
    RAISE_SECONDS,
    RECENT_SECONDS,
    ROOM_FACTOR,
    STEADY_RUNNING,
    SURE_SECONDS,
    TTFT_FACTOR,
)
from router.core.values import Gauges

__all__ = ["Capacity", "QueueDetector", "may_wait_for_slot", "waits_for_slot"]


class Capacity:
    """One engine's limit in sequences: `stated` by the operator, or learned (None)."""

    __slots__ = (
        "_baseline_ttft",
        "_delayed_at",
        "_growth",
        "_limit",
        "_most",
        "_queued_at",
        "_queueing_since",
        "_raised_at",
        "_recent",
        "_stated",
        "_ticked_at",
        "_waits",
    )

    def __init__(self, stated: int | None = None) -> None:
        self._stated = stated
        self._recent: deque[tuple[int, int]] = deque()
        """(second, most sequences that ran in it) of the last RECENT_SECONDS."""
        self.reset()

    def reset(self) -> None:
        """Forget what was learned: the engine was restarted."""
        self._limit = math.inf
        self._most = 0
        """The most sequences that were seen to run."""
        self._queued_at = self._raised_at = -math.inf
        self._queueing_since: float | None = None
        self._growth = 0
        self._ticked_at = self._delayed_at = -math.inf
        self._baseline_ttft: float | None = None
        """Moving average of TTFT in seconds, before any raise."""
        self._waits: list[float] = []
        """TTFT of each tick since the last raise."""
        self._recent.clear()

    def forget_less_than(self, known: float) -> None:
        """Forget a limit below `known`, the highest of the other engines (infinite if none is
        known): it was learned while the engine was slow and got few requests.

        No more is forgotten: an engine of unknown limit would get `ROOM_FACTOR` times what it runs.
        """
        self._limit = max(self._limit, known)
        self._growth, self._baseline_ttft, self._waits = 0, None, []

    @property
    def slots(self) -> float:
        """Sequences that run side by side; infinite if no limit is known."""
        return self._limit if self._stated is None else self._stated

    def room(self, known: float) -> float:
        """Slots to assume in a pool whose highest known limit is `known` (infinite if none is).

        An unknown limit must not attract all requests for which the other engines have no slots.
        It is taken to be the highest known one, or `ROOM_FACTOR` times the most sequences that were
        seen to run; only as many as were seen if requests were delayed there in the last
        `SURE_SECONDS`, since the engine may already be full.
        """
        slots = self.slots
        if slots != math.inf or known == math.inf:
            return slots
        was_delayed = self._ticked_at - self._delayed_at < SURE_SECONDS
        return max(known, float((1 if was_delayed else ROOM_FACTOR) * self._most))

    def observe_running(self, running: int, now: float) -> None:
        """Count `running` sequences seen at `now`: the limit is at least that."""
        self._most = max(self._most, running)
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
        self,
        in_flight: int,
        first_token_seconds: float | None,
        now: float,
        *,
        is_queueing: bool,
        is_delayed: bool = False,
    ) -> None:
        """Update the limit. `is_queueing`: some of the `in_flight` requests wait for a slot;
        `is_delayed`: perhaps. `first_token_seconds`: mean TTFT since the last tick; None without
        one."""
        self._ticked_at = now
        if is_delayed:
            self._delayed_at = now
        if is_queueing:
            since = self._queueing_since = self._queueing_since or now
            is_sure = now - since >= SURE_SECONDS
            self._lower(SURE_SECONDS if is_sure else RECENT_SECONDS, now)
            return
        self._queueing_since = None
        if now - self._queued_at >= FORGET_LIMIT_SECONDS:
            self._limit = math.inf
        if self._limit == math.inf:
            return
        self._note_first(first_token_seconds)
        if now - max(self._queued_at + HOLD_SECONDS, self._raised_at) >= RAISE_SECONDS:
            self._adjust(in_flight, now)

    def _lower(self, seconds: int, now: float) -> None:
        """Set the limit to the most that ran in the last `seconds`."""
        self._limit = float(self._ran(seconds, now))
        self._queued_at = self._raised_at = now
        self._growth = 0

    def _ran(self, seconds: int, now: float) -> int:
        """The most that ran in the last `seconds`; at least 1."""
        ran = (running for second, running in self._recent if second > int(now) - seconds)
        return max(1, *ran, 1)

    def _note_first(self, seconds: float | None) -> None:
        if seconds is None:
            return
        if self._growth:
            self._waits.append(seconds)
        elif self._baseline_ttft is None:
            self._baseline_ttft = seconds
        else:
            self._baseline_ttft += (seconds - self._baseline_ttft) / 4

    def _adjust(self, in_flight: int, now: float) -> None:
        """Undo raises that delayed first tokens or had no effect (no more sequences ran than
        before, although enough requests were in flight), or raise a limit that is reached.

        The limit rises by 1, 2, 3 ... each second: one that was learned while the KV cache was full
        is left behind within seconds, and at the true limit only a few requests wait, for some
        hundredths of a second.
        """
        baseline, waits = self._baseline_ttft, self._waits
        before = self._limit - self._growth
        is_useless = in_flight >= self._limit > before >= self._ran(SURE_SECONDS, now)
        if is_useless or (
            baseline is not None and waits and sum(waits) / len(waits) > TTFT_FACTOR * baseline
        ):
            self._lower(RECENT_SECONDS, now)
        elif in_flight >= self._limit:
            self._growth += 1
            self._limit += self._growth
            self._raised_at = now
        self._waits = []


def waits_for_slot(speed: SpeedEstimator, queue: "QueueDetector", now: float) -> bool:
    """Whether this router's requests show queueing: one has waited for its first token for
    `QUEUE_SECONDS` and much longer than its prefill explains, no later one overtook it, other
    streams run, and the engine's gauges do not rule it out."""
    since = _waiting_since(speed, now, QUEUE_SECONDS)
    return since is not None and queue.allows(since, now)


def may_wait_for_slot(speed: SpeedEstimator, queue: "QueueDetector", now: float) -> bool:
    """Whether requests may be queueing: the same after `DELAY_SECONDS`, or according to the gauges
    alone, because the costs of prompts are overestimated where they are short. While
    `BURST_REQUESTS` wait, a scrape from before the oldest was sent does not rule it out: a burst
    may come between two scrapes."""
    if queue.is_queueing and not queue.is_old(now):
        return True
    since = _waiting_since(speed, now, DELAY_SECONDS)
    if since is None:
        return False
    is_burst = speed.counts.all_open - speed.counts.all_streams >= BURST_REQUESTS
    return (is_burst and not queue.is_scraped_since(since)) or queue.allows(since, now)


def _waiting_since(speed: SpeedEstimator, now: float, seconds: float) -> float | None:
    """When the oldest request without a first token was sent, if that is longer ago than `seconds`
    and than its prefill explains; else None."""
    counts = speed.counts
    waiting = counts.oldest_waiting
    if waiting is None or not counts.all_streams or counts.is_stalled:
        return None
    since, work = waiting
    prefill = PREFILL_SLACK * (speed.best_per_prompt_token or 0.0) * work
    least = max(seconds, QUEUE_STEPS * (speed.per_token or 0.0), prefill)
    return since if now - since > least else None


class QueueDetector:
    """Detects queueing from the engine's gauges, for requests whose TTFT this router does not
    observe: unary ones, and those of other routers."""

    __slots__ = ("_at", "_before", "_queued", "is_queueing")

    def __init__(self) -> None:
        self._before: Gauges | None = None
        self._at = -math.inf
        self._queued: int | None = None
        """Requests that waited for capacity at the last scrape; None if unknown."""
        self.is_queueing = False

    def observe(self, gauges: Gauges | None, now: float, *, has_transfers: bool) -> None:
        """Update from a scrape. Requests queue if, in two scrapes in a row, some wait for capacity
        while the number that run is steady (if it grows, the engine is still admitting them), or
        preemptions show a full KV cache.

        `has_transfers`: requests may wait for KV transfers. From 0.20.2 on vLLM counts those that
        wait for capacity separately (`num_requests_waiting_by_reason`); before, its gauge of
        waiting requests is not used for such engines.
        """
        before, queued_before = self._before, self._queued
        self._before, self._at = gauges, now
        self._queued = None if gauges is None else _queued(gauges, has_transfers)
        self.is_queueing = (
            before is not None
            and gauges is not None
            and bool(queued_before)
            and bool(self._queued)
            and (_is_steady(before, gauges) or _has_preempted(before, gauges))
        )

    def is_old(self, now: float) -> bool:
        """Whether the last scrape is too old to show whether requests wait."""
        return now - self._at > FRESH_SECONDS

    def is_scraped_since(self, since: float) -> bool:
        """Whether the last scrape is from `since` or later."""
        return self._at >= since

    def allows(self, since: float, now: float) -> bool:
        """Whether the engine's gauges admit that a request sent at `since` waits for a slot; from
        outside, a slow prefill looks the same. They do if the last scrape is too old, and
        after `SURE_SECONDS` in any case."""
        if self._queued is None or self.is_old(now) or now - since >= SURE_SECONDS:
            return True
        return self._queued > 0


def _queued(gauges: Gauges, has_transfers: bool) -> int | None:
    if gauges.queued is not None:
        return gauges.queued
    return None if has_transfers else gauges.waiting


def _is_steady(before: Gauges, now: Gauges) -> bool:
    if not before.running or not now.running:
        return False
    return abs(now.running - before.running) <= max(1.0, STEADY_RUNNING * before.running)


def _has_preempted(before: Gauges, now: Gauges) -> bool:
    if before.preemptions is None or now.preemptions is None:
        return False
    return now.preemptions > before.preemptions
