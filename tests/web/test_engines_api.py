"""Operators list, add, drain, undrain and remove engines, on the admin listener only."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.cli import main
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.prefix.trust import EVENTS, HISTORY, NOTHING
from router.core.values import Role
from router.web.engines_api import endpoints
from tests.core.fixtures import D0
from tests.net.client import Answer, Client, request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token
from tests.web.test_admin import admin_client, admin_url

ENGINES = "/admin/engines"

ENTRY = {"url": "http://d0", "role": "decode", "state": "draining", "in_flight": 1}
"""What a router answers to an order, as far as the commands read it."""


async def order(router: Running, what: str, **body: Any) -> Answer:
    """POST an order."""
    return await (await admin_client(router)).ask(f"{ENGINES}{what}", body)


async def remove(router: Running, query: str) -> Answer:
    """DELETE an engine."""
    client = await admin_client(router)
    await client.send(request(f"{ENGINES}?{query}", method="DELETE"))
    return await client.answer("DELETE")


async def listed(router: Running) -> Any:
    """The answer to GET."""
    return (await (await admin_client(router)).get(ENGINES)).json


async def test_a_paused_pool_finishes_what_runs_and_takes_nothing_new(harness: Harness) -> None:
    first, late = await harness.engine(), await harness.engine()
    router = await harness.router(first, admin_port=0)
    client = await router.send(COMPLETIONS, STREAM)
    call = await first.call()
    call.stream(token("a"))
    paused = await order(router, "/drain", url="*")
    assert paused.json == {"url": "*", "role": "all", "state": "paused", "in_flight": 1}
    refused = await router.ask(COMPLETIONS, completion())
    assert (refused.status, refused.values(b"retry-after")) == (503, [b"1"])
    call.end(token("b"), DONE)
    assert (await client.answer()).body == token("a") + token("b") + DONE
    await order(router, "", url=late.url, role="decode")  # one that joins is paused too
    entries = (await listed(router))["engines"]
    assert [entry["state"] for entry in entries] == ["draining", "draining"]
    resumed = await order(router, "/undrain", url="*")
    assert resumed.json == {"url": "*", "role": "all", "state": "resumed", "in_flight": 0}
    assert (await listed(router))["orders"] == []
    first.answer_all(lambda call: call.send(json_reply({"choices": []})))
    late.answer_all(lambda call: call.send(json_reply({"choices": []})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_a_resumed_pool_leaves_drained_engines_drained(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0)
    await order(router, "/drain", url=engine.url)
    await order(router, "/drain", url="*", role="decode")
    await order(router, "/undrain", url="*", role="decode")
    assert (await listed(router))["orders"] == [
        {"url": engine.url, "role": "decode", "order": "drain"}
    ]
    assert (await order(router, "/undrain", url="*")).status == 200  # not paused


@pytest.mark.parametrize("what", ["", "/drain"])
async def test_a_pool_cannot_be_added_or_moved(harness: Harness, what: str) -> None:
    _, router = await harness.single(admin_port=0, stream_continuation="on")
    body = {"move": True} if what else {"role": "decode"}
    assert (await order(router, what, url="*", **body)).status == 400


async def test_the_list_has_source_and_state_of_each_engine(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0)
    assert await listed(router) == {
        "engines": [
            {
                "url": engine.url,
                "role": "decode",
                "identity": "",
                "source": "settings",
                "zone": None,
                "state": "up",
                "cause": None,
                "is_leaving": False,
                "in_flight": 0,
            }
        ],
        "orders": [],
    }


async def test_an_engine_is_added_drained_undrained_and_removed(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    for engine in (one, other):
        engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(one, admin_port=0)
    answer = await order(router, "", url=other.url, role="decode")
    assert (answer.status, answer.json["source"]) == (200, "operator")
    await router.usable(other)
    answer = await order(router, "/drain", url=one.url)
    assert (answer.status, answer.json["state"]) == (200, "draining")
    assert (await listed(router))["orders"] == [
        {"url": one.url, "role": "decode", "order": "drain"}
    ]
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    answer = await order(router, "/undrain", url=one.url)
    assert (answer.status, answer.json["state"]) == (200, "up")
    answer = await remove(router, f"url={other.url}")
    assert (answer.status, answer.json["state"]) == (200, "draining")
    await router.is_quiet()
    router.router.sync.follow()
    assert [each["url"] for each in (await listed(router))["engines"]] == [one.url]


async def test_an_engine_of_the_settings_can_be_removed_and_added_again(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0)
    await remove(router, f"url={engine.url}&role=decode")
    router.router.sync.follow()
    assert (await listed(router))["engines"] == []
    assert (await order(router, "/drain", url=engine.url)).status == 404
    await order(router, "", url=engine.url, role="decode")
    await router.usable(engine)
    assert (await listed(router))["orders"] == []


@pytest.mark.parametrize(
    ("what", "body", "status", "text"),
    [
        ("", {"url": "d0", "role": "decode"}, 400, "url: 'd0' must start with http"),
        ("", {"url": "http://d0"}, 400, "role: is needed"),
        ("", {"url": "http://d0", "role": "both"}, 400, "body.role: Input should be 'prefill'"),
        ("", {"url": "http://d0", "weight": 2}, 400, "body.weight: Extra inputs"),
        ("/drain", {}, 400, "body.url: Field required"),
        ("/drain", {"url": "http://d0"}, 404, "There is no engine http://d0; GET"),
        ("/drain", {"url": "http://d0", "role": "decode"}, 404, "there is no such engine"),
        ("/undrain", {"url": "http://d0", "role": "decode"}, 404, "there is no such engine"),
    ],
)
async def test_errors_in_an_order_are_reported(
    harness: Harness, what: str, body: dict[str, Any], status: int, text: str
) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    answer = await order(router, what, **body)
    assert answer.status == status
    assert text in answer.error["message"]


async def test_an_engine_of_both_roles_must_be_named_with_one(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0)
    await order(router, "", url=engine.url, role="prefill")
    answer = await order(router, "/drain", url=engine.url)
    assert answer.status == 400
    assert "has several" in answer.error["message"]
    assert (await order(router, "/drain", url=engine.url, role="prefill")).status == 200
    assert [m.endpoint.role for m in router.router.fleet if m.is_drained] == [Role.PREFILL]


async def test_a_full_fleet_is_a_conflict(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    router.router.sync.roster.rows = 1
    answer = await order(router, "", url="http://127.0.0.1:1", role="decode")
    assert answer.status == 409
    assert "remove others first" in answer.error["message"]


async def test_a_page_of_another_origin_cannot_order(harness: Harness) -> None:
    """A form sends no JSON, and what sends JSON must ask first."""
    engine, router = await harness.single(admin_port=0)
    client = await admin_client(router)
    body = orjson.dumps({"url": engine.url})
    await client.send(request(f"{ENGINES}/drain", body, (b"content-type", b"text/plain")))
    answer = await client.answer()
    assert answer.status == 400
    await client.send(request(f"{ENGINES}/drain", method="OPTIONS"))
    answer = await client.answer("OPTIONS")
    assert not answer.values(b"access-control-allow-origin")
    assert not any(member.is_drained for member in router.router.fleet)


@pytest.mark.parametrize("settings", [{}, {"admin_port": 0}])
async def test_clients_cannot_change_the_fleet(harness: Harness, settings: dict[str, Any]) -> None:
    engine, router = await harness.single(**settings)
    client = await router.client()
    assert (await client.get(ENGINES)).status == 404
    assert (await client.ask(f"{ENGINES}/drain", {"url": engine.url})).status == 404


async def test_the_docs_name_the_routes(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    paths = (await (await admin_client(router)).get("/openapi.json")).json["paths"]
    assert {ENGINES, f"{ENGINES}/drain", f"{ENGINES}/undrain"} <= paths.keys()
    assert (await (await admin_client(router)).get("/docs")).status == 200


async def test_an_engine_hands_its_streams_over_if_it_is_drained_with_move(
    harness: Harness,
) -> None:
    engine, router = await harness.single(admin_port=0, stream_continuation="on")
    answer = await order(router, "/drain", url=engine.url, move=True)
    assert (answer.status, answer.json["state"]) == (200, "draining")
    assert (await listed(router))["orders"] == [
        {"url": engine.url, "role": "decode", "order": "move"}
    ]
    client = await admin_client(router)
    assert (await client.get("/endpoints")).json[0]["hands_over"] is True
    await order(router, "/undrain", url=engine.url)
    assert (await client.get("/endpoints")).json[0]["hands_over"] is False


async def test_streams_are_not_moved_without_continuation(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0, stream_continuation="off")
    answer = await order(router, "/drain", url=engine.url, move=True)
    assert answer.status == 409
    assert "--stream-continuation off" in answer.error["message"]
    assert not any(member.is_drained for member in router.router.fleet)


# The commands.


async def run(*words: str) -> int:
    """A command, while the router continues."""
    return await asyncio.to_thread(main, words)


async def test_the_commands_drain_and_undrain(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, router = await harness.single(admin_port=0, stream_continuation="off")

    def is_drained() -> bool:
        return router.router.fleet.member(router.endpoint(engine)).is_drained

    assert await run("drain", engine.url, "--admin", admin_url(router)) == 0
    assert is_drained()
    assert capsys.readouterr().out == f"decode {engine.url}: draining, 0 in flight\n"
    assert await run("drain", engine.url, "--move", "--admin", admin_url(router)) == 2
    assert "--stream-continuation off" in capsys.readouterr().err
    monkeypatch.setenv("PD_ROUTER_ADMIN_PORT", admin_url(router).rpartition(":")[2])
    assert await run("undrain", engine.url, "--role", "decode") == 0
    assert not is_drained()
    assert capsys.readouterr().out == f"decode {engine.url}: up, 0 in flight\n"


async def test_drain_orders_all_replicas_and_waits_for_all(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.commands.drain.POLL_SECONDS", 0.01)
    engine, busy, client, call = await harness.stream(admin_port=0)
    idle = await harness.router(engine, admin_port=0)
    call.stream(token("a"))
    answer = await client.begin()
    words = ["drain", engine.url]
    for each in (idle, busy):
        words += ["--admin", admin_url(each)]
    assert await run(*words, "--wait", "0.05") == 1
    for each in (idle, busy):
        assert each.router.fleet.member(each.endpoint(engine)).is_drained
    said = f"decode {engine.url}: draining"
    assert capsys.readouterr().out == (
        f"{admin_url(idle)}: {said}, 0 in flight\n{admin_url(busy)}: {said}, 1 in flight\n"
    )
    call.end(DONE)
    await answer.rest()
    assert await run(*words, "--wait", "60") == 0


async def test_drain_lists_the_replicas_that_obeyed_and_refused(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, other = await harness.engine(), await harness.engine()
    routers = [await harness.router(each, admin_port=0) for each in (engine, other, engine)]
    bases = [admin_url(each) for each in routers]
    words = ["drain", engine.url]
    for base in bases:
        words += ["--admin", base]
    assert await run(*words, "--wait", "60") == 2
    said = capsys.readouterr()
    assert f"drain: obeyed by {bases[0]}, {bases[2]}; not by {bases[1]}: There is no" in said.err
    assert said.out == ""
    drained = [m.is_drained for each in routers for m in each.router.fleet]
    assert drained == [True, False, True]


async def test_the_commands_bring_the_key_that_the_router_wants(
    harness: Harness,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    keys, hashed, other = (tmp_path / name for name in ("keys", "hashed", "other"))
    digest = hashlib.sha256(b"a-key-of-operators").hexdigest()
    keys.write_text(f"\ufeff# of operators\nhashed sha256:{'0' * 64}\nops a-key-of-operators\n")
    hashed.write_text(f"ops sha256:{digest}\n")
    other.write_text("ops another-key-of-operators\n")
    engine, router = await harness.single(admin_port=0, admin_key_file=hashed)
    words = ("drain", engine.url, "--admin", admin_url(router))
    for more, said in (
        ((), "--admin-key-file: the router wants a key"),
        (("--admin-key-file", str(other)), "--admin-key-file: the router wants a key, or another"),
        (("--admin-key-file", str(hashed)), "holds hashes only"),
        (("--admin-key-file", str(tmp_path / "none")), "No such file"),
    ):
        assert await run(*words, *more) == 2
        assert said in capsys.readouterr().err
    assert await run(*words, "--admin-key-file", str(keys)) == 0
    assert await run("top", "--once", admin_url(router)) == 1
    assert "--admin-key-file" in capsys.readouterr().out
    monkeypatch.setenv("PD_ROUTER_ADMIN_KEY_FILE", str(keys))
    assert await run("top", "--once", admin_url(router)) == 0
    assert engine.url in capsys.readouterr().out.replace("\n", "")


async def test_drain_waits_until_requests_have_ended(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.commands.drain.POLL_SECONDS", 0.01)
    engine, router, client, call = await harness.stream(admin_port=0)
    call.stream(token("a"))
    answer = await client.begin()
    words = ("drain", engine.url, "--admin", admin_url(router))
    assert await run(*words, "--wait", "0.05") == 1
    assert capsys.readouterr().out == f"decode {engine.url}: draining, 1 in flight\n"
    waiting = asyncio.ensure_future(run(*words, "--wait", "60"))
    await eventually(lambda: router.router.fleet.member(router.endpoint(engine)).is_drained)
    assert not waiting.done()
    call.end(DONE)
    await answer.rest()
    assert await waiting == 0
    assert capsys.readouterr().out == f"decode {engine.url}: draining, 0 in flight\n"


async def test_pause_waits_until_all_requests_have_ended_and_resume_ends_it(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.commands.drain.POLL_SECONDS", 0.01)
    engine, router, client, call = await harness.stream(admin_port=0)
    call.stream(token("a"))
    answer = await client.begin()
    admin = ("--admin", admin_url(router))
    assert await run("pause", *admin, "--wait", "0.05") == 1
    assert capsys.readouterr().out == "all engines: paused, 1 in flight\n"
    call.end(DONE)
    await answer.rest()
    assert await run("pause", *admin, "--role", "decode", "--wait", "60") == 0
    assert capsys.readouterr().out == "decode engines: paused, 0 in flight\n"
    assert await run("resume", *admin) == 0
    assert capsys.readouterr().out == "all engines: resumed, 0 in flight\n"
    assert not router.router.fleet.member(router.endpoint(engine)).is_drained


async def test_a_command_reports_its_failures(
    harness: Harness, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine, router = await harness.single(admin_port=0)
    for words, text in (
        ((engine.url,), "--admin: name the router's admin listener"),
        ((engine.url, "--admin", "http://127.0.0.1:1"), "does not answer: "),
        ((engine.url, "--admin", f"http://127.0.0.1:{router.port}"), "is it the admin listener"),
        (("http://d9", "--admin", admin_url(router)), "There is no engine http://d9"),
    ):
        assert await run("drain", *words) == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "gives no whole HTTP answer: BadStatusLine"),
        (json_reply({})[:-1], "gives no whole HTTP answer: IncompleteRead"),
        (json_reply({"error": {}}, 404)[:-1], "answers 404: is it the admin listener"),
        (json_reply({}), "answers otherwise: is it the admin listener"),
        (json_reply([]), "answers otherwise: is it the admin listener"),
        (json_reply({**ENTRY, "in_flight": "1"}), "answers otherwise: is it the admin listener"),
        (json_reply(b"<html>"), "does not answer: "),
    ],
    ids=["TLS", "cut", "cut error", "no entry", "no object", "no number", "no JSON"],
)
async def test_a_command_reports_a_peer_that_is_no_router(
    harness: Harness, capsys: pytest.CaptureFixture[str], answer: bytes, text: str
) -> None:
    peer = await harness.engine()

    def play(call: Call) -> None:
        call.send(answer)
        call.close()

    peer.answer_all(play)
    assert await run("drain", "http://d0", "--admin", peer.url) == 2
    said = capsys.readouterr().err
    assert text in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("listed", [{}, [], {"engines": {}}, {"engines": [{}]}])
async def test_drain_does_not_take_another_peers_answer_for_an_engine_that_is_gone(
    harness: Harness,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    listed: Any,
) -> None:
    monkeypatch.setattr("router.commands.drain.POLL_SECONDS", 0.01)
    peer = await harness.engine()
    peer.answer_all(lambda call: call.send(json_reply(ENTRY if call.method == b"POST" else listed)))
    assert await run("drain", "http://d0", "--admin", peer.url, "--wait", "60") == 2
    assert "answers otherwise: is it the admin listener" in capsys.readouterr().err


async def with_ranks(harness: Harness) -> tuple[ScriptedEngine, Running]:
    """An engine with two data-parallel ranks, which are endpoints of the router."""
    engine, router = await harness.single(admin_port=0)
    router.router.sync.on_ranks(engine.url, (0, 1))
    router.router.sync.follow()
    assert [m.endpoint.url for m in router.router.fleet] == [f"{engine.url}#{n}" for n in (0, 1)]
    return engine, router


async def streams(engine: ScriptedEngine, router: Running) -> list[tuple[Client, Call]]:
    """Three clients in the middle of streams, divided between the ranks."""
    found = []
    for _ in range(3):
        client = await router.send(COMPLETIONS, STREAM)
        call = await engine.call()
        call.stream(token("a"))
        found.append((client, call))
    assert all(member.view.in_flight for member in router.router.fleet)
    return found


async def test_order_for_ranks_counts_all_their_requests(harness: Harness) -> None:
    engine, router = await with_ranks(harness)
    running = await streams(engine, router)
    told = [await order(router, what, url=engine.url) for what in ("/drain", "/undrain")]
    told.append(await remove(router, f"url={engine.url}"))
    assert [(a.json["url"], a.json["state"], a.json["in_flight"]) for a in told] == [
        (engine.url, "draining", 3),
        (engine.url, "up", 3),
        (engine.url, "draining", 3),
    ]
    for client, call in running:
        call.end(DONE)
        await client.answer()


async def test_an_engine_with_a_draining_rank_is_reported_as_draining(harness: Harness) -> None:
    engine, router = await with_ranks(harness)
    await order(router, "/drain", url=f"{engine.url}#1")
    answer = await order(router, "/undrain", url=engine.url)
    assert (answer.json["state"], answer.json["url"]) == ("draining", engine.url)
    answer = await order(router, "/undrain", url=f"{engine.url}#1")
    assert (answer.json["state"], answer.json["url"]) == ("up", f"{engine.url}#1")


async def test_order_counts_requests_from_before_the_ranks(harness: Harness) -> None:
    engine, router, client, call = await harness.stream(admin_port=0)
    router.router.sync.on_ranks(engine.url, (0, 1))
    for what, state in (("/drain", "draining"), ("/undrain", "up")):
        answer = await order(router, what, url=engine.url)
        assert (answer.json["state"], answer.json["in_flight"]) == (state, 1)
    call.stream(token("a"), DONE)
    call.end()
    await client.answer()


async def test_drain_waits_for_the_requests_of_all_ranks(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.commands.drain.POLL_SECONDS", 0.01)
    engine, router = await with_ranks(harness)
    running = await streams(engine, router)
    words = ("drain", engine.url, "--admin", admin_url(router))
    assert await run(*words, "--wait", "0.05") == 1
    assert capsys.readouterr().out == f"decode {engine.url}: draining, 3 in flight\n"
    waiting = asyncio.ensure_future(run(*words, "--wait", "60"))
    for client, call in running:
        assert not waiting.done()
        call.end(DONE)
        await client.answer()
    assert await waiting == 0
    assert capsys.readouterr().out == f"decode {engine.url}: draining, 0 in flight\n"


async def test_engines_outside_the_operators_networks_cannot_be_added(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0, engine_networks=("10.0.0.0/8",))
    answer = await order(router, "", url="http://169.254.169.254", role="decode")
    assert answer.status == 400
    assert "is in none of --engine-networks" in answer.error["message"]
    answer = await order(router, "", url="http://metadata.internal", role="decode")
    assert "by their address" in answer.error["message"]
    assert (await order(router, "/drain", url=engine.url)).status == 200  # it is of the settings


@pytest.mark.parametrize("url", ["ftp://10.0.0.1", "file:///etc/passwd", "10.0.0.1:8000"])
async def test_only_http_engines_can_be_added(harness: Harness, url: str) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    answer = await order(router, "", url=url, role="decode")
    assert answer.status == 400
    assert "must start with http" in answer.error["message"]


def test_the_blind_share_and_regret_of_an_engine_are_shown() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), stale_after=5.0)
    coverage = fleet.member(D0).prompts.coverage
    [before] = endpoints(fleet)
    assert before["prefix_cache"]["blind_share"] is None
    for known_by, tokens in ((EVENTS, 500), (HISTORY, 250), (NOTHING, 250)):
        coverage.add(tokens, known_by, 10)
    [entry] = orjson.loads(orjson.dumps(endpoints(fleet)))
    told = entry["prefix_cache"]
    assert told["tokens_known_by"] == {"events": 500, "history": 250, "nothing": 250}
    assert told["blind_share"] == 0.25
    assert told["regret_tokens"] == 30
