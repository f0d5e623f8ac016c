"""`pd-router config check FILE`: lists all errors in a configuration, without serving."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router.commands.flags import one_line
from router.settings import Settings, SettingsError, examine
from router.web.app import Router
from router.web.discovery import sources_of

__all__ = ["run"]

WRONG = 2
"""Exit status for an invalid configuration, also of `serve`."""


def run(flags: Mapping[str, Any], config: Path) -> int:
    """Print a line for each error that `serve` would report with these flags and this file. Returns
    the exit status; 0 without errors."""
    settings, problems = examine(flags, config)
    if settings is not None and not problems:
        problems = _not_installed(settings)
    for problem in problems:
        sys.stderr.write(f"{one_line(problem)}\n")
    count = len(problems)
    verdict = "all is well" if not count else "1 problem" if count == 1 else f"{count} problems"
    sys.stdout.write(f"{config}: {verdict}\n")
    return WRONG if problems else 0


def _not_installed(settings: Settings) -> list[str]:
    """Extras that the settings require and that are not installed."""
    try:
        sources_of(settings)
        Router(settings)
    except SettingsError as error:
        return [str(error)]
    return []
