"""pd-router check: the findings, and the compatibility of pools."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.cli import main
from router.commands import check, survey
from router.commands.check import incompatibilities
from router.commands.console import cell, make_console
from router.commands.survey import Finding
from router.core.values import Endpoint, Role
from router.settings import Settings, SettingsError, load
from tests import forked
from tests.commands.conftest import Engine
from tests.discovery.api import Api
from tests.discovery.api import serving as api_server
from tests.e2e.test_discovery import kubeconfig, of


async def checked(*flags: str) -> tuple[int, str, str]:
    """A process's status, output and errors."""
    return await forked.ended("pd-router", "check", *flags)


async def run(capsys: pytest.CaptureFixture[str], **flags: Any) -> tuple[int, str]:
    """The command in a thread, because it has its own event loop."""
    status = await asyncio.to_thread(check.run, load(flags))
    return status, capsys.readouterr().out


async def test_a_good_fleet_is_status_0_and_plain_text(start):
    p0, d0, d1 = [await start(Engine()) for _ in range(3)]
    flags = ("--prefill", p0.url, "--decode", d0.url, "--decode", d1.url)
    status, out, err = await checked(*flags)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines == [
        ["role", "url", "health", "version", "models", "max_model_len"],
        ["prefill", p0.url, "ok", "0.32.0", "tiny", "2048"],
        ["decode", d0.url, "ok", "0.32.0", "tiny", "2048"],
        ["decode", d1.url, "ok", "0.32.0", "tiny", "2048"],
        ["All", "is", "well:", "1", "prefill", "and", "2", "decode", "engines."],
    ]
    assert "\x1b" not in out


async def test_encode_engines_are_asked_too(start):
    d0, e0 = [await start(Engine()) for _ in range(2)]
    status, out, _ = await checked("--decode", d0.url, "--encode", e0.url)
    assert ["encode", e0.url, "ok"] in [line.split()[:3] for line in out.splitlines()]
    assert out.endswith("All is well: 0 prefill, 1 decode and 1 encode engines.\n")
    assert status == 0


async def in_a_cluster(folder: Path, *pods: tuple[str, Engine]) -> tuple[int, str, str]:
    """The command's status, output and errors where these pods run, by role."""
    api = Api()
    for number, (role, engine) in enumerate(pods):
        api.put(f"pod-{number}", role=role, **of(engine.url))
    async with api_server(api) as url:
        return await checked(
            *("--k8s-prefill-selector", "role=prefill", "--k8s-decode-selector", "role=decode"),
            *("--k8s-port", "http", "--k8s-config-file", str(kubeconfig(folder, url))),
            *("--k8s-namespace", "default"),
        )


async def test_check_queries_pods_like_the_router(start, tmp_path):
    p0, d0 = [await start(Engine()) for _ in range(2)]
    status, out, err = await in_a_cluster(tmp_path, ("decode", d0), ("prefill", p0))
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [
        ["prefill", p0.url, "ok"],
        ["decode", d0.url, "ok"],
    ]
    assert out.endswith("All is well: 1 prefill and 1 decode engines.\n")
    assert (status, err) == (0, "")


async def test_without_a_decode_engine_not_all_is_well(start, tmp_path):
    status, out, _ = await in_a_cluster(tmp_path, ("prefill", await start(Engine())))
    assert out.endswith("There is no decode engine, so nothing can be served.\n")
    assert status == 1


async def test_a_source_that_does_not_answer_is_status_2(tmp_path, closed_url, monkeypatch):
    monkeypatch.setattr(survey, "FIRST_SECONDS", 0.1)
    with pytest.raises(SettingsError, match=r"^discovery by kubernetes: no answer in 0.1 s$"):
        await asyncio.to_thread(
            check.run,
            load(
                {
                    "k8s_decode_selector": "role=decode",
                    "k8s_port": "http",
                    "k8s_config_file": str(kubeconfig(tmp_path, closed_url)),
                    "k8s_namespace": "default",
                }
            ),
        )


async def test_an_absent_engine_is_status_1_with_the_remedy(start, closed_url):
    engine = await start(Engine())
    status, out, err = await checked("--prefill", closed_url, "--decode", engine.url)
    assert (status, err) == (1, "")
    assert f"prefill {closed_url}: nothing listens there: check host and port" in out
    assert "1 of 2 engines cannot be used as they are." in out


async def test_one_engine_under_two_names_is_warned_of(start, capsys):
    engine = await start(Engine())
    other = engine.url.replace("127.0.0.1", "localhost")
    status, out = await run(capsys, decode=f"{engine.url},{other}")
    assert status == 0
    where = engine.url.removeprefix("http://")
    assert f"warning: {engine.url} and {other} both lead to {where}: if that is one engine" in out


async def test_a_wrong_configuration_is_status_2_without_any_request(start):
    engine = await start(Engine())
    status, out, err = await checked("--decode", engine.url, "--port", "x")
    assert (status, out) == (2, "")
    assert err.startswith("pd-router: --port: ")
    assert engine.asked == []


async def test_pools_that_do_not_fit_are_status_1(start, capsys):
    p0, d0 = await start(Engine()), await start(Engine(**{"/version": {"version": "0.33.0"}}))
    status, out = await run(capsys, prefill=p0.url, decode=d0.url)
    assert status == 1
    assert "NIXL needs the same vLLM version on prefill and decode engines" in out
    assert "The engines answer, but the pools do not fit together." in out


async def test_an_engine_with_trouble_is_status_1(start, capsys, closed_url):
    d0 = await start(Engine(**{"/v1/models": 401}))
    status, out = await run(capsys, decode=f"{d0.url},{closed_url}")
    assert status == 1
    assert f"decode {d0.url}: /v1/models wants a key" in out
    assert "2 of 2 engines cannot be used as they are." in out


async def test_in_a_pipe_an_engine_is_one_line_however_long(start, capsys):
    cards = [{"id": f"{'model' * 30}-{n}", "max_model_len": n} for n in range(20)]
    d0 = await start(Engine(**{"/v1/models": {"data": cards}}))
    status, out = await run(capsys, decode=d0.url)
    assert status == 0
    [line] = [line for line in out.splitlines() if d0.url in line]
    assert ",".join(str(card["id"]) for card in cards) in line
    assert ",".join(str(n) for n in range(20)) in line


async def test_on_a_terminal_a_model_is_a_line_and_health_is_coloured(start, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    cards = [{"id": "one", "max_model_len": 1}, {"id": "two"}]
    d0 = await start(Engine(**{"/v1/models": {"data": cards}}))
    status, out = await run(capsys, decode=d0.url)
    assert status == 0
    assert "\x1b[32mok" in out
    assert [line for line in out.splitlines() if "one" in line or "two" in line][1].split() == [
        "two",
        "-",
    ]


async def test_text_of_an_engine_cannot_control_the_terminal(start, capsys):
    cards = [{"id": "[red]\x1b[2J\nx\u2028", "max_model_len": 1}]
    versions = {"version": "1\x1b]0;x\x07"}
    d0 = await start(Engine(**{"/v1/models": {"data": cards}, "/version": versions}))
    _, out = await run(capsys, decode=d0.url)
    assert r"[red]\x1b[2J\nx\u2028" in out
    assert out.replace("\n", "").isprintable()


async def test_the_key_is_not_printed(start, capsys):
    d0 = await start(Engine(**{"/v1/models": 401}))
    _, out = await run(capsys, decode=d0.url, engine_api_key="sk-secret")
    assert "secret" not in out


def test_check_is_a_command(monkeypatch):
    seen = []

    def run(settings: Settings, *, tries: bool) -> int:
        seen.append((settings, tries))
        return 1

    monkeypatch.setattr(check, "run", run)
    assert main(["check", "--decode", "http://d0"]) == 1
    assert main(["check", "--try", "--decode", "http://d0"]) == 1
    settings = load({"decode": "http://d0"})
    assert seen == [(settings, False), (settings, True)]


def test_a_cell_keeps_its_own_lines_and_no_others(capsys):
    make_console().print(cell("a\n", "[b]\x1b\r:smile:"))
    assert capsys.readouterr().out == "a\\n\n[b]\\x1b\\r:smile:\n"


TINY = {"tiny": 2048}


def prefill(name: str = "p0", version: str | None = "1", models: object = TINY) -> Finding:
    return Finding(Endpoint(f"http://{name}", Role.PREFILL), "ok", version, models)  # type: ignore[arg-type]


def decode(name: str = "d0", version: str | None = "1", models: object = TINY) -> Finding:
    return Finding(Endpoint(f"http://{name}", Role.DECODE), "ok", version, models)  # type: ignore[arg-type]


def test_equal_engines_fit():
    assert incompatibilities([prefill(), prefill("p1"), decode(), decode("d1")], "nixl") == []


def test_a_plain_pool_need_not_fit_anything():
    assert incompatibilities([decode(), decode("d1", version="2", models={"big": 9})], "nixl") == []


def test_versions_that_differ_do_not_fit_under_nixl():
    [sentence] = incompatibilities([prefill(), decode(), decode("d1", version="2")], "nixl")
    assert "NIXL needs the same vLLM version" in sentence
    assert "1 on http://p0, http://d0; 2 on http://d1" in sentence


def test_versions_may_differ_under_lmcache():
    assert incompatibilities([prefill(version="2"), decode()], "lmcache") == []


def test_an_unknown_version_matches_any_other():
    assert incompatibilities([prefill(version=None), decode()], "nixl") == []


@pytest.mark.parametrize("connector", ["nixl", "lmcache", "store"])
def test_a_model_must_be_on_both_sides(connector):
    sentences = incompatibilities(
        [prefill(models={"a": 1, "b": 1}), decode(models={"b": 1, "c": 1})], connector
    )
    assert [sentence.split(":")[0] for sentence in sentences] == [
        "No decode engine serves a",
        "No prefill engine serves c",
    ]


def test_a_model_need_not_be_on_every_engine_of_a_side():
    both = [decode(models={"a": 1}), decode("d1", models={"b": 1})]
    assert incompatibilities([prefill(models={"a": 1, "b": 1}), *both], "nixl") == []


def test_models_are_not_compared_while_an_engines_models_are_unknown():
    assert incompatibilities([prefill(models=None), decode()], "nixl") == []
    assert incompatibilities([prefill(), decode(), decode("d1", models=None)], "nixl") == []


@pytest.mark.parametrize(
    ("shorter", "longer", "fits"),
    [
        (1024, 2048, False),
        (2048, 2048, True),
        (4096, 2048, True),
        (None, 2048, True),
        (1, None, True),
    ],
)
def test_prefill_and_decode_need_equal_max_model_len(shorter, longer, fits):
    sentences = incompatibilities(
        [prefill(models={"a": shorter}), decode(models={"a": longer})], "nixl"
    )
    assert (sentences == []) is fits
    assert fits or "1024 tokens of a, a decode engine 2048" in sentences[0]
