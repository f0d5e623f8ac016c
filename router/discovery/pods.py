"""What the API server says of a pod, and the engines in it. Pure.

The rules are those of Kubernetes' own endpoints: a pod serves if it is ready, it is terminating if
it has a deletion timestamp, and its address is no longer its own once it has ended.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from router.core.membership.entry import Target
from router.core.urls import normalise
from router.core.values import Endpoint, Receiver, Role

__all__ = [
    "NO_ANNOTATIONS",
    "PREFIX",
    "Annotations",
    "MalformedObject",
    "Pod",
    "PodEngine",
    "PodTargets",
    "WrongAnnotation",
    "in_several_roles",
    "read_annotations",
    "read_pod",
    "version_of",
]

PREFIX = "pd-router/"

KV_EVENTS_PORT = PREFIX + "kv-events-port"
RECEIVER_HOST = PREFIX + "lmcache-host"
INIT_PORTS = PREFIX + "lmcache-init-ports"
ALLOC_PORTS = PREFIX + "lmcache-alloc-ports"
ZONE = PREFIX + "zone"

KNOWN = frozenset({KV_EVENTS_PORT, RECEIVER_HOST, INIT_PORTS, ALLOC_PORTS, ZONE})

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Label of a pod that Kubernetes copies from its node, from 1.35 on."""

MAX_HOST = 253
"""Longest DNS name in characters."""

MAX_RANKS = 64
"""Most tensor-parallel ranks of one engine."""

_PORT = re.compile(r"[0-9]{1,5}")


class WrongAnnotation(ValueError):
    """An annotation is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The values; None for missing annotations."""

    kv_events_port: int | None = None
    """Port of its KV-cache events (vLLM's --kv-events-config)."""
    receiver: Receiver | None = None
    """The address at which its LMCache receives KV caches."""
    zone: str | None = None
    """The zone in which it runs."""


NO_ANNOTATIONS = Annotations()


def read_annotations(given: Mapping[str, str], host: str) -> Annotations:
    """The annotations of a pod at the address `host`. Raises WrongAnnotation."""
    ours = {key: text for key, text in given.items() if key.startswith(PREFIX)}
    if not ours:
        return NO_ANNOTATIONS
    if strange := sorted(ours.keys() - KNOWN):
        raise WrongAnnotation(f"{strange[0]} is unknown; there are {', '.join(sorted(KNOWN))}")
    port = ours.get(KV_EVENTS_PORT)
    return Annotations(
        kv_events_port=None if port is None else _port(KV_EVENTS_PORT, port),
        receiver=_receiver(ours, host),
        zone=ours.get(ZONE),
    )


def _receiver(ours: Mapping[str, str], host: str) -> Receiver | None:
    if not ours.keys() & {RECEIVER_HOST, INIT_PORTS, ALLOC_PORTS}:
        return None
    init, alloc = (_ports(name, ours.get(name, "")) for name in (INIT_PORTS, ALLOC_PORTS))
    if len(init) != len(alloc):
        raise WrongAnnotation(
            f"{ALLOC_PORTS} names {len(alloc)} ports and {INIT_PORTS} {len(init)}: "
            "one of each per tensor-parallel rank"
        )
    own = ours.get(RECEIVER_HOST) or host
    if len(own) > MAX_HOST:
        raise WrongAnnotation(f"{RECEIVER_HOST} is longer than {MAX_HOST} characters")
    return Receiver(own, init, alloc)


def _ports(name: str, text: str) -> tuple[int, ...]:
    found = text.split(",")
    if len(found) > MAX_RANKS:
        raise WrongAnnotation(f"{name} names more than {MAX_RANKS} ports")
    return tuple(_port(name, each.strip()) for each in found)


def _port(name: str, text: str) -> int:
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise WrongAnnotation(f"{name}: {text[:40]!r} is no port")
    return int(text)


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
    is_terminating: bool
    """Whether it is being deleted."""
    named_ports: tuple[tuple[str, int], ...]
    """Names and numbers of its containers' ports."""
    annotations: Annotations
    zone: str | None = None
    """Its zone, by annotation or label."""
    problem: str | None = None
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
    is_terminating = metadata.get("deletionTimestamp") is not None
    annotations, problem = Annotations(), None
    try:
        annotations = read_annotations(metadata.get("annotations") or {}, ip or "")
    except WrongAnnotation as error:
        problem = str(error)
    return Pod(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        version=version_of(metadata),
        created=str(metadata.get("creationTimestamp") or ""),
        ip=ip,
        is_draining=is_terminating or not _is_ready(status),
        is_terminating=is_terminating,
        named_ports=tuple(_named_ports(item.get("spec") or {})),
        annotations=annotations,
        zone=annotations.zone or (metadata.get("labels") or {}).get(ZONE_LABEL),
        problem=problem,
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


class PodEngine(NamedTuple):
    """A target and the pod behind it."""

    target: Target
    pod: Pod

    @property
    def rank(self) -> tuple[bool, str, str, bool]:
        """Of several with the same URL, the largest is used: a pod that takes requests before one
        that is draining, then the younger one. A pod with several roles, as during a change of its
        label, becomes a decode engine, which can serve requests alone."""
        target, pod = self
        is_decode = target.endpoint.role is Role.DECODE
        return not target.is_draining, pod.created, pod.uid, is_decode


class _PodRead(NamedTuple):
    """The targets of one pod."""

    pod: Pod
    found: tuple[PodEngine, ...]
    problems: tuple[str, ...]


class PodTargets:
    """The targets of pods that listen on `ports` (numbers or names). A pod that has not changed is
    not parsed again, and its target is the same object."""

    def __init__(self, ports: Iterable[int | str]) -> None:
        self._ports = tuple(ports)
        self._known: dict[tuple[Role, str], _PodRead] = {}

    def find(self, pods: Mapping[Role, Iterable[Pod]]) -> dict[Endpoint, PodEngine]:
        """The targets of each role's pods by URL, in the order of URLs; each URL once, in one role.

        A pod with several of the ports is a target for each of them: several engines share a pod.
        """
        before, self._known = self._known, {}
        best: dict[str, PodEngine] = {}
        for role, of_role in pods.items():
            for pod in of_role:
                known = before.get((role, pod.uid))
                if known is None or known.pod is not pod:
                    known = self._read(pod, role)
                self._known[role, pod.uid] = known
                for found in known.found:
                    url = found.target.endpoint.url
                    if url not in best or found.rank > best[url].rank:
                        best[url] = found
        return {best[url].target.endpoint: best[url] for url in sorted(best)}

    @property
    def problems(self) -> Iterator[str]:
        """Problems of single pods, as of the last `find`."""
        return chain.from_iterable(known.problems for known in self._known.values())

    def _read(self, pod: Pod, role: Role) -> _PodRead:
        found = tuple(_of_pod(pod, role, self._ports))
        return _PodRead(pod, found, tuple(_problems_of(pod, self._ports)))


def _problems_of(pod: Pod, ports: Iterable[int | str]) -> Iterator[str]:
    if pod.ip is None:
        return
    if pod.problem is not None:
        yield f"pod {pod.name}: its annotations are ignored: {pod.problem}"
    for port in ports:
        if pod.port(port) is None:
            yield f"pod {pod.name} has no port named {port}: it is not used there"


def _of_pod(pod: Pod, role: Role, ports: Iterable[int | str]) -> Iterator[PodEngine]:
    if pod.ip is None:
        return
    for number in dict.fromkeys(pod.port(each) for each in ports):
        if number is not None:
            host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
            endpoint = Endpoint(normalise(f"http://{host}:{number}"), role)
            said = pod.annotations
            receiver = said.receiver if role is Role.DECODE else None
            target = Target(
                endpoint,
                pod.uid,
                pod.is_draining,
                pod.is_terminating,
                receiver,
                said.kv_events_port,
                pod.zone,
            )
            yield PodEngine(target, pod)


def in_several_roles(pods: Mapping[Role, Iterable[Pod]]) -> list[tuple[str, Role]]:
    """The pods that match the selectors of several roles, with the one in which they are used."""
    roles: dict[tuple[str, str], list[Role]] = {}
    for role, of_role in pods.items():
        for pod in of_role:
            roles.setdefault((pod.name, pod.uid), []).append(role)
    return [
        (name, Role.DECODE if Role.DECODE in found else found[0])
        for (name, _), found in sorted(roles.items())
        if len(found) > 1
    ]
