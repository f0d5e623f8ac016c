"""Re-executes the process: without secrets on its command line, and with a hash seed, which Python
reads only at startup."""

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from router.settings import ENV_PREFIX, Settings, flag

__all__ = ["hide_secrets", "keep_pipe", "re_execute", "share_hash_seed"]

VARIABLES: Final[Mapping[str, str]] = {
    flag(name): ENV_PREFIX + name.upper()
    for name, field in Settings.model_fields.items()
    if not field.repr
}
"""Environment variables of the secret settings, by their flags."""


STDIN: Final = 0

_DESCRIPTOR: Final = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/(\d+)")


def keep_pipe(path: Path) -> None:
    """Make an inherited pipe (`--config /dev/stdin`, or a shell's `<(...)`) readable repeatedly:
    after `re_execute`, and when settings are reloaded. It is replaced by a copy in memory. No
    effect if the path is not a pipe."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return
    number = int(found[1] or STDIN)
    try:
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return
    except OSError:  # reported when the file is read
        return
    with os.fdopen(os.memfd_create("pd-router"), "wb") as copy:
        copy.write(path.read_bytes())
        copy.flush()
        os.dup2(copy.fileno(), number)


def re_execute(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Replace the process by itself, with these arguments and additional environment variables.
    Returns if the process runs within another program, which it cannot re-execute."""
    own = len(sys.orig_argv) - len(sys.argv[1:])
    if sys.orig_argv[own:] != sys.argv[1:]:
        return
    environment: Mapping[str, str] = os.environ  # noqa: TID251 - all of it is passed on
    command = [sys.executable, *sys.orig_argv[1:own], *arguments]
    os.execve(sys.executable, command, {**environment, **variables})


def hide_secrets() -> None:
    """Re-execute with secrets moved from flags to the environment, which only the same user can
    read. Command lines, which workers inherit, can be read by every user. Returns if there are
    none."""
    arguments: list[str] = []
    secrets: dict[str, str] = {}
    given = iter(sys.argv[1:])
    for argument in given:
        name, is_joined, value = argument.partition("=")
        if name in VARIABLES:
            secrets[VARIABLES[name]] = value if is_joined else next(given, "")
        else:
            arguments.append(argument)
    if secrets:
        re_execute(arguments, secrets)


HASH_SEED: Final = "PYTHONHASHSEED"


def share_hash_seed(settings: Settings) -> None:
    """Re-execute with the replicas' common hash seed, which is derived from their key. Returns if
    that has been done or is not needed.

    Replicas that share prompts must compute the same prefix keys, which are Python's own hashes
    (`core/prefix/keys.py`).
    """
    environment: Mapping[str, str] = os.environ  # noqa: TID251 - Python's own variable
    if settings.peer_key is None or not settings.shares_prompts or HASH_SEED in environment:
        return
    re_execute(sys.argv[1:], {HASH_SEED: str(_seed(settings.peer_key))})


def _seed(key: str) -> int:
    """The seed, which is as secret as the key. Python takes 32 bits, and 0 would turn hash
    randomization off."""
    digest = blake2b(key.encode(), digest_size=4, person=b"pd-router hashes").digest()
    return max(1, int.from_bytes(digest))
