"""One seed, many independent sequences: each use of chance has a name.

Derived as AIPerf derives its own (reference 2.5), so that another option's draws do not shift
these.
"""

import hashlib

import numpy as np


def child(seed: int, name: str) -> int:
    """A separate seed for `name`: 64 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")


def numbers(seed: int, name: str) -> np.random.Generator:
    """For arrays of numbers. The same for the same version of numpy only."""
    return np.random.Generator(np.random.PCG64(child(seed, name)))


def draw(seed: int, name: str) -> float:
    """One number in [0, 1), the same in every process and order."""
    return (child(seed, name) >> 11) / (1 << 53)
