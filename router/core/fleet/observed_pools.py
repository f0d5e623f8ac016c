"""Updates the fleet's engines from events: health, failures, models and load.

Events about engines that are not in the fleet, or no longer, are ignored.
"""

import math
from typing import Final

from router.core.events import (
    Ejected,
    Event,
    LegAnswered,
    LegDone,
    LegFailed,
    PrefixesHeld,
    Probed,
    RequestEnded,
    Scraped,
    SharedEvent,
    SpeedProbed,
)
from router.core.fleet import served_models
from router.core.fleet.failures import cause, is_part_of_crash, is_unreachable
from router.core.fleet.member import Member
from router.core.fleet.pools import Pools
from router.core.health import HealthSignal, State
from router.core.urls import split_rank
from router.core.values import FailureKind, Role

__all__ = ["ObservedPools"]

OF_ENGINES = (LegAnswered, Probed, Scraped, SpeedProbed, LegFailed)

UP: Final = State.UP
NEVER: Final = -math.inf

NOT_ITS_FAULT: Final = (FailureKind.EXHAUSTED, FailureKind.NO_ROOM)
"""Kinds of failure that do not count against the engine: it got no request, or the router had no
memory for its answer."""


class ObservedPools(Pools):
    """Pools that are updated by events."""

    def ended(self, record: RequestEnded) -> None:
        """Learn from a request that has ended how many tokens its text had."""
        if record.prompt_tokens and record.model in self.known_models():
            self.token_ratios.learn(record.model, record.text_bytes, record.prompt_tokens)

    def observe(self, event: Event, now: float) -> None:
        """Update from an event. Events that do not concern an engine are ignored."""
        if isinstance(event, LegDone):  # the most frequent kind first
            member = self._members.get(event.endpoint)
            if member is not None:
                outliers = self._monitors[event.endpoint.role].outliers
                outliers.answered(member, now, event.model, is_good=True)
            return
        if not isinstance(event, OF_ENGINES):
            return
        member = self._members.get(event.endpoint)
        if member is None:
            return
        if isinstance(event, LegAnswered):
            health = member.health
            if (health.streak or health.unanswered_since is not None) and health.may_serve:
                # It resets the count of failed probes, and shows that an engine whose probes only
                # timed out is there; only a probe can bring another one up.
                self._see(member, HealthSignal.OK, now)
            if member.full_until != NEVER or event.status >= 400:
                self._answered(member, event, now)
        elif isinstance(event, LegFailed):
            self._failed(member, event, now)
        else:
            self._asked(member, event, now)

    def observe_shared(self, event: SharedEvent, now: float) -> None:
        """Update from an event of another worker process or of a sibling replica."""
        member = self._members.get(event.endpoint)
        if member is None:  # this process does not know the engine yet, or no longer
            return
        if isinstance(event, PrefixesHeld):  # frequent, and they change no engine's state
            for prefix in event.prefixes:
                member.prefixes.hold(prefix)
                self._note_holder(prefix, event.endpoint)
            return
        self._kept.clear()
        if isinstance(event, Probed | Scraped | SpeedProbed):
            self._asked(member, event, now)
        elif isinstance(event, Ejected):
            member.failed(event.cause, now)
            self._monitors[event.endpoint.role].outliers.ejected_elsewhere(member, event)
        elif is_unreachable(event):
            member.failed(cause(event), now)
            self._see(member, HealthSignal.FAILED, now)

    def _answered(self, member: Member, event: LegAnswered, now: float) -> None:
        """Update from an engine's response status: an error, a report to be full, or a sign that it
        has room again."""
        asked_at = now - event.seconds
        if asked_at < member.joined_at:  # it came from the previous engine at this URL
            return
        if event.full_seconds:
            if member.full(event.full_seconds, now):
                self._kept.clear()
        elif event.status < 400:
            if asked_at >= member.full_at:  # older ones tell nothing about its room
                member.has_room()
                self._kept.clear()
        elif event.status >= 500 and event.is_own_doing:
            member.failed(f"it answered a request with {event.status}", now)
            self._count_failure(member, event.model, now)

    def _failed(self, member: Member, event: LegFailed, now: float) -> None:
        if event.asked_at < member.joined_at:  # it was a failure of the previous engine at this URL
            return
        if event.kind in NOT_ITS_FAULT:
            return
        member.failed(cause(event), now)
        if is_unreachable(event):
            self._see(member, HealthSignal.FAILED, now)
        if event.kind is FailureKind.STALLED:  # the pool monitor has already judged it
            return
        if not is_part_of_crash(event, member, now):
            self._count_failure(member, event.model, now)

    def _asked(self, member: Member, event: Probed | Scraped | SpeedProbed, now: float) -> None:
        """Update from what an engine answers to the router's own requests."""
        if isinstance(event, Probed):
            self._probed(member, event, now)
        elif isinstance(event, Scraped):
            self._scraped(member, event, now)
        elif event.error is not None:
            member.failed_speed_probes += 1
            member.failed(event.error, now)
        elif event.outcome != "failed":  # else the router itself was the cause
            member.failed_speed_probes = 0

    def _probed(self, member: Member, event: Probed, now: float) -> None:
        if event.error is not None:
            member.failed(event.error, now)
        before = member.version
        signal = event.signal
        if signal is HealthSignal.TIMED_OUT and self._has_produced(member, event.asked_at):
            signal = HealthSignal.BUSY
        self._see(member, signal, now, event.asked_at)
        if event.version is not None:
            if member.version not in (None, event.version):
                # A new engine took its place behind a Service without a failed probe in between.
                self._kept.clear()
                self._monitors[event.endpoint.role].joined(member, now)
            member.version = event.version
        if member.version != before:
            self._compare()
        if event.cards is not None and not served_models.are_same(event.cards, member.cards):
            member.set_cards(event.cards)
            self._models_changed()

    def _has_produced(self, member: Member, asked_at: float) -> bool:
        """Whether the engine has produced tokens, known to the last tick, since the first probe was
        sent that it has not answered, `asked_at` or before. Roles and data-parallel ranks of an
        engine share the server that answers /health."""
        unanswered_since = member.health.unanswered_since
        since = asked_at if unanswered_since is None else unanswered_since
        url = split_rank(member.endpoint.url)[0]
        return any(
            other.speed.last_token_at > since and split_rank(other.endpoint.url)[0] == url
            for other in self
        )

    def _scraped(self, member: Member, event: Scraped, now: float) -> None:
        has_transfers = bool(self._pools[Role.PREFILL]) and event.endpoint.role is Role.DECODE
        member.observe_gauges(event.gauges, event.own, now, has_transfers=has_transfers)
        member.gauges_error = event.error
