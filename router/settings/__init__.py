"""Every setting, once: its flag, environment variable, file key, default, unit and reason.

Order of precedence: command line, environment (`PD_ROUTER_*`), the file given by `--config`,
default. The tables in docs/settings.md are generated from the class. Nothing else reads the
environment.
"""

from router.settings.engine_values import Receiver
from router.settings.fields import ENV_PREFIX, Settings, flag, is_advanced, is_reloadable
from router.settings.reading import (
    SettingsError,
    SettingsSource,
    admin_key_file,
    admin_url,
    examine,
    load,
    suggestion,
)

__all__ = [
    "ENV_PREFIX",
    "Receiver",
    "Settings",
    "SettingsError",
    "SettingsSource",
    "admin_key_file",
    "admin_url",
    "examine",
    "flag",
    "is_advanced",
    "is_reloadable",
    "load",
    "suggestion",
]
