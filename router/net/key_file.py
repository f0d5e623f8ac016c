"""A file of API keys, read again when it changes, and what is taken with each of them."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from router.core.api_keys import ApiKeys
from router.core.key_limits import NO_LIMITS, KeyLimits, KeyUsage
from router.net.watched_files import WatchedFiles

__all__ = ["KeyFile"]

log = logging.getLogger(__name__)


class KeyFile:
    """The keys of a file. Raises OSError or ValueError if it cannot be read now; later a file that
    is wrong is logged, and the keys that were read last remain. Each of `processes` allows its
    share of a key's limits. `on_limits` gets the limits by name, whenever they were read."""

    def __init__(
        self,
        path: Path,
        processes: int = 1,
        on_limits: Callable[[Mapping[str, KeyLimits]], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.usages: dict[str, KeyUsage] = {}
        """By name, of keys that have limits."""
        self._processes = processes
        self._on_limits = on_limits
        self._file = WatchedFiles(path)
        self._is_away = False
        """Whether it could not be read when it was last tried."""
        self.keys = self._read()

    def refresh(self) -> None:
        """Read it again if it has changed."""
        if not self._file.have_changed() and not self._is_away:
            return
        try:
            self.keys = self._read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            is_away = isinstance(error, OSError)
            if not (is_away and self._is_away):  # once for each version, or while it is away
                log.error("API keys: %s: %s; the old ones remain", self.path, reason)  # noqa: TRY400
            self._is_away = is_away
        else:
            self._is_away = False
            names = ", ".join(sorted(self.keys.names))
            log.info("API keys: %s was read again: %s", self.path, names)

    def _read(self) -> ApiKeys:
        keys = ApiKeys(self.path.read_text(encoding="utf-8"))
        usages = {}
        for name, limits in keys.limits.items():
            if limits == NO_LIMITS:
                continue
            share = limits.share(self._processes)
            usage = usages[name] = self.usages.get(name) or KeyUsage(share)
            usage.configure(share)
        self.usages = usages
        self._on_limits(keys.limits)
        return keys
