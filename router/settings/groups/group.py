"""What all groups of settings share."""

from typing import Final

from pydantic import JsonValue
from pydantic_settings import BaseSettings, SettingsConfigDict

from router.settings.names import ENV_PREFIX

__all__ = ["LIVE", "Group"]

LIVE: Final[dict[str, JsonValue]] = {"reloadable": True}
"""Marks a setting that takes effect while the router runs; any other one needs a restart."""


class Group(BaseSettings):
    """Some settings: one field each, with its default, unit and reason."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )
