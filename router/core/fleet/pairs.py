"""What follows from the versions of engines: which of them can exchange KV caches (during a rolling
upgrade not all can), and whether a forced tool's prompt can be prefilled remotely."""

import re
from collections.abc import Collection, Iterable
from typing import Final

from router.core.fleet.member import Kind, Member
from router.core.values import Endpoint

__all__ = [
    "FORCED_TOOLS_FROM",
    "incompatible",
    "is_mixed",
    "release",
    "some_refuse_forced_tools",
]

FORCED_TOOLS_FROM: Final = (0, 19)
"""The first vLLM that can be asked for one token of a forced tool's call. Earlier ones parse it as
a whole call and answer 400 or 500 (vllm#38911), after having computed the prompt."""


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a vLLM version; (0, 0) if there are none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def some_refuse_forced_tools(members: Iterable[Member]) -> bool:
    """Whether an engine is known to be too old."""
    versions = {member.version for member in members if member.version is not None}
    return any(release(version) < FORCED_TOOLS_FROM for version in versions)


def is_mixed(members: Iterable[Member]) -> bool:
    """Whether engines differ in version or in the root of a served model."""
    versions: set[str] = set()
    roots: set[tuple[str, str]] = set()
    for member in members:
        if member.version is not None:
            versions.add(member.version)
        for card in member.cards or ():
            if isinstance(card.get("root"), str):
                roots.add((card["id"], card["root"]))
    return len(versions) > 1 or len({name for name, _ in roots}) < len(roots)


def incompatible(
    members: Iterable[Member], partners: Collection[Kind], model: str | None
) -> frozenset[Endpoint]:
    """The engines that cannot exchange KV caches of a model with any of `partners`, a collection of
    kinds. Empty if there are no partners."""
    if not partners:
        return frozenset()
    # Kinds are compared instead of engines: there may be a thousand engines, but only two or three
    # kinds.
    by_kind: dict[Kind, list[Endpoint]] = {}
    for member in members:
        by_kind.setdefault(member.kind(model), []).append(member.endpoint)
    return frozenset(
        endpoint
        for kind, endpoints in by_kind.items()
        if not any(_agree(kind, other) for other in partners)
        for endpoint in endpoints
    )


def _agree(one: Kind, other: Kind) -> bool:
    """Whether both have the same vLLM version and the same root for the model. Unknown values match
    any."""
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
