"""A further name of a model, or of several by weight (`--model-aliases`).

Its text: `NAME=MODEL[*WEIGHT] [MODEL*WEIGHT ...] [by HEADER] [else MODEL]`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["ModelAlias", "check_aliases", "parse"]

MAX_WEIGHT: Final = 10_000
"""Largest weight: shares of a hundredth of a percent."""

_TARGET: Final = re.compile(r"(.+?)(?:\*(\d{1,9}))?")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class ModelAlias:
    """`models`: the models and their weights. `by`: the header whose value determines the model;
    None: requests take turns. `otherwise`: the model while no engine of the chosen one is up; None:
    the request fails."""

    name: str
    models: tuple[tuple[str, int], ...]
    by: str | None = None
    otherwise: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """All models that it may stand for."""
        names = tuple(model for model, _ in self.models)
        return names if self.otherwise is None else (*names, self.otherwise)


def parse(text: str) -> ModelAlias:
    """An alias from its text. Raises ValueError."""
    name, equals, rest = text.partition("=")
    name, words = name.strip(), rest.split()
    if not equals or not name or not words:
        raise ValueError(f"must be like NAME=MODEL, got {text!r}")
    options: dict[str, str] = {}
    for option in ("else", "by"):  # from the end on
        if len(words) > 2 and words[-2] == option:
            options[option] = words.pop()
            words.pop()
    if {"by", "else"} & set(words):
        raise ValueError(f"{name}: models are followed by `by HEADER`, then `else MODEL`")
    by = options.get("by")
    if by is not None and _HEADER.fullmatch(by) is None:
        raise ValueError(f"{name}: {by!r} is no header's name")
    models = tuple(_weighted(name, word) for word in words)
    if len({model for model, _ in models}) < len(models):
        raise ValueError(f"{name}: a model is given twice")
    return ModelAlias(name, models, None if by is None else by.lower(), options.get("else"))


def _weighted(name: str, word: str) -> tuple[str, int]:
    found = _TARGET.fullmatch(word)
    weight = 1 if found is None or found[2] is None else int(found[2])
    if found is None or "*" in found[1] or not 1 <= weight <= MAX_WEIGHT:
        raise ValueError(f"{name}: {word!r} is no MODEL*WEIGHT with a weight of 1 to {MAX_WEIGHT}")
    return found[1], weight


def check_aliases(aliases: Iterable[ModelAlias]) -> None:
    """Raise ValueError if names are repeated, or if one stands for another."""
    names: set[str] = set()
    targets: dict[str, str] = {}
    for alias in aliases:
        if alias.name in names:
            raise ValueError(f"{alias.name} is given twice")
        names.add(alias.name)
        targets.update(dict.fromkeys(alias.targets, alias.name))
    for target in sorted(names & set(targets)):
        raise ValueError(f"{targets[target]}: {target} is an alias itself, not a model")
