"""What follows from the models and the versions of engines.

Which models are listed, which engines can exchange KV caches (during a rolling upgrade not all
can), and whether a forced tool's prompt can be prefilled remotely.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from router.core.fleet.pool import Pool
from router.core.judge.member import Kind, Member
from router.core.values import Endpoint, Role

__all__ = [
    "FORCED_TOOLS_FROM",
    "UNLISTED",
    "Models",
    "are_same",
    "incompatible",
    "is_mixed",
    "release",
    "some_precede",
]

UNLISTED: Final = "\0"
"""Stands for all model names that no decode engine has listed."""

VOLATILE: Final = ("created", "permission")
"""Members of a card that differ in each response of vLLM: time and random ids."""

FORCED_TOOLS_FROM: Final = (0, 19)
"""The first vLLM that can be asked for one token of a forced tool's call. Earlier ones parse it as
a whole call and answer 400 or 500 (vllm#38911), after having computed the prompt."""

PROMPT_IDS_FROM: Final = (0, 32)
"""The first vLLM that takes a chat's prompt as token ids (vllm#48145). Earlier ones ignore them."""


class Models:
    """The models of a fleet's engines, and what their versions allow."""

    def __init__(self, pools: Mapping[Role, Pool]) -> None:
        self._pools = pools
        self.is_mixed = False
        """Whether engines in use differ in version, in the root of a served model, or in the zone
        where that matters. Then prefill and decode engines are paired (`incompatible`)."""
        self.refuses_forced_tools = False
        """Whether a prefill engine in use is known to refuse requests that force a tool call."""
        self.takes_prompt_ids = True
        """Whether no decode engine in use is known to ignore the token ids of a chat."""
        self.all_take_prompt_ids = False
        """Whether all decode engines in use are known to take them."""
        self.has_adapters = False
        """Whether a decode engine has listed a LoRA adapter."""
        self.incompatibles: dict[tuple[Role, Kind | None, str | None], frozenset[Endpoint]] = {}
        """Cache of engines that cannot be paired, by role, partner's kind (None: any partner) and
        known model."""
        self._known: frozenset[str] | None = None
        self._adapters: dict[str, str] | None = None

    def changed(self) -> None:
        """Update what depends on the models that engines serve."""
        self._known = self._adapters = None
        self.has_adapters = bool(self.adapters())
        for pool in self._pools.values():
            pool.judge.models_changed()
        self.versions_changed()

    def versions_changed(self) -> None:
        """Determine whether the engines in use are of one kind, and what their versions allow."""
        self.is_mixed = is_mixed(one for pool in self._pools.values() for one in pool.undrained)
        self.refuses_forced_tools = some_precede(
            FORCED_TOOLS_FROM, self._pools[Role.PREFILL].undrained
        )
        decode = self._pools[Role.DECODE].undrained
        self.takes_prompt_ids = not some_precede(PROMPT_IDS_FROM, decode)
        self.all_take_prompt_ids = self.takes_prompt_ids and are_vllm(decode)

    def cards(self) -> dict[str, dict[str, Any]]:
        """The model cards of the decode engines that may get requests, by id; of duplicates the
        first."""
        found: dict[str, dict[str, Any]] = {}
        for member in self._pools[Role.DECODE].undrained:
            if member.health.may_serve:
                for card in member.cards or ():
                    found.setdefault(card["id"], card)
        return found

    def known(self) -> frozenset[str]:
        """All models that any decode engine has listed, whether it is usable now or not."""
        if self._known is None:
            models = (member.models or () for member in self._pools[Role.DECODE].members)
            self._known = frozenset().union(*models)
        return self._known

    def listed(self, model: str | None) -> str | None:
        """The model, or `UNLISTED` if no decode engine has listed it: the same engines may take any
        of those."""
        return model if model is None or model in self.known() else UNLISTED

    def adapters(self) -> dict[str, str]:
        """The base model of each LoRA adapter."""
        if self._adapters is None:
            self._adapters = {
                card["id"]: str(card["parent"])
                for card in self._listed_cards()
                if card.get("parent") is not None
            }
        return self._adapters

    def base(self) -> frozenset[str]:
        """The distinct base models; aliases and adapters of a model do not count."""
        return frozenset(
            str(card.get("root") or card["id"])
            for card in self._listed_cards()
            if card.get("parent") is None
        )

    def base_of(self, model: str | None) -> str | None:
        """The base model of an adapter, or the model itself. For a request without a model the
        first that is listed."""
        if model is not None:
            return self.adapters().get(model, model)
        cards = self._listed_cards()
        return next((card["id"] for card in cards if card.get("parent") is None), None)

    def _listed_cards(self) -> Iterable[dict[str, Any]]:
        members = self._pools[Role.DECODE].members
        return (card for member in members for card in member.cards or ())

    def incompatible(
        self, role: Role, partner: Member | None, model: str | None
    ) -> frozenset[Endpoint]:
        """The engines of a role that cannot exchange KV caches of a model with `partner`. Without a
        partner: those that cannot exchange with any decode engine that may get requests."""
        kind = None if partner is None else partner.kind(model)
        found = self.incompatibles.get((role, kind, model))
        if found is None:
            kinds = self._decode_kinds(model) if kind is None else {kind}
            found = incompatible(self._pools[role].undrained, kinds, model)
            if model is None or model in self.known():  # clients can send any model name
                self.incompatibles[role, kind, model] = found
        return found

    def _decode_kinds(self, model: str | None) -> set[Kind]:
        """The kinds of the decode engines that may get new requests."""
        members = self._pools[Role.DECODE].undrained
        return {member.kind(model) for member in members if member.health.may_serve}


def are_same(some: tuple[dict[str, Any], ...], others: tuple[dict[str, Any], ...] | None) -> bool:
    """Whether two responses of an engine list the same models."""
    if others is None or len(some) != len(others):
        return False
    pairs = zip(some, others, strict=True)
    return all(
        {**one, **dict.fromkeys(VOLATILE)} == {**other, **dict.fromkeys(VOLATILE)}
        for one, other in pairs
    )


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a vLLM version; (0, 0) if there are none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def some_precede(first: tuple[int, int], members: Iterable[Member]) -> bool:
    """Whether an engine is known to be older than this release."""
    versions = {member.version for member in members if member.version is not None}
    return any(release(version) < first for version in versions)


def are_vllm(members: Iterable[Member]) -> bool:
    """Whether all engines that have listed their models report a version, and there is one.
    TensorRT-LLM reports one too; as vLLM, it names itself as the owner of its models."""
    seen = [each for each in members if each.version is not None or each.models is not None]
    owners = {card.get("owned_by", "vllm") for each in seen for card in each.cards or ()}
    return bool(seen) and all(each.version is not None for each in seen) and owners <= {"vllm"}


def is_mixed(members: Iterable[Member]) -> bool:
    """Whether engines differ in version, in the root of a served model, or in the zone where that
    matters."""
    versions: set[str] = set()
    zones: set[str] = set()
    roots: set[tuple[str, str]] = set()
    for member in members:
        if member.version is not None:
            versions.add(member.version)
        if member.only_zone is not None:
            zones.add(member.only_zone)
        for card in member.cards or ():
            if isinstance(card.get("root"), str):
                roots.add((card["id"], card["root"]))
    if len(zones) > 1:
        return True
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
    """Whether both have the same vLLM version, root for the model and zone. Unknown values match
    any."""
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
