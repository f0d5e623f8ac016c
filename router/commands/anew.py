"""Begins the process anew, as itself: with a hash seed that Python reads when it starts, and
without secrets in its title."""

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from router.settings import ENV_PREFIX, Settings, flag

__all__ = ["begin_anew", "hide_secrets", "keep_pipe"]

VARIABLES: Final[Mapping[str, str]] = {
    flag(name): ENV_PREFIX + name.upper()
    for name, field in Settings.model_fields.items()
    if not field.repr
}
"""The environment variables of the settings that are secret, by their flags."""


STDIN: Final = 0

_DESCRIPTOR: Final = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/(\d+)")


def keep_pipe(path: Path) -> None:
    """What comes by a pipe that the process was begun with (`--config /dev/stdin`, or a shell's
    `<(...)`) can be read again: by the process that is begun anew, and when settings are reloaded.
    A copy in memory takes the pipe's place; whatever else the path names stays as it is."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return
    number = int(found[1] or STDIN)
    try:
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return
    except OSError:  # whoever reads it says so
        return
    with os.fdopen(os.memfd_create("pd-router"), "wb") as copy:
        copy.write(path.read_bytes())
        copy.flush()
        os.dup2(copy.fileno(), number)


def begin_anew(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Begin anew with these arguments, and these variables besides the environment's. Returns where
    the process runs within another program, which it cannot start anew."""
    own = len(sys.orig_argv) - len(sys.argv[1:])
    if sys.orig_argv[own:] != sys.argv[1:]:
        return
    environment: Mapping[str, str] = os.environ  # noqa: TID251 - all of it is passed on
    command = [sys.executable, *sys.orig_argv[1:own], *arguments]
    os.execve(sys.executable, command, {**environment, **variables})


def hide_secrets() -> None:
    """Begin anew with the secrets of flags in the environment instead, which the own user alone can
    read: every user can read the title, and workers have their parent's. Returns where there are
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
        begin_anew(arguments, secrets)
