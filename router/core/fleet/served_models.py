"""The models that a pool's engines serve (from /v1/models)."""

from collections.abc import Iterable
from typing import Any, Final

from router.core.fleet.member import Member

__all__ = ["adapters", "are_same", "base_models", "cards", "model_groups", "names"]

VOLATILE: Final = ("created", "permission")
"""Members of a card that differ in each response of vLLM: time and random ids."""


def cards(members: Iterable[Member]) -> dict[str, dict[str, Any]]:
    """The model cards of the engines that may get requests, by id; the first one of duplicates."""
    found: dict[str, dict[str, Any]] = {}
    for member in members:
        if member.health.may_serve:
            for card in member.cards or ():
                found.setdefault(card["id"], card)
    return found


def are_same(some: tuple[dict[str, Any], ...], others: tuple[dict[str, Any], ...] | None) -> bool:
    """Whether two responses of an engine list the same models."""
    if others is None or len(some) != len(others):
        return False
    pairs = zip(some, others, strict=True)
    return all(
        {**one, **dict.fromkeys(VOLATILE)} == {**other, **dict.fromkeys(VOLATILE)}
        for one, other in pairs
    )


def names(members: Iterable[Member]) -> frozenset[str]:
    """All models that any of the engines has listed."""
    return frozenset().union(*(member.models or () for member in members))


def model_groups(members: Iterable[Member]) -> list[list[Member]]:
    """The engines in groups that have no model in common: all candidates of a request are in one
    group. Engines whose models are unknown form one group."""
    by_models: dict[frozenset[str] | None, list[Member]] = {}
    for member in members:
        by_models.setdefault(member.models, []).append(member)
    linked: dict[str, str] = {}
    """For each model another model of the same group; one model in each group has itself."""
    for models in by_models:
        for model in models or ():
            linked[_last(model, linked)] = _last(next(iter(models or ())), linked)
    groups: dict[str | frozenset[str] | None, list[Member]] = {}
    for models, group in by_models.items():
        groups.setdefault(_last(next(iter(models)), linked) if models else models, []).extend(group)
    return list(groups.values())


def _last(model: str, linked: dict[str, str]) -> str:
    """The model at the end of a chain of links. Shortens the chain on the way (path splitting, as
    in union-find)."""
    after = linked.setdefault(model, model)
    while after != model:
        linked[model] = linked[after]
        model, after = after, linked[after]
    return model


def adapters(members: Iterable[Member]) -> frozenset[str]:
    """The models that are LoRA adapters of others."""
    listed = (card for member in members for card in member.cards or ())
    return frozenset(card["id"] for card in listed if card.get("parent") is not None)


def base_models(members: Iterable[Member]) -> frozenset[str]:
    """The distinct base models; aliases and adapters of a model do not count."""
    return frozenset(
        str(card.get("root") or card["id"])
        for member in members
        for card in member.cards or ()
        if card.get("parent") is None
    )
