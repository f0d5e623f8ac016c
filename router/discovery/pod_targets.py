"""Converts pods to targets. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from router.core.membership.entry import Target
from router.core.urls import normalise
from router.core.values import Endpoint, Role
from router.discovery.pod import Pod

__all__ = ["Found", "PodTargets", "in_both_roles"]


class Found(NamedTuple):
    """A target and the pod behind it."""

    target: Target
    pod: Pod

    @property
    def rank(self) -> tuple[bool, str, str, bool]:
        """Of several with the same URL, the largest is used: a pod that takes requests before one
        that is draining, then the younger one. A pod with both roles, as during a change of its
        label, becomes a decode engine, which can serve requests alone."""
        target, pod = self
        is_decode = target.endpoint.role is Role.DECODE
        return not target.is_draining, pod.created, pod.uid, is_decode


class _Read(NamedTuple):
    """The targets of one pod."""

    pod: Pod
    found: tuple[Found, ...]
    problems: tuple[str, ...]


class PodTargets:
    """The targets of pods that listen on `ports` (numbers or names). A pod that has not changed is
    not parsed again, and its target is the same object."""

    def __init__(self, ports: Iterable[int | str]) -> None:
        self._ports = tuple(ports)
        self._known: dict[tuple[Role, str], _Read] = {}

    def find(self, pods: Mapping[Role, Iterable[Pod]]) -> dict[Endpoint, Found]:
        """The targets of each role's pods by URL, in the order of URLs; each URL once, in one role.

        A pod with several of the ports is a target for each of them: several engines share a pod.
        """
        before, self._known = self._known, {}
        best: dict[str, Found] = {}
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

    def _read(self, pod: Pod, role: Role) -> _Read:
        found = tuple(_of_pod(pod, role, self._ports))
        return _Read(pod, found, tuple(_problems_of(pod, self._ports)))


def _problems_of(pod: Pod, ports: Iterable[int | str]) -> Iterator[str]:
    if pod.ip is None:
        return
    if pod.trouble is not None:
        yield f"pod {pod.name}: its annotations are ignored: {pod.trouble}"
    for port in ports:
        if pod.port(port) is None:
            yield f"pod {pod.name} has no port named {port}: it is not used there"


def _of_pod(pod: Pod, role: Role, ports: Iterable[int | str]) -> Iterator[Found]:
    if pod.ip is None:
        return
    for number in dict.fromkeys(pod.port(each) for each in ports):
        if number is not None:
            host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
            endpoint = Endpoint(normalise(f"http://{host}:{number}"), role)
            said = pod.annotations
            receiver = said.receiver if role is Role.DECODE else None
            target = Target(endpoint, pod.uid, pod.is_draining, receiver, said.kv_events_port)
            yield Found(target, pod)


def in_both_roles(pods: Mapping[Role, Iterable[Pod]]) -> tuple[str, ...]:
    """The names of pods that match the selectors of both roles, sorted."""
    prefill, decode = (
        {pod.uid: pod.name for pod in pods.get(role, ())} for role in (Role.PREFILL, Role.DECODE)
    )
    return tuple(sorted(prefill[uid] for uid in prefill.keys() & decode.keys()))
