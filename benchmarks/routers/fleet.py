"""The engines that a router is put in front of."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fleet:
    """The engines' addresses by role."""

    decode: Sequence[str]
    prefill: Sequence[str] = ()
