"""The pods that one selector takes, as a list and the events after it say. Pure.

An event counts only if it is newer than what is known of its pod: events that come twice, late or
in another order end in the same set as a fresh list.
"""

from collections.abc import Iterable

from router.discovery.pod import Pod

__all__ = ["PodStore"]


class PodStore:
    """Takes lists and events."""

    def __init__(self) -> None:
        self._listed_at = 0
        """The resourceVersion of the last list, which holds all that happened up to then."""
        self._known: dict[str, tuple[int, Pod | None]] = {}
        """By UID: the newest version seen, and the pod; None: it is deleted. Only the next list
        forgets those, so all that were deleted since the last one are here."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods that are there, in no particular order."""
        return tuple(pod for _, pod in self._known.values() if pod is not None)

    def replace(self, pods: Iterable[Pod], version: int) -> None:
        """Take over a list: what is not in it is gone, whether or not an event said so."""
        self._listed_at = version
        self._known = {pod.uid: (pod.version, pod) for pod in pods}

    def put(self, pod: Pod) -> None:
        """A pod was added or has changed."""
        self._take(pod, pod)

    def remove(self, pod: Pod) -> None:
        """A pod was deleted, or the selector does not take it any more."""
        self._take(pod, None)

    def _take(self, pod: Pod, now: Pod | None) -> None:
        known, _ = self._known.get(pod.uid, (self._listed_at, None))
        if pod.version > max(known, self._listed_at):
            self._known[pod.uid] = (pod.version, now)
