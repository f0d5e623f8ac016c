"""Which values are taken, and under which name others are refused."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.settings import ENV_PREFIX, Settings, SettingsError, flag, load, values
from tests.settings.samples import D0, LMCACHE, ONE_RECEIVER, QUICK, WRONG, refusal, refusal_if_any


def test_every_setting_has_a_wrong_value():
    assert set(WRONG) == set(Settings.model_fields)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_under_the_name_by_which_it_was_given(name, monkeypatch, write):
    flags: dict[str, Any] = {**D0, name: WRONG[name]}
    assert refusal(flags).startswith(f"{flag(name)}: ")
    del flags[name]
    config = write(yaml.safe_dump({name: WRONG[name]}))
    assert refusal(flags, config).startswith(f"--config {config}: {name}: ")
    if WRONG[name]:
        monkeypatch.setenv(ENV_PREFIX + name.upper(), WRONG[name])
        assert refusal(flags).startswith(f"{ENV_PREFIX}{name.upper()}: ")


NUMBERS = [
    name for name, field in Settings.model_fields.items() if isinstance(field.default, int | float)
]


@pytest.mark.parametrize("name", [*NUMBERS, "decoder_init_port"])
def test_yes_is_no_number(name, write):
    line = refusal({**ONE_RECEIVER, "decoder_init_port": "1"} | {name: True})
    assert line == f"{flag(name)}: must be a number, not yes or no"
    config = write(f"{name}: yes")
    flags = {key: value for key, value in ONE_RECEIVER.items() if key != name}
    assert "must be a number" in refusal(flags, config)


def test_a_long_wrong_value_is_cut():
    assert len(refusal({**D0, "log_format": "x" * 10_000})) < 300


@QUICK
@given(name=st.sampled_from(sorted(Settings.model_fields)), text=st.text(max_size=30))
def test_any_text_is_taken_or_refused_under_its_flag(name, text):
    line = refusal_if_any({**D0, name: text})
    lmcache = "--decoder-registry" if name == "disagg_connector_type" else flag(name)
    assert line is None or flag(name) in line or lmcache in line


@QUICK
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    name=st.sampled_from(sorted(Settings.model_fields)),
)
def test_any_value_in_a_file_is_taken_or_refused(value, name, write):
    config = write(json.dumps({name: value}))
    line = refusal_if_any({key: item for key, item in D0.items() if key != name}, config)
    assert line is None or name in line or flag(name) in line


def test_numbers_in_a_file_may_be_numbers_or_lists_of_them(write):
    config = write(
        "port: 80\ndecoder_init_port: 1\ndecoder_alloc_port: [2]\ndecoder_host: r\n"
        "disagg_connector_type: lmcache"
    )
    settings = load(D0, config)
    assert (settings.port, settings.decoder_init_port) == (80, (1,))
    assert settings.decoder_alloc_port == (2,)


def test_a_list_may_be_repeated_comma_separated_or_both():
    wanted = ("http://d0", "http://d1", "http://d2")
    assert load({"decode": list(wanted)}).decode == wanted
    assert load({"decode": ["http://d0 , http://d1,", "http://d2"]}).decode == wanted
    assert load({"decode": " http://d0,,http://d1,http://d2"}).decode == wanted


@pytest.mark.parametrize("value", ["auto", 4096, "4096", "0"])
def test_a_threshold_is_a_number_or_auto(value):
    given = load({**D0, "routing_threshold": value}).routing_threshold
    assert given == ("auto" if value == "auto" else int(value))


@pytest.mark.parametrize("value", ["-1", "1.5", "1e3", "Auto", "", 1.5, -1])
def test_a_threshold_is_nothing_else(value):
    with pytest.raises(SettingsError, match="--routing-threshold: must be a number of tokens, 0"):
        load({**D0, "routing_threshold": value})


def test_the_same_unreadable_files_are_named_by_the_other_flags(tmp_path):
    path = tmp_path / "no"
    assert refusal({**D0, "engine_ca_file": str(path)}).endswith(
        f"cannot read {path}: No such file or directory"
    )
    assert refusal({**LMCACHE, "decoder_registry": f"@{path}"}).endswith(
        f"cannot read {path}: No such file or directory"
    )


def test_a_file_without_certificates_is_refused(write):
    path = write("not a certificate")
    line = refusal({**D0, "engine_ca_file": str(path)})
    assert line == f"--engine-ca-file: {path} holds no PEM certificates"


@pytest.mark.parametrize("key", ["sk secret", "sk-sécret", "sk-secret\x00", "", "  "])
def test_a_key_that_no_header_can_carry_is_refused_unquoted(key):
    line = refusal({**D0, "engine_api_key": key})
    assert line == "--engine-api-key: must be one word of visible ASCII characters"


@pytest.mark.parametrize("value", ["[sk-secret]", "{a: sk-secret}", "1234567"])
def test_a_key_of_the_wrong_kind_is_refused_unquoted(value, write):
    line = refusal(D0, write(f"engine_api_key: {value}"))
    assert "engine_api_key: " in line
    assert "secret" not in line
    assert "1234567" not in line


def test_a_keys_final_newline_is_no_part_of_it():
    assert load({**D0, "engine_api_key": "sk-1\n"}).engine_api_key == "sk-1"


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:7500", "tcp://*:1", "tcp://[::]:65535"])
def test_an_address_to_listen_on_for_notifications(address):
    assert load({**LMCACHE, "lmcache_notify_bind": address}).lmcache_notify_bind == address


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7500",
        "tcp://:7500",
        "tcp://a",
        "tcp://a:0",
        "tcp://a:65536",
        "udp://a:1",
        "tcp://a:٣",
    ],
)
def test_invalid_listen_addresses_are_refused(address):
    line = refusal({**LMCACHE, "lmcache_notify_bind": address})
    assert line.startswith("--lmcache-notify-bind: must be like tcp://0.0.0.0:7500")


def test_auto_counts_cores_once(monkeypatch):
    """A changed CPU limit is no change of the configuration."""
    before = load({**D0, "workers": "auto"}).workers
    monkeypatch.setattr(values, "cores", lambda: before + 1)
    assert load({**D0, "workers": "auto"}).workers == before
