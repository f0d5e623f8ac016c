"""Descriptions of all settings, and settings that may change at run time."""

import re

import pytest
from pydantic import ValidationError

from router.settings import Settings, is_reloadable, load
from tests.settings.samples import D0


def test_every_setting_has_a_description_in_sentences():
    for name, field in Settings.model_fields.items():
        assert re.fullmatch(r".+\.", field.description or ""), name


def test_every_duration_names_its_unit():
    for name, field in Settings.model_fields.items():
        is_share = name.endswith(("_sample", "_impact")) or name == "retry_budget"
        if isinstance(field.default, float) and not is_share:
            assert re.search(r"\bseconds\b", field.description or "", re.IGNORECASE), name


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
