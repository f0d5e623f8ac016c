"""Extracts what the router needs of a pod from the API server's object. Pure.

The rules are those of Kubernetes' own endpoints: a pod serves if it is ready, it is terminating if
it has a deletion timestamp, and its address is no longer its own once it has ended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from router.discovery.annotations import Annotations, WrongAnnotation, read_annotations

__all__ = ["MalformedObject", "Pod", "read_pod", "version_of"]

Object = Mapping[str, Any]

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers never run again: evicted, completed, preempted. Its address may
belong to another pod, even while it is still in the status."""


class MalformedObject(Exception):
    """The API server's object is not a valid pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod at one time."""

    uid: str
    """Distinguishes a pod from an earlier one with the same name or address."""
    name: str
    version: int
    """The object's resourceVersion: a larger one is newer."""
    created: str
    """When it was created: RFC 3339 in UTC, which sorts as text."""
    ip: str | None
    """Its address; None while it has none, and if nothing in it can answer."""
    is_draining: bool
    """Whether it must get no new requests: it is being deleted, or is not ready."""
    named_ports: tuple[tuple[str, int], ...]
    """Names and numbers of its containers' ports."""
    annotations: Annotations
    trouble: str | None = None
    """Why its annotations are invalid."""

    def port(self, wanted: int | str) -> int | None:
        """The number of a port given by number or name; None if the pod has no port of that
        name."""
        return wanted if isinstance(wanted, int) else dict(self.named_ports).get(wanted)


def read_pod(item: Object) -> Pod:
    """Parse a pod. Raises MalformedObject."""
    try:
        return _read(item)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObject(f"an object of a list of pods is none: {error!r}") from None


def version_of(metadata: Object) -> int:
    """An object's resourceVersion. Kubernetes guarantees that they are increasing numbers (since
    1.35; with etcd they always have been). Raises MalformedObject."""
    try:
        return int(metadata["resourceVersion"])
    except (KeyError, TypeError, ValueError):
        raise MalformedObject("an object has no numeric resourceVersion") from None


def _read(item: Object) -> Pod:
    metadata, status = item["metadata"], item.get("status") or {}
    ip = _address(status)
    annotations, trouble = Annotations(), None
    try:
        annotations = read_annotations(metadata.get("annotations") or {}, ip or "")
    except WrongAnnotation as error:
        trouble = str(error)
    return Pod(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        version=version_of(metadata),
        created=str(metadata.get("creationTimestamp") or ""),
        ip=ip,
        is_draining=metadata.get("deletionTimestamp") is not None or not _is_ready(status),
        named_ports=tuple(_named_ports(item.get("spec") or {})),
        annotations=annotations,
        trouble=trouble,
    )


def _address(status: Object) -> str | None:
    """The pod's address if something in it may answer. A pod that is not ready is ignored until its
    containers have started: before that it has no streams that could be cut."""
    if status.get("phase") in ENDED:
        return None
    if not (_is_ready(status) or _has_started(status)):
        return None
    ip = status.get("podIP")
    return None if not ip else str(ip)


def _is_ready(status: Object) -> bool:
    """The Ready condition: all containers are ready, and all readiness gates are open."""
    conditions = status.get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _has_started(status: Object) -> bool:
    """Whether all containers have passed their startup probe."""
    containers = status.get("containerStatuses") or ()
    return bool(containers) and all(each.get("started") is True for each in containers)


def _named_ports(spec: Object) -> Iterator[tuple[str, int]]:
    """The named ports, including those of sidecars (init containers that keep running)."""
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            for port in container.get("ports") or ():
                if port.get("name") and port.get("protocol", "TCP") == "TCP":
                    number = int(port["containerPort"])
                    if not 0 < number < 1 << 16:
                        raise ValueError(f"containerPort {number}")
                    yield str(port["name"]), number
