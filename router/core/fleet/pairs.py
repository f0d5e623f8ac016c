"""Which prefill and decode engines can exchange KV caches. During a rolling upgrade not all can."""

from collections.abc import Collection, Iterable

from router.core.fleet.member import Kind, Member
from router.core.values import Endpoint

__all__ = ["incompatible", "is_mixed"]


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
