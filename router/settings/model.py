"""The settings as the router uses them: checked, and frozen."""

from typing import Any, Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from router.settings.checks import check
from router.settings.fields import Fields

__all__ = ["Settings"]


class Settings(Fields):
    """The router's configuration, frozen once it is read."""

    @model_validator(mode="before")
    @classmethod
    def _events_where_configured(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Who names sources of KV-cache events wants them used."""
        if given.get("kv_events") is None or "prefix_cache" in given:
            return given
        return {**given, "prefix_cache": "events"}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check(self)
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only; `load` makes them of the flags, the environment and the file."""
        return (init_settings,)
