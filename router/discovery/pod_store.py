"""The pods that match one selector, from a list and the events after it. Pure.

An event counts only if it is newer than what is known of its pod, so that events that arrive twice,
late or out of order give the same set as a new list.
"""

from collections.abc import Iterable

from router.discovery.pod import Pod

__all__ = ["PodStore"]


class PodStore:
    """Pods from lists and events."""

    def __init__(self) -> None:
        self._listed_at = 0
        """The resourceVersion of the last list, which includes everything up to it."""
        self._known: dict[str, tuple[int, Pod | None]] = {}
        """By UID: the latest version seen, and the pod; None if it was deleted. Deleted pods are
        only dropped by the next list."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The existing pods, in no particular order."""
        return tuple(pod for _, pod in self._known.values() if pod is not None)

    def replace(self, pods: Iterable[Pod], version: int) -> None:
        """Apply a list. Pods that are not in it are gone, whether or not there was an event."""
        self._listed_at = version
        self._known = {pod.uid: (pod.version, pod) for pod in pods}

    def put(self, pod: Pod) -> None:
        """Add or replace a pod."""
        self._take(pod, pod)

    def remove(self, pod: Pod) -> None:
        """Remove a pod that was deleted or no longer matches the selector."""
        self._take(pod, None)

    def _take(self, pod: Pod, now: Pod | None) -> None:
        known, _ = self._known.get(pod.uid, (self._listed_at, None))
        if pod.version > max(known, self._listed_at):
            self._known[pod.uid] = (pod.version, now)
