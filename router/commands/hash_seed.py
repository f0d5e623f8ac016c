"""Sets a common hash seed for all replicas of a router, so that they compute the same prefix keys.

The keys are Python's own hashes (`core/prefix/keys.py`), and Python reads its seed at startup. So
the process re-executes itself with a seed that is derived from the replicas' common key.
"""

import os
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from router.commands.reexec import re_execute
from router.settings import Settings

__all__ = ["share_hash_seed"]

VARIABLE: Final = "PYTHONHASHSEED"


def share_hash_seed(settings: Settings) -> None:
    """Re-execute with the replicas' seed. Returns if that has been done or is not needed."""
    environment: Mapping[str, str] = os.environ  # noqa: TID251 - Python's own variable
    if settings.peer_key is None or not settings.shares_prompts or VARIABLE in environment:
        return
    re_execute(sys.argv[1:], {VARIABLE: str(_seed(settings.peer_key))})


def _seed(key: str) -> int:
    """The seed, which is as secret as the key. Python takes 32 bits, and 0 would turn hash
    randomization off."""
    digest = blake2b(key.encode(), digest_size=4, person=b"pd-router hashes").digest()
    return max(1, int.from_bytes(digest))
