"""Every setting, once: its flag, environment variable, file key, default, unit and reason.

Order of precedence: command line, environment (`PD_ROUTER_*`), the file given by `--config`,
default. The table in docs/settings.md is generated from the class. Nothing else reads the
environment.
"""

from router.settings.engine_values import Receiver
from router.settings.fields import is_reloadable
from router.settings.model import Settings
from router.settings.names import ENV_PREFIX, admin_key_file, admin_url, flag, suggestion
from router.settings.reading import SettingsError, examine, load, sources

__all__ = [
    "ENV_PREFIX",
    "Receiver",
    "Settings",
    "SettingsError",
    "admin_key_file",
    "admin_url",
    "examine",
    "flag",
    "is_reloadable",
    "load",
    "sources",
    "suggestion",
]
