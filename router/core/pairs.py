"""Which prefill and decode engines can exchange KV caches, as while engines are upgraded."""

from collections.abc import Iterable, Sequence

from router.core.member import Member
from router.core.values import Endpoint

__all__ = ["is_mixed", "strangers"]


def is_mixed(members: Iterable[Member]) -> bool:
    """Whether engines differ in version, or in what a model's name stands for."""
    versions: set[str] = set()
    roots: set[tuple[str, str]] = set()
    for member in members:
        if member.version is not None:
            versions.add(member.version)
        for card in member.cards or ():
            if isinstance(card.get("root"), str):
                roots.add((card["id"], card["root"]))
    return len(versions) > 1 or len({name for name, _ in roots}) < len(roots)


def strangers(
    members: Iterable[Member], partners: Sequence[Member], model: str | None
) -> frozenset[Endpoint]:
    """The engines that can exchange KV caches of a model with none of the partners; without
    partners nobody is one."""
    return frozenset(
        member.endpoint
        for member in members
        if partners and not any(member.agrees_with(other, model) for other in partners)
    )
