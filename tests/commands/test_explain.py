"""pd-router explain: the router's own decision, without a network."""

import asyncio
import io
import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from router.cli import main

POOLS = ("--prefill", "http://p0,http://p1", "--decode", "http://d0,http://d1")
ALWAYS_REMOTE = ("--routing-threshold", "0")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 20}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("explain used the network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(asyncio, "run", refuse)


@pytest.fixture
def explain(tmp_path, capsys):
    """Explains a body; returns the words of the output."""

    def run(body: object, *flags: str) -> str:
        path = tmp_path / "body.json"
        path.write_text(body if isinstance(body, str) else json.dumps(body))
        assert main(["explain", str(path), *POOLS, *flags]) == 0
        out, err = map(str, capsys.readouterr())
        assert err == ""
        return out

    return run


@pytest.fixture
def facts(explain):
    """Explains a body for machines."""
    return lambda body, *flags: json.loads(explain(body, "--json", *flags))


def words(line: str) -> str:
    return " ".join(line.split())


def test_a_reader_gets_estimate_decision_candidates_and_the_prefill_request(explain):
    lines = [words(line) for line in explain(CHAT, "--routing-threshold", "100").splitlines()]
    assert lines[:7] == [
        "route /v1/chat/completions (from the body's `messages`; --route names another)",
        "model tiny",
        "estimate 100 input tokens (characters / 4)",
        "threshold 100 tokens",
        "mode remote_prefill",
        "reason at_or_above_threshold",
        "prefix too short to be found in prefix caches (below 128 tokens)",
    ]
    assert lines[8:12] == [
        "decode, shortest_expected_delay (the lowest score wins):",
        "url in flight tokens others uncached held trust score",
        "chosen http://d0 0 0 - 100 - - 1",
        "http://d1 0 0 - 100 - - 1",
    ]
    assert lines[13:17] == [
        "prefill, shortest_expected_delay (the lowest score wins):",
        "url in flight tokens others uncached held trust score",
        "chosen http://p0 0 0 - 100 - - 1",
        "http://p1 0 0 - 100 - - 1",
    ]
    assert lines[18] == "POST http://p0/v1/chat/completions"
    body = json.loads("".join(lines[19:]))
    assert body["max_tokens"] == 1
    assert body["kv_transfer_params"]["do_remote_decode"] is True


@pytest.mark.parametrize(
    ("cache", "body", "told", "text"),
    [
        ("off", {"prompt": "x" * 4096}, (0, None), "do not count (--prefix-cache off)"),
        ("history", {"prompt": "x" * 4096}, (1024, None), "1024 tokens, by what was sent where"),
        ("events", {"prompt": "x" * 4096}, (1024, None), "token ids are not known"),
        ("events", {"prompt": [7] * 500}, (500, 500), "the prompt's 500 token ids are known"),
        ("events", {"prompt": [7] * 100}, (0, None), "too short to be found"),
    ],
)
def test_explain_shows_the_use_of_prefix_caches_for_the_prompt(
    explain, facts, cache, body, told, text
):
    flags = ("--prefix-cache", cache)
    tokens, known = told
    assert facts(body, *flags)["prefix"] == {"cache": cache, "tokens": tokens, "known_ids": known}
    [line] = [line for line in explain(body, *flags).splitlines() if line.startswith("prefix ")]
    assert text in line


def test_each_prefix_cache_is_shown(explain, facts):
    body = {"prompt": "x" * 4096}
    [first, _] = facts(body)["decode"]["candidates"]
    assert {name: first[name] for name in ("uncached", "held", "trust", "known_by")} == {
        "uncached": 1024,
        "held": 0,
        "trust": 1.0,
        "known_by": "history",
    }
    assert "chosen http://d0 0 0 - 1024 0 1 1" in map(words, explain(body).splitlines())


def test_a_reader_is_spared_long_prompts(explain):
    ids = {"prompt": list(range(5000)), "suffix": "y" * 300}
    out = explain(ids)
    assert "5000 input tokens (token ids)" in out
    assert '"... (5000 items)"' in out
    assert f'"{"y" * 200}... (300 characters)"' in out
    assert len(out) < 5000


def test_a_direct_request_has_neither_prefill_candidates_nor_a_prefill_request(explain, facts):
    flags = ("--routing-threshold", "101")
    out = explain(CHAT, *flags)
    assert "below_threshold" in out
    assert "http://p0" not in out
    document = facts(CHAT, *flags)
    assert document["prefill"] is document["prefill_request"] is None
    assert (document["mode"], document["reason"]) == ("direct", "below_threshold")


def test_a_machine_gets_the_same_and_the_whole_body(facts):
    document = facts(CHAT, *ALWAYS_REMOTE, "--decode-load-balancing-strategy", "least_loaded")
    request = document.pop("prefill_request")
    candidate = {
        "in_flight": 0,
        "tokens": 0,
        "other_requests": None,
        "slowdown": 1.0,
        "slow_start_weight": 1.0,
        "score": 0.0,
        "uncached": 100,
        "held": None,
        "trust": None,
        "known_by": None,
    }
    assert document == {
        "route": "/v1/chat/completions",
        "model": "tiny",
        "stream": False,
        "estimate": {"tokens": 100, "rule": "characters / 4"},
        "threshold": 0,
        "mode": "remote_prefill",
        "reason": "at_or_above_threshold",
        "delay": None,
        "prefix": {"cache": "history", "tokens": 0, "known_ids": None},
        "decode": {
            "strategy": "least_loaded",
            "chosen": "http://d0",
            "regret": 0,
            "candidates": [{"url": f"http://d{n}", **candidate} for n in (0, 1)],
        },
        "prefill": {
            "strategy": "shortest_expected_delay",
            "chosen": "http://p0",
            "regret": 0,
            "candidates": [{"url": f"http://p{n}", **candidate, "score": 1.0} for n in (0, 1)],
        },
        "encode": None,
        "fallbacks": [],
    }
    assert request["url"] == "http://p0/v1/chat/completions"
    assert request["body"]["messages"] == CHAT["messages"]
    assert request["body"]["max_tokens"] == 1
    assert request["body"]["kv_transfer_params"]["do_remote_decode"] is True


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"n": 2}, "several_answers"), ({"prompt_logprobs": 1}, "prompt_logprobs")],
)
def test_the_reason_is_the_routers_own(changes, reason, facts):
    assert facts({**CHAT, **changes})["reason"] == reason


def test_a_plain_pool_has_no_prefill(tmp_path, capsys):
    path = tmp_path / "body.json"
    path.write_text(json.dumps(CHAT))
    assert main(["explain", str(path), "--decode", "http://d0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "no_prefill_pool"


@pytest.mark.parametrize(
    "flags",
    [
        ("--dns-decode", "engines.example:8000"),
        ("--prefill", "http://p0", "--k8s-decode-selector", "app=engine"),
        ("--engines-file", "FILE"),
    ],
)
def test_without_a_known_decode_engine_explain_reports_it(flags, tmp_path, capsys):
    path, file = tmp_path / "body.json", tmp_path / "engines.json"
    path.write_text(json.dumps(CHAT))
    file.write_text('{"decode": [{"url": "http://d0", "draining": true}]}')
    words = [str(file) if word == "FILE" else word for word in flags]
    assert main(["explain", str(path), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pd-router: no decode engine is named, or all are draining: ")
    assert len(err.splitlines()) == 1


def test_a_pass_through_route_is_direct(facts):
    document = facts({"model": "tiny", "input": "x"}, "--route", "/v1/embeddings")
    assert (document["mode"], document["reason"]) == ("direct", "route")
    assert document["estimate"]["tokens"] == 0


@pytest.mark.parametrize(
    ("key", "route"),
    [
        ("messages", "/v1/chat/completions"),
        ("prompt", "/v1/completions"),
        ("input", "/v1/responses"),
    ],
)
def test_the_route_is_the_one_that_the_body_is_made_for(key, route, explain, facts):
    prompt = [{"role": "user", "content": "x" * 400}] if key == "messages" else "x" * 400
    body = {"model": "tiny", key: prompt}
    document = facts(body)
    assert (document["route"], document["estimate"]["tokens"]) == (route, 100)
    assert explain(body).startswith(f"route      {route} (from the body's `{key}`; --route names")


def test_a_route_that_is_named_is_taken(explain, facts):
    body = {"model": "tiny", "max_tokens": 9, **CHAT}
    assert facts(body, "--route", "/v1/messages")["route"] == "/v1/messages"
    assert explain(body, "--route", "/v1/messages").splitlines()[0] == "route      /v1/messages"


@pytest.mark.parametrize(
    ("keys", "held"),
    [
        (("query",), "none of messages, prompt, input"),
        (("messages", "prompt"), "messages and prompt"),
    ],
)
def test_a_body_without_a_known_route_needs_the_route_option(keys, held, tmp_path, capsys):
    path = tmp_path / "body.json"
    path.write_text(json.dumps(dict.fromkeys(keys, "x")))
    assert main(["explain", str(path), *POOLS]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"pd-router: {path}: holds {held}: name its route with --route PATH\n"


def test_prompts_that_cannot_be_prefilled_have_a_reason(explain, facts):
    body = json.dumps(CHAT)[:-1] + ', "deep": ' + "[" * 300 + "]" * 300 + "}"
    assert "fallback   prefill: nested_too_deep" in explain(body, *ALWAYS_REMOTE)
    document = facts(body, *ALWAYS_REMOTE)
    assert document["fallbacks"] == [{"leg": "prefill", "reason": "nested_too_deep"}]
    assert document["prefill_request"] is None


def test_lmcache_shows_the_decision_without_a_prefill_request(facts):
    flags = ("--disagg-connector-type", "lmcache", "--decoder-registry")
    entry = {"receiver_host": "r", "receiver_init_port": [1], "receiver_alloc_port": [2]}
    registry = json.dumps({"http://d0": entry, "http://d1": entry})
    document = facts(CHAT, *ALWAYS_REMOTE, *flags, registry)
    assert document["mode"] == "remote_prefill"
    assert document["prefill_request"] is None


def test_the_store_gets_a_prefill_request_without_kv_parameters(facts):
    document = facts(CHAT, *ALWAYS_REMOTE, "--disagg-connector-type", "store")
    assert document["prefill_request"]["body"]["max_tokens"] == 1
    assert "kv_transfer_params" not in document["prefill_request"]["body"]


def test_an_image_has_encode_engines(explain, facts):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [image]}]}
    engines = ("--encode", "http://e0,http://e1")
    document = facts(body, *engines)
    assert (document["encode"]["strategy"], document["encode"]["chosen"]) == (
        "least_loaded",
        "http://e0",
    )
    assert "encode, least_loaded (the lowest score wins):" in explain(body, *engines)
    assert facts(CHAT, *engines)["encode"] is None


def test_the_body_may_come_from_standard_input(monkeypatch, capsys):
    stdin = SimpleNamespace(buffer=io.BytesIO(json.dumps(CHAT).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["explain", "-", "--json", *POOLS]) == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["tokens"] == 100


def test_as_a_process_it_reads_standard_input_and_prints_plain_text():
    done = subprocess.run(
        [sys.executable, "-m", "router", "explain", "-", *POOLS, *ALWAYS_REMOTE],
        input=json.dumps(CHAT),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "remote_prefill" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()


def test_text_of_a_body_cannot_control_the_terminal(explain):
    body = {
        "model": "[red]\x1b[2J\nx",
        "messages": [{"role": "user", "content": "\x1b]0;x\x07\u2028"}],
    }
    out = explain(body)
    assert r"[red]\x1b[2J\nx" in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model": 7}', "`model` must be a string"),
        (b"\xff", "not valid JSON"),
        (b'{"a": "\n"}', "not valid JSON"),
    ],
)
def test_malformed_body_is_refused_with_file_name(content, said, tmp_path, capsys):
    path = tmp_path / "body.json"
    path.write_bytes(content)
    assert main(["explain", str(path), *POOLS]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pd-router: {path}: ")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("path", ["/no/such/body.json", "/", "a\0b", "a\nb"])
def test_an_unreadable_body_is_refused_in_one_line_that_names_it(path, capsys):
    assert main(["explain", path, *POOLS]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pd-router: {ascii(path)[1:-1]}: cannot be read: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("route", ["/v1/chat/completion", "/sleep", "", "/v1/models"])
def test_a_route_that_is_not_served_is_refused(route, capsys):
    assert main(["explain", "-", "--route", route, *POOLS]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pd-router: --route {route}: no such route")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("characters", "mode"), [(2048 * 4, "remote_prefill"), (2000, "direct")])
def test_auto_threshold_is_constant_at_first(characters, mode, explain, facts):
    body, flags = {"prompt": "x" * characters}, ("--routing-threshold", "auto")
    assert "auto (2048 tokens until both ways are measured)" in explain(body, *flags)
    document = facts(body, *flags)
    assert (document["threshold"], document["delay"]) == ("auto", None)
    assert (document["mode"], document["reason"]) == (mode, "cold_default")
