"""Descriptions of all settings, and settings that may change at run time."""

import re

import pytest
from pydantic import ValidationError

from router.settings import Settings, is_reloadable, load
from tests.settings.samples import D0


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_description_in_sentences(name):
    text = Settings.model_fields[name].description
    assert text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.default, float)
        and not name.endswith(("_sample", "_impact"))
        and name != "retry_budget"
    ],
)
def test_every_duration_names_its_unit(name):
    assert re.search(r"\bseconds\b", Settings.model_fields[name].description or "", re.IGNORECASE)


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        setattr(load(D0), "port", 1)  # noqa: B010 - mypy knows better than to allow it


def test_settings_print_without_their_key():
    assert "sk-secret" not in repr(load({**D0, "engine_api_key": "sk-secret"}))
    assert "sk-secret" not in str(load({**D0, "engine_api_key": "sk-secret"}))


def test_settings_used_at_startup_are_not_reloadable():
    fixed = {name for name in Settings.model_fields if not is_reloadable(name)}
    assert {"host", "port", "admin_port", "workers", "k8s_decode_selector", "dns_decode"} <= fixed
    assert not fixed & {"prefill", "decode", "routing_threshold", "api_key_file", "max_in_flight"}
