"""A file of API keys, read again when it changes, and what is taken with each of them."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from router.core.limits.api_keys import ApiKeys
from router.core.limits.key_limits import NO_LIMITS, KeyLimits, KeyUsage
from router.core.limits.key_usage_table import KeyRows
from router.net.watched_files import WatchedFiles

__all__ = ["KeyFile"]

log = logging.getLogger(__name__)


class KeyFile:
    """The keys of a file. Raises OSError or ValueError if it cannot be read now; later a file that
    is wrong is logged, and the keys that were read last remain. Where there are several processes,
    what is taken is counted in `rows`, which they share. `on_limits` gets the limits by name,
    whenever they were read."""

    def __init__(
        self,
        path: Path,
        rows: KeyRows | None = None,
        on_limits: Callable[[Mapping[str, KeyLimits]], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.usages: dict[str, KeyUsage] = {}
        """By name, of keys that have limits."""
        self._rows = rows
        self._on_limits = on_limits
        self._file = WatchedFiles(path)
        self._is_away = False
        """Whether it could not be read when it was last tried."""
        self.keys = self._read()

    def refresh(self) -> None:
        """Read it again if it has changed."""
        self._share_rest()
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
        limited = {name: limits for name, limits in keys.limits.items() if limits != NO_LIMITS}
        rows = self._rows
        cells = {} if rows is None else rows.find(limited)
        usages = {}
        for name, limits in limited.items():
            row, usage = cells.get(name), self.usages.get(name)
            holds = limits if rows is None or row is not None else limits.share(rows.processes)
            if usage is None:
                usage = KeyUsage(holds, row)
            elif row is not None and not usage.is_shared:
                usage.share(holds, row)
            else:
                usage.configure(holds)
            usages[name] = usage
        self.usages = usages
        self._on_limits(keys.limits)
        return keys

    def _share_rest(self) -> None:
        """Share what the leader has given a row since the file was read: until then, this process
        allows its share."""
        if self._rows is None:
            return
        rest = [name for name, usage in self.usages.items() if not usage.is_shared]
        for name, row in self._rows.find(rest).items() if rest else ():
            self.usages[name].share(self.keys.limits[name], row)
