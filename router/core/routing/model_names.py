"""Which model a request asks for when it names an alias (`core/model_alias.py`)."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from router.core.fleet.fleet import Fleet
from router.core.model_alias import ModelAlias
from router.core.values import DECODE

__all__ = ["ModelNames"]


class ModelNames:
    """The aliases in force. `aliases` by name."""

    def __init__(self, aliases: Iterable[ModelAlias], fleet: Fleet) -> None:
        self.aliases: dict[str, ModelAlias] = {each.name: each for each in aliases}
        self._fleet = fleet
        self._debts: dict[str, list[int]] = {
            each.name: [0] * len(each.models) for each in self.aliases.values()
        }
        """By how much each model of an alias is behind its share."""

    def problems(self, *, is_fixed: bool) -> Iterator[str]:
        """Conflicts with the models of the engines. `is_fixed`: no other engines will join, so that
        their models are known once each has listed its own."""
        known = self._fleet.models.known()
        is_complete = is_fixed and all(m.models is not None for m in self._fleet.pool(DECODE))
        for alias in self.aliases.values():
            if alias.name in known:
                yield f"{alias.name} is the name of a model that engines serve"
            for target in alias.targets:
                if is_complete and known and target not in known:
                    yield f"{alias.name}: no engine serves {target}"

    def model(self, name: str, fields: Mapping[bytes, bytes]) -> str:
        """The model for a request for this alias, with these headers."""
        alias = self.aliases[name]
        value = None if alias.by is None else fields.get(alias.by.encode())
        chosen = self._by_turns(alias) if value is None else by_value(alias, value)
        if alias.otherwise is None or self._is_up(chosen):
            return chosen
        return alias.otherwise

    def cards(self) -> dict[str, dict[str, Any]]:
        """The model cards that clients see, by id: those of the engines, and for each alias that of
        its first model with one."""
        cards = self._fleet.models.cards()
        named: dict[str, dict[str, Any]] = {}
        for name, alias in self.aliases.items():
            card = next((cards[each] for each in alias.targets if each in cards), None)
            if card is not None:
                named[name] = {**card, "id": name}
        return cards | named

    def _by_turns(self, alias: ModelAlias) -> str:
        """Smooth weighted round-robin, as in nginx: exact in each period of the sum of weights."""
        debts = self._debts[alias.name]
        total = chosen = 0
        for place, (_, weight) in enumerate(alias.models):
            total += weight
            debts[place] += weight
            if debts[place] > debts[chosen]:
                chosen = place
        debts[chosen] -= total
        return alias.models[chosen][0]

    def _is_up(self, model: str) -> bool:
        members = self._fleet.pool(DECODE)
        return any(m.health.may_serve and m.models and model in m.models for m in members)


def by_value(alias: ModelAlias, value: bytes) -> str:
    """The model for all requests with this value of the header, in all processes. If weights
    change, values move only as far as the borders between the shares."""
    digest = blake2b(value, digest_size=8, key=alias.name.encode()[:64]).digest()
    place = int.from_bytes(digest) * sum(weight for _, weight in alias.models) >> 64
    for model, weight in alias.models[:-1]:
        place -= weight
        if place < 0:
            return model
    return alias.models[-1][0]
