"""Sources of values: flags, the environment, a file; and the messages for mistakes."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.settings import ENV_PREFIX, Settings, SettingsSource, admin_url, examine, load
from tests.settings.samples import (
    D0,
    LMCACHE,
    QUICK,
    REGISTRY,
    SAMPLES,
    WRONG,
    refusal,
    refusal_if_any,
)


def test_every_setting_has_a_sample():
    assert set(SAMPLES) == set(Settings.model_fields)


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_every_setting_can_be_given_by_every_source(source, write):
    for name, (text, value, others) in SAMPLES.items():
        flags = {key: other for key, other in others.items() if key != name}
        config = None
        with pytest.MonkeyPatch.context() as patch:
            match source:
                case "flag":
                    flags[name] = text
                case "environment":
                    patch.setenv(ENV_PREFIX + name.upper(), text)
                case "file":
                    config = write(yaml.safe_dump({name: text}))
            assert getattr(load(flags, config), name) == value, name


@QUICK
@given(
    given_by=st.fixed_dictionaries(
        {},
        optional={source: st.integers(0, 10**6) for source in ("flag", "environment", "file")},
    )
)
def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(given_by, write):
    with pytest.MonkeyPatch.context() as patch:
        if "environment" in given_by:
            patch.setenv("PD_ROUTER_ROUTING_THRESHOLD", str(given_by["environment"]))
        content = {"routing_threshold": given_by["file"]} if "file" in given_by else {}
        flags = {"routing_threshold": str(given_by["flag"])} if "flag" in given_by else {}
        settings = load({**D0, **flags}, write(yaml.safe_dump(content)))
    order = [given_by[source] for source in ("flag", "environment", "file") if source in given_by]
    assert settings.routing_threshold == (order[0] if order else "auto")


def test_a_list_is_replaced_by_a_higher_source_never_merged(monkeypatch, write):
    monkeypatch.setenv("PD_ROUTER_DECODE", "http://d1,http://d2")
    config = write("decode: [http://d3]\nprefill: [http://p0]")
    assert load({}, config).decode == ("http://d1", "http://d2")
    assert load({"decode": ["http://d4"]}, config).decode == ("http://d4",)
    assert load({"prefill": [""]}, config).prefill == ()


def test_a_registry_of_the_file_is_replaced_by_a_higher_source_never_merged(monkeypatch, write):
    content = {"http://d0": {**REGISTRY, "receiver_host": "old"}, "http://d1": REGISTRY}
    config = write(yaml.safe_dump({**LMCACHE, "decoder_registry": content}))
    monkeypatch.setenv("PD_ROUTER_DECODER_REGISTRY", json.dumps({"http://d0": REGISTRY}))
    registry = load({}, config).decoder_registry
    assert registry is not None
    assert set(registry) == {"http://d0"}
    assert registry["http://d0"].receiver_host == "r"


def test_an_empty_environment_variable_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("PD_ROUTER_PORT", "")
    assert load(D0).port == 8000


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_is_fine(content, write):
    assert load(D0, write(content)) == load(D0)


def test_a_byte_order_mark_is_no_part_of_the_file(write):
    assert load({}, write(b"\xef\xbb\xbfdecode: http://d0")).decode == ("http://d0",)


def test_only_load_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PD_ROUTER_PORT", "1234")
    assert load(D0).port == 1234
    assert Settings(decode=("http://d0",)).port == Settings.model_fields["port"].default


def test_sources_of_settings_are_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert str(SettingsSource({})) == "defaults"
    monkeypatch.setenv("PD_ROUTER_DECODE", "http://d0")
    source = SettingsSource({"port": 1}, tmp_path / "r.yaml")
    assert str(source) == f"flags, environment, {tmp_path}/r.yaml"
    assert str(SettingsSource({})) == "environment"


def test_all_problems_are_reported_at_once(monkeypatch, write):
    config = write("decode: d0\nrouting_treshold: 1\nport: 70000\nengine_api_key: two words")
    monkeypatch.setenv("PD_ROUTER_PREFIL", "x")
    settings, problems = examine({"queue_timeout": "0"}, config)
    assert settings is None
    assert [problem.split(" ", 3)[:3] for problem in problems[:2]] == [
        ["PD_ROUTER_PREFIL:", "no", "such"],
        ["--config", f"{config}:", "routing_treshold:"],
    ]
    named = {problem.removeprefix(f"--config {config}: ").split(":")[0] for problem in problems[2:]}
    assert named == {"decode", "port", "engine_api_key", "--queue-timeout"}
    assert "two words" not in str(problems)


def test_conflicting_settings_are_reported_at_once():
    flags = {"dns_prefill": "x:1", "admin_host": "::1", "kv_events": "{}", "decoder_host": "r"}
    flags["prefix_cache"] = "history"
    _, problems = examine(flags)
    assert problems == [
        "--decode: at least one decode engine is needed",
        "--admin-host: needs --admin-port",
        "--kv-events: needs --prefix-cache events",
        "--decoder-host: needs --disagg-connector-type lmcache",
    ]
    assert refusal(flags) == problems[0]


@given(
    flags=st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from([text, WRONG[name]]) for name, (text, *_) in SAMPLES.items()
        },
    )
)
@QUICK
def test_settings_exist_exactly_without_problems(flags):
    settings, problems = examine(flags)
    assert (settings is None) == bool(problems)
    assert refusal_if_any(flags) == (problems[0] if problems else None)


@QUICK
@given(content=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_file_is_taken_or_refused(content, write):
    line = refusal_if_any(D0, write(content))
    assert line is None or "--config" in line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prefill: {a: b}", "prefill: must be one value or a list, got {'a': 'b'}"),
        ("decoder_registry: [a]", "decoder_registry: must be a mapping, got ['a']"),
        ("port: 1\nport: 2", "port is given twice"),
        ("port: [", "is not YAML"),
        ("a\0b", "is not YAML"),
        (b"\xff\xfe\xff", "not UTF-8"),
        ("- decode", "must hold keys and values"),
        ("decode", "must hold keys and values"),
        ("routing-threshold: 1", "routing-threshold: no such setting, did you mean"),
        ("decod: http://d0", "decod: no such setting, did you mean decode?"),
        ("xyz: 1", "xyz: no such setting"),
        ("1: 2", "1: no such setting"),
        ("_cli_parse_args: true", "_cli_parse_args: no such setting"),
        ("{[1]: 2}", "is not YAML"),
        ("log_level: !!bool maybe", "a value does not fit its tag"),
        ("port: !!timestamp no", "a value does not fit its tag"),
        ("port: !!float ''", "a value does not fit its tag"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
        ("port: 2026-13-45", "month"),
        ("port: " + "9" * 5000, "digits"),
        ("[" * 500, "nested too deep"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content, said, write):
    config = write(content)
    line = refusal(D0, config)
    assert line.startswith("--config")
    assert str(config) in line
    assert said in line


@pytest.mark.parametrize("kind", ["missing", "directory", "null byte"])
def test_an_unreadable_file_is_named(kind, tmp_path):
    path = {"missing": tmp_path / "no", "directory": tmp_path, "null byte": Path("a\0b")}[kind]
    line = refusal(D0, path)
    assert line.startswith("--config: ")
    assert kind == "null byte" or str(path) in line


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PD_ROUTER_PREFIL", ", did you mean PD_ROUTER_PREFILL?"),
        ("PD_ROUTER_CONFIG", "; name the file with --config FILE"),
        ("pd_router_prot", ""),
        ("PD_ROUTER_", ""),
    ],
)
def test_an_unknown_variable_is_refused_and_named(name, near, monkeypatch):
    monkeypatch.setenv(name, "x")
    assert refusal(D0).startswith(f"{name}: no such setting{near}")


@pytest.mark.parametrize("service", ["PD_ROUTER", "PD_ROUTER_METRICS", "PD_ROUTER_PREFILL"])
def test_kubernetes_service_variables_are_no_settings(service, monkeypatch):
    for name, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    if service != "PD_ROUTER":
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.1:80")
    assert load(D0).port == 8000


def test_the_one_service_variable_that_is_a_setting_is_explained(monkeypatch):
    monkeypatch.setenv("PD_ROUTER_PORT", "tcp://10.0.0.1:80")
    line = refusal(D0)
    assert line.startswith("PD_ROUTER_PORT=tcp://10.0.0.1:80 ")
    assert "enableServiceLinks" in line


def test_a_file_that_is_not_yaml_is_not_quoted(write):
    line = refusal(D0, write('decode: http://d0\nengine_api_key: "sk-secret'))
    assert "sk-secret" not in line
    assert "line 2" in line


def test_another_settings_error_does_not_print_the_key():
    assert "sk-secret" not in refusal({"engine_api_key": "sk-secret"})
    assert "sk-secret" not in refusal({**D0, "engine_api_key": "sk-secret", "port": "x"})


def test_the_admin_listener_of_this_environment(monkeypatch):
    assert admin_url() is None
    monkeypatch.setenv("PD_ROUTER_ADMIN_PORT", "9000")
    assert admin_url() == "http://127.0.0.1:9000"
