"""Settings of engines: URLs, files, registries, limits and sources of KV-cache events."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.core.urls import origin
from router.settings import load
from tests.settings.samples import D0, LMCACHE, POD, QUICK, REGISTRY, refusal, registry


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("http://d0", "http://d0"),
        ("HTTP://D0:80/", "http://d0"),
        ("https://d0:443", "https://d0"),
        ("https://d0.example.com:8443/a/", "https://d0.example.com:8443/a"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[fe80::1]", "http://[fe80::1]"),
        ("http://127.0.0.1:65535", "http://127.0.0.1:65535"),
        ("http://vllm_decode-0", "http://vllm_decode-0"),
    ],
)
def test_single_label_hosts_ipv6_and_https_are_engine_urls(given_url, url):
    settings = load({"decode": given_url, "prefill": given_url.rstrip("/") + "/p"})
    assert settings.decode == (url,)
    assert settings.prefill == (origin(given_url.rstrip("/") + "/p").url,)


@pytest.mark.parametrize(
    "url",
    [
        "d0",
        "d0:8000",
        "ftp://d0",
        "http://",
        "http:///x",
        "http://d0:0",
        "http://d0:65536",
        "http://d0:x",
        "http://::1",
        "http://[::1",
        "http://d 0",
        "http://d\n0",
        "http://d0?a=1",
        "http://d0#a",
        "http://dé0",
        "http://日本/",
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_invalid_engine_urls_are_refused_and_named(url, role):
    line = refusal({**D0, role: url})
    assert line.startswith(f"--{role}: ")
    assert repr(url)[1:-1] in line


SPELLINGS = st.sampled_from(
    ["http://d0", "HTTP://d0", "http://D0:80", "http://d0/", "http://d0:80//"]
)


@QUICK
@given(SPELLINGS, SPELLINGS)
def test_two_spellings_of_a_url_are_a_duplicate(one, other):
    assert refusal({"decode": [one, other]}) == "--decode: http://d0 is given twice"
    line = refusal({"decode": one, "prefill": other})
    assert line == "--decode: http://d0 is given as a prefill engine too"


@pytest.mark.parametrize("url", ["http://user:pass@d0", "http://user:pa/ss@d0", "user:pass@d0"])
def test_credentials_in_a_url_are_refused_unquoted(url):
    line = refusal({"decode": url})
    assert line.startswith("--decode: the URL of 'd0' must hold no credentials")
    assert "user" not in line
    assert "pass" not in line


def test_a_mistake_in_the_engines_file_is_reported_at_startup(tmp_path):
    path = tmp_path / "engines.json"
    path.write_text('{"decode": ["d0"]}')
    line = refusal({"engines_file": str(path)})
    assert line.startswith(f"--engines-file: {path}: decode[0]: 'd0' must start with http")


def test_one_decoder_is_given_by_host_and_ports():
    settings = load(
        {**LMCACHE, "prefill": "http://p0", "decoder_host": "r"}
        | {"decoder_init_port": "7300,7301", "decoder_alloc_port": "7400, 7401"}
    )
    receiver = settings.receivers["http://d0"]
    assert receiver.receiver_host == "r"
    assert receiver.receiver_init_port == (7300, 7301)
    assert receiver.receiver_alloc_port == (7400, 7401)


def test_several_decoders_are_given_by_a_registry_whose_urls_compare_normalised():
    both = {"HTTP://D0:80/": REGISTRY, "http://d1:8000/": {**REGISTRY, "receiver_host": "r1"}}
    settings = load(
        {**LMCACHE, "decode": "http://d0,http://d1:8000"}
        | {"decoder_registry": json.dumps({**both, "http://d2": REGISTRY})}
    )
    assert list(settings.receivers) == ["http://d0", "http://d1:8000", "http://d2"]  # may join
    assert settings.receivers["http://d1:8000"].receiver_host == "r1"


def test_a_registry_may_come_from_a_json_file_or_as_yaml(tmp_path, write):
    path = tmp_path / "registry.json"
    path.write_text(registry())
    from_json = load({**LMCACHE, "decoder_registry": f"@{path}"})
    config = write(yaml.safe_dump({"decoder_registry": json.loads(registry())}))
    assert from_json.receivers == load(LMCACHE, config).receivers != {}


def test_without_lmcache_there_are_no_receivers():
    assert load(D0).receivers == {}
    assert load(LMCACHE).receivers == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"receiver_alloc_port": [7400, 7401]},
            "http://d0: 1 init and 2 alloc ports",
        ),
        ({"receiver_hots": "r", "receiver_host": None}, "http://d0: receiver_hots: no such key"),
        ({"receiver_query_prt": [1]}, "http://d0: receiver_query_prt: no such key"),
        ({"receiver_host": None}, "http://d0: receiver_host: is missing"),
        ({"receiver_host": ""}, "http://d0: receiver_host: "),
        ({"receiver_host": 7}, "http://d0: receiver_host: "),
        ({"receiver_init_port": []}, "http://d0: receiver_init_port: "),
        ({"receiver_init_port": [65536]}, "http://d0: receiver_init_port: "),
        ({"receiver_init_port": [True]}, "http://d0: receiver_init_port: must be a number"),
    ],
)
def test_a_wrong_receiver_is_named_down_to_its_key(changes, said):
    line = refusal({**LMCACHE, "decoder_registry": registry(**changes)})
    assert line.startswith(f"--decoder-registry: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deep"),
        ('"d0"', "must be a mapping"),
        ("[]", "must be a mapping"),
        ('{"http://d0": 7}', "http://d0: "),
        ('{"d0": {}}', "'d0' must start with http://"),
        ('{"http://u:p@d0": {}}', "must hold no credentials"),
        ('{"http://d0": {}, "http://d0": {}}', "http://d0 is given twice"),
        ('{"http://d0": {}, "http://D0:80/": {}}', "http://d0 is given twice"),
        ("{}", "decode engine http://d0 is not in it"),
        (registry().replace("D0", "D1"), "decode engine http://d0 is not in it"),
    ],
)
def test_a_wrong_registry_is_refused(text, said):
    line = refusal({**LMCACHE, "decoder_registry": text})
    assert line.startswith("--decoder-registry: ")
    assert said in line


def test_an_engines_limit_is_its_own_or_that_of_all():
    engines = {"decode": "http://d0,http://d1"}
    stated = json.dumps({"http://d1/": 8, "*": 64})
    settings = load({**engines, "engine_max_num_seqs": stated})
    assert (settings.max_num_seqs("http://d0"), settings.max_num_seqs("http://d1")) == (64, 8)
    assert load(engines).max_num_seqs("http://d0") is None
    only_one = load({**engines, "engine_max_num_seqs": '{"http://d1": 8}'})
    assert only_one.max_num_seqs("http://d0") is None


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ('{"http://d7": 8}', "http://d7 is no decode engine"),
        ('{"http://d0": 8, "http://d0/": 9}', "http://d0 is given twice"),
        ('{"http://d0": 0}', "http://d0: "),
        ("[8]", "*: "),
    ],
)
def test_a_limit_of_no_engine_is_refused(stated, said):
    line = refusal({**D0, "engine_max_num_seqs": stated})
    assert line.startswith(f"--engine-max-num-seqs: {said}")


def test_engines_that_are_found_may_have_limits_of_their_own():
    settings = load({**POD, "engine_max_num_seqs": '{"http://10.0.0.1:8000": 64}'})
    assert settings.max_num_seqs("http://10.0.0.1:8000") == 64


EVENTS = {"decode": "http://d0", "prefix_cache": "events"}


def test_sources_of_events_are_by_engine_and_rank() -> None:
    ranks = [{"endpoint": f"tcp://[::1]:{port}", "replay_endpoint": None} for port in (5557, 5558)]
    settings = load({**EVENTS, "kv_events": json.dumps({"http://d0/": ranks})})
    assert settings.kv_events is not None
    [found] = settings.kv_events.values()
    assert [source.endpoint for source in found] == ["tcp://[::1]:5557", "tcp://[::1]:5558"]
    assert load({**EVENTS, "kv_events": "auto"}).kv_events is None


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"http://d1": {"endpoint": "tcp://d1:1"}}, "http://d1 is no engine"),
        ({"http://d0": {"endpoint": "ipc:///tmp/kv"}}, "must be like tcp://host:5557"),
        ({"http://d0": {"endpoint": "tcp://*:5557"}}, None),
        ({"http://d0": {"endpoint": "tcp://d0:0"}}, "must be like tcp://host:5557"),
        ({"http://d0": {"port": 1}}, "no such key"),
        ([1], "must be a mapping"),
    ],
)
def test_sources_that_cannot_be_are_refused(sources: Any, words: str | None) -> None:
    line = refusal({**EVENTS, "kv_events": json.dumps(sources)})
    assert line.startswith("--kv-events")
    assert words is None or words in line


NAMED = json.dumps({"http://d0": {"endpoint": "tcp://d0:5557"}})


@pytest.mark.parametrize("sources", [NAMED, "auto"])
def test_events_are_used_where_sources_are_named(
    sources: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load({"decode": "http://d0", "kv_events": sources}).prefix_cache == "events"
    given = {"decode": "http://d0", "prefix_cache": "off", "kv_events": "auto"}
    assert load(given).prefix_cache == "off"
    file = tmp_path / "router.yaml"
    file.write_text("kv_events: auto", encoding="utf-8")
    assert load({"decode": "http://d0"}, file).prefix_cache == "events"
    monkeypatch.setenv("PD_ROUTER_KV_EVENTS", sources)
    assert load({"decode": "http://d0"}).prefix_cache == "events"


def test_by_default_history_is_used() -> None:
    assert load({"decode": "http://d0"}).prefix_cache == "history"


def test_sources_without_use_for_them_are_refused() -> None:
    for cache in ("history", "off"):
        line = refusal({"decode": "http://d0", "prefix_cache": cache, "kv_events": NAMED})
        assert line == "--kv-events: needs --prefix-cache events"
