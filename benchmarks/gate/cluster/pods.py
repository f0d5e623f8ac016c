"""State of a run's pods and Job. Pure: reads the API server's objects."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]

PERMANENT_REASONS = {
    "ErrImagePull": "push the image, or correct deploy/kubernetes/components/versions",
    "ImagePullBackOff": "push the image, or correct deploy/kubernetes/components/versions",
    "InvalidImageName": "correct deploy/kubernetes/components/versions",
    "CreateContainerConfigError": "a ConfigMap or Secret that it names is missing",
    "CrashLoopBackOff": "its log says why: kubectl logs --previous",
}
"""Waiting reasons of a container that cannot start, with the remedy."""


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is true."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def permanent_failure(pods: Iterable[Object]) -> str | None:
    """Why these pods will never be ready; None if they may be."""
    for pod in pods:
        for reason, message in _waiting(pod):
            if reason in PERMANENT_REASONS:
                name = pod["metadata"]["name"]
                return (
                    f"pod {name}: {reason}: {message or 'no message'} ({PERMANENT_REASONS[reason]})"
                )
    return None


def unschedulable(pods: Iterable[Object]) -> str | None:
    """Why the scheduler has no place for one of these pods; None if it has. That may be over in a
    moment: while others end, or a node joins."""
    for pod in pods:
        for each in pod.get("status", {}).get("conditions") or ():
            if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
                name = pod["metadata"]["name"]
                return f"pod {name} finds no place: {each.get('message', 'no message')}"
    return None


def _waiting(pod: Object) -> Iterator[tuple[str, str]]:
    status = pod.get("status", {})
    for each in (*(status.get("initContainerStatuses") or ()), *_statuses(pod)):
        waiting = each.get("state", {}).get("waiting")
        if waiting:
            yield waiting.get("reason", ""), waiting.get("message", "")


def exit_status(pods: Iterable[Object]) -> int | None:
    """Exit status of the first container that has ended; None while none has."""
    for pod in pods:
        for each in _statuses(pod):
            ended = each.get("state", {}).get("terminated")
            if ended is not None:
                return int(ended["exitCode"])
    return None


def job_over(jobs: Iterable[Object]) -> str | None:
    """How the Job ended, or that it is gone; None while its pod may still run."""
    found = list(jobs)
    if not found:
        return "somebody deleted it"
    for job in found:
        for each in job.get("status", {}).get("conditions") or ():
            if each["type"] in ("Complete", "Failed") and each["status"] == "True":
                return f"{each['type']}: {each.get('message') or 'no message'}"
    return None


def _statuses(pod: Object) -> Iterable[Object]:
    return pod.get("status", {}).get("containerStatuses") or ()
