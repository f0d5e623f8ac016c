"""The configuration of a running router. It is read again at SIGHUP and when its file changes, and
is applied either completely or not at all."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from router.net.watched_files import WatchedFiles
from router.settings import Settings, SettingsError, SettingsSource, flag, is_reloadable

__all__ = ["Configuration", "Reloads", "changed"]

log = logging.getLogger(__name__)

Reloads: TypeAlias = "list[int] | memoryview[int]"
"""Number of reloads that were applied and rejected, and whether the last one was applied (0 or
1)."""

APPLIED, REJECTED, IS_LAST_GOOD = 0, 1, 2
"""Indices of these numbers."""

RETRY_SECONDS = 10.0
"""Seconds between attempts to read a rejected configuration: a file that it refers to may appear
later, without a change of the configuration file."""


def changed(old: Settings, new: Settings) -> list[str]:
    """Names of the settings that differ."""
    return [name for name in type(old).model_fields if getattr(old, name) != getattr(new, name)]


class Configuration:
    """`settings` are the current ones; they are read again from `source`. `apply` applies them to
    the parts of the router, and raises OSError or ValueError if that fails. The results are counted
    in `reloads`. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        settings: Settings,
        source: SettingsSource,
        apply: Callable[[Settings], None],
        reloads: Reloads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._source = source
        self._files = WatchedFiles(*(() if source.file is None else (source.file,)))
        self._apply = apply
        self._reloads = reloads
        reloads[IS_LAST_GOOD] = 1
        self._clock = clock
        self._retry_at = math.inf
        self._reason = ""
        """Why the last reload was rejected; empty if it was not."""

    def look(self) -> None:
        """Reload if the file has changed, and at intervals while it is rejected. A reason is logged
        once."""
        if self._files.have_changed() or self._clock() >= self._retry_at:
            self._try()

    def reload(self) -> None:
        """Read the settings, because an operator asks to, and apply them if they are valid."""
        self._reason = ""
        self._try()

    def _try(self) -> None:
        try:
            found = self._source.read()
            names = changed(self.settings, found)
            _refuse_restart(names)
            self._apply(found)
        except (SettingsError, OSError, ValueError) as error:
            self._reject(str(error))
            return
        self._retry_at, self._reason = math.inf, ""
        self.settings = found
        self._reloads[APPLIED] += 1
        self._reloads[IS_LAST_GOOD] = 1
        log.info("configuration applied", extra={"fields": {"changed": _flags(names) or "nothing"}})

    def _reject(self, reason: str) -> None:
        self._retry_at = self._clock() + RETRY_SECONDS
        if reason == self._reason:  # it has been logged already
            return
        self._reason = reason
        self._reloads[REJECTED] += 1
        self._reloads[IS_LAST_GOOD] = 0
        log.error("configuration rejected, the old one remains: %s", reason)


def _refuse_restart(names: Iterable[str]) -> None:
    """Raise SettingsError if any of these settings cannot change while the router runs."""
    fixed = [name for name in names if not is_reloadable(name)]
    if fixed:
        raise SettingsError(f"{_flags(fixed)}: needs a restart; change the others without it")


def _flags(names: Iterable[str]) -> str:
    return ", ".join(map(flag, names))
