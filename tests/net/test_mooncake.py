"""Mooncake's two legs over real sockets, and the engine ids that bootstrap servers list."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from router.core.events import FellBack, Probed
from router.core.judge.member import Member
from router.core.speed.scrapes import Scrapes
from router.core.values import Role, TransferSource
from tests.net.client import Client
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, COMPLETIONS, DONE, OK, RESPONSES, STREAM, completion, token

OFTEN: dict[str, Any] = {"health_check_interval": 0.01, "engine_stats_interval": 0.01}
TWO_RANKS = json_reply(
    b'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_running{engine="1"} 0.0\n'
)
MODEL = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def listed(*names: str) -> bytes:
    """A bootstrap server's answer: an engine with a rank for each id."""
    addresses = {"0": {"0": "tcp://127.0.0.1:1"}}
    ranks = [{"engine_id": name, "worker_addr": addresses} for name in names]
    return json_reply({str(place): rank for place, rank in enumerate(ranks)})


def prefilled(reason: str = "length") -> bytes:
    """A prefill engine's reply, which has no parameters."""
    choice = {"text": "x", "finish_reason": reason}
    return json_reply({"choices": [choice], "kv_transfer_params": None})


class Pool:
    """A prefill engine with its bootstrap server, a decode engine, and a router."""

    def __init__(self, prefill: ScriptedEngine, server: ScriptedEngine, *decode: ScriptedEngine):
        self.prefill, self.server, self.decode = prefill, server, decode

    router: Running

    async def start(self, harness: Harness, **settings: Any) -> "Pool":
        """Start the router, which need not find the engines up."""
        self.router = await harness.router(
            *self.decode,
            prefill=(self.prefill,),
            disagg_connector_type="mooncake",
            mooncake_bootstrap_port=self.server.port,
            ready=False,
            **settings,
        )
        await self.router.usable(*self.decode)
        return self

    @property
    def source(self) -> TransferSource | None:
        """Where decode engines would find the prefill engine."""
        return self._member.transfer_source

    @property
    def error(self) -> str | None:
        """Why the prefill engine is down."""
        return self._member.last_error

    @property
    def scrapes(self) -> Scrapes:
        """Those of the prefill engine."""
        return self._member.scrapes

    @property
    def is_up(self) -> bool:
        """Whether the prefill engine is."""
        return self._member.health.is_up

    @property
    def _member(self) -> Member:
        return self.router.router.fleet.member(self.router.endpoint(self.prefill))

    @property
    def address(self) -> str:
        """The bootstrap server's."""
        return f"http://127.0.0.1:{self.server.port}"

    async def asked(self, body: Any, path: str = COMPLETIONS) -> tuple[Client, Call]:
        """A client's request, prefilled, and as the decode engine has it."""
        self.prefill.answer_all(lambda call: call.send(prefilled()))
        client = await self.router.send(path, body)
        return client, await self.decode[0].call()


async def pool(harness: Harness, *names: str, decodes: int = 1, **settings: Any) -> Pool:
    """A running one whose bootstrap server lists these ids."""
    server = await harness.engine()
    server.query = listed(*(names or ("id-1",)))
    decode = [await harness.engine() for _ in range(decodes)]
    return await Pool(await harness.engine(), server, *decode).start(harness, **settings)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_both_legs_have_one_id_and_the_decode_leg_the_engines(
    harness: Harness, stream: bool, path: str
) -> None:
    there = await pool(harness, stream_continuation="off")
    body = (completion() if path == COMPLETIONS else MODEL) | ({"stream": True} if stream else {})
    client = await there.router.send(path, body)
    first = await there.prefill.call()
    assert there.decode[0].seen == 0, "the legs run in turn"
    asked = first.json
    keep = asked.pop("kv_transfer_params")
    assert asked == body | {"max_tokens": 1, "ignore_eos": True, "stream": False}
    first.send(prefilled())
    second = await there.decode[0].call()
    asked = second.json
    load = asked.pop("kv_transfer_params")
    assert asked == body
    name = keep.pop("transfer_id")
    assert keep == {"do_remote_decode": True, "do_remote_prefill": False}
    assert load == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": there.address,
        "remote_engine_id": "id-1",
        "transfer_id": name,
    }
    if stream:
        second.stream_whole(token("a"), DONE)
        assert (await client.answer()).body == token("a") + DONE
    else:
        second.send(OK)
        assert (await client.answer()).status == 200
    assert (await there.router.record()).fallbacks == ()


async def test_no_two_requests_have_an_id_in_common(harness: Harness) -> None:
    there = await pool(harness)
    seen = []
    there.decode[0].answer_all(lambda call: call.send(OK))
    for _ in range(3):
        client = await there.router.send(COMPLETIONS, completion())
        call = await there.prefill.call()
        seen.append(call.json["kv_transfer_params"]["transfer_id"])
        call.send(prefilled())
        await client.answer()
    assert len(set(seen)) == 3


async def test_a_prefill_that_a_pause_has_ended_is_not_asked_for(harness: Harness) -> None:
    """The decode engine would wait for eight minutes."""
    there = await pool(harness)
    there.prefill.answer_all(lambda call: call.send(prefilled("abort")))
    there.decode[0].answer_all(lambda call: call.send(OK))
    assert (await there.router.ask(COMPLETIONS, completion())).status == 200
    record = await there.router.record()
    assert record.fallbacks == (FellBack(Role.PREFILL, "no_kv_params"),)


async def test_a_decode_engine_that_refuses_leaves_the_id_to_the_next(harness: Harness) -> None:
    there = await pool(harness, decodes=2)
    there.prefill.answer_all(lambda call: call.send(prefilled()))
    seen = []

    def answer(call: Call) -> None:
        seen.append(call.json["kv_transfer_params"]["transfer_id"])
        call.send(OK)

    there.decode[0].refuse()
    for engine in there.decode:
        engine.drop()
        engine.answer_all(answer)
    for _ in range(4):
        assert (await there.router.ask(COMPLETIONS, completion())).status == 200
    assert len(seen) == len(set(seen)) == there.prefill.seen == 4


# The ids.


async def test_a_reload_names_another_bootstrap_server(harness: Harness) -> None:
    there, other = await pool(harness), await harness.engine()
    other.query = listed("id-2")
    settings = there.router.router.settings
    port = {"*": other.port}
    there.router.router.reload(settings.model_copy(update={"mooncake_bootstrap_port": port}))
    await there.router.router.engines.prober.probe_all()
    assert there.source == TransferSource(f"http://127.0.0.1:{other.port}", "id-2")


async def test_a_restarted_engine_has_another_id(harness: Harness) -> None:
    there = await pool(harness, **OFTEN)
    there.prefill.refuse()
    there.prefill.drop()
    await eventually(lambda: not there.is_up and there.source is None)
    there.server.query = listed("id-2")
    await there.prefill.listen()
    await eventually(lambda: there.source == TransferSource(there.address, "id-2"))
    _, call = await there.asked(STREAM)
    assert call.json["kv_transfer_params"]["remote_engine_id"] == "id-2"


async def test_an_engine_that_took_a_place_between_two_probes_is_found_by_the_next(
    harness: Harness,
) -> None:
    there = await pool(harness)
    there.server.query = listed("id-2")
    await there.router.router.engines.prober.probe_all()
    assert there.source == TransferSource(there.address, "id-2")
    assert there.is_up


async def test_an_engine_that_refuses_a_request_has_no_id_until_a_probe_has_found_it(
    harness: Harness,
) -> None:
    """It may be another process before it counts as down."""
    there = await pool(harness)
    there.prefill.refuse()
    there.prefill.drop()
    there.decode[0].answer_all(lambda call: call.send(OK))
    assert (await there.router.ask(COMPLETIONS, completion())).status == 200
    assert there.source is None
    await there.prefill.listen()
    there.server.query = listed("id-2")
    assert (await there.router.ask(COMPLETIONS, completion())).status == 200
    assert there.prefill.seen == 0
    reasons = [each.reason for each in there.router.all(FellBack)]
    assert reasons == ["refused", "no_engine_id"]
    await there.router.router.engines.prober.probe_all()
    assert there.source == TransferSource(there.address, "id-2")


async def test_a_busy_bootstrap_server_does_not_bring_an_engine_down(harness: Harness) -> None:
    there = await pool(harness, **OFTEN | {"health_check_timeout": 0.5})
    await there.router.usable(there.prefill)
    there.server.query = None
    for _ in range(2):  # the second is asked when the first was late
        await there.server.call()
    assert there.source == TransferSource(there.address, "id-1")
    assert there.is_up


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (json_reply({}, 404), "answers 404"),
        (json_reply({}), "lists 0 ranks"),
        (json_reply([]), "is no list of engines"),
        (json_reply({"0": {"engine_id": 5}}), "lists a rank without an engine id"),
        (json_reply({"x": "x" * 300_000}), "it broke the connection off"),
    ],
)
async def test_without_an_id_a_prefill_engine_is_not_up_and_the_cause_is_named(
    harness: Harness, answer: bytes, text: str
) -> None:
    server = await harness.engine()
    server.query = answer
    there = Pool(await harness.engine(), server, await harness.engine())
    await there.start(harness, **OFTEN)
    error = next(each.error for each in there.router.all(Probed) if each.error is not None)
    assert not there.is_up
    assert f"its Mooncake bootstrap server {there.address}/query: " in error
    assert text in error
    assert "see --mooncake-bootstrap-port" in error
    there.decode[0].answer_all(lambda call: call.send(OK))
    assert (await there.router.ask(COMPLETIONS, completion())).status == 200
    record = await there.router.record()
    assert record.fallbacks == (FellBack(Role.PREFILL, "no_prefill_engine"),)
    assert there.prefill.seen == 0
    server.query = listed("id-1")
    await eventually(lambda: there.source == TransferSource(there.address, "id-1"))
    assert there.is_up


async def test_a_bootstrap_server_gets_no_key(harness: Harness) -> None:
    """It has no TLS, and no routes that need one."""
    there = Pool(await harness.engine(), await harness.engine(), await harness.engine())
    there.server.on_call = lambda call: call.send(listed("id-1"))
    await there.start(harness, engine_api_key="secret")
    call = await there.server.call()
    assert call.values(b"authorization") == []
    assert there.source == TransferSource(there.address, "id-1")


async def test_an_engine_with_other_ranks_than_its_server_lists_is_down(harness: Harness) -> None:
    """With an id for each of its ranks missing it would look idle, and attract prompts."""
    there = await pool(harness, "id_dp0", "id_dp1", **OFTEN)
    await eventually(lambda: not there.is_up)
    assert there.error is not None
    assert "lists 2 data-parallel ranks, and the engine's /metrics 1" in there.error
    before = len(there.router.all(Probed))
    await eventually(lambda: len(there.router.all(Probed)) > before + 20)
    endpoint = there.router.endpoint(there.prefill)
    probed = [each for each in there.router.all(Probed)[before:] if each.endpoint == endpoint]
    assert {each.error for each in probed} == {there.error}
    there.server.query = listed("id-1")
    await eventually(lambda: there.is_up)
    assert there.source == TransferSource(there.address, "id-1")


async def test_a_rank_that_joins_is_asked_for_at_once(harness: Harness) -> None:
    """Its health is that of the engine, whose probes did not find its id."""
    server = await harness.engine()
    server.query = listed("id_dp0", "id_dp1")
    there = Pool(await harness.engine(), server, await harness.engine())
    there.prefill.metrics = TWO_RANKS
    await there.start(harness, engine_stats_interval=0.01, health_check_interval=600)
    fleet, names = there.router.router.fleet, {"id_dp0", "id_dp1"}
    await eventually(
        lambda: (
            {
                each.transfer_source and each.transfer_source.engine_id
                for each in fleet.pool(Role.PREFILL)
            }
            == names
        )
    )


async def test_an_engine_that_restarts_with_more_ranks_comes_back(harness: Harness) -> None:
    """What its gauges showed before it was down does not count."""
    there = await pool(harness, **OFTEN)
    await eventually(lambda: there.scrapes.gauges is not None)
    gauges = there.scrapes.gauges
    there.prefill.refuse()
    there.prefill.drop()
    await eventually(lambda: not there.is_up)
    there.scrapes.gauges = gauges  # if no scrape has failed before it was down
    there.prefill.metrics = TWO_RANKS
    there.server.query = listed("id_dp0", "id_dp1")
    await there.prefill.listen()
    fleet = there.router.router.fleet
    await eventually(lambda: len(fleet.pool(Role.PREFILL)) == 2)
    await eventually(lambda: all(each.health.is_up for each in fleet.pool(Role.PREFILL)))


async def test_an_engine_that_leaves_for_its_ranks_is_not_down(harness: Harness) -> None:
    """It has a request in progress, so it stays beside them for a while."""
    there = await pool(harness, **OFTEN)
    client = await there.router.send(COMPLETIONS, completion())
    call = await there.prefill.call()
    there.prefill.metrics = TWO_RANKS
    fleet = there.router.router.fleet
    await eventually(lambda: len(fleet.pool(Role.PREFILL)) == 3)
    there.server.query = listed("id_dp0", "id_dp1")
    [leaving] = [each for each in fleet.pool(Role.PREFILL) if each.entry.leaving_since]
    probes = there.prefill.probes.count(b"/health")
    await eventually(lambda: there.prefill.probes.count(b"/health") > probes + 20)
    assert leaving.health.is_up
    call.send(prefilled())
    (await there.decode[0].call()).send(OK)
    assert (await client.answer()).status == 200


async def test_two_engines_with_one_bootstrap_server_are_not_both_up(
    harness: Harness, tmp_path: Path
) -> None:
    """Decode engines would wait for the prompts of one at the other."""
    server, decode = await harness.engine(), await harness.engine()
    server.query = listed("id-1")
    engines = [await harness.engine() for _ in range(2)]
    names = {"prefill": [each.url for each in engines], "decode": [decode.url]}
    path = tmp_path / "engines.json"
    path.write_bytes(orjson.dumps(names))
    settings: dict[str, Any] = {"engines_file": str(path), "mooncake_bootstrap_port": server.port}
    router = await harness.router(
        disagg_connector_type="mooncake", ready=False, **OFTEN, **settings
    )
    await eventually(lambda: router.router.fleet.pool(Role.PREFILL) != ())
    members = router.router.fleet.pool(Role.PREFILL)
    await eventually(lambda: [each.health.is_up for each in members].count(False) == 1)
    [error] = [each.last_error for each in members if not each.health.is_up]
    assert error is not None
    assert f"bootstrap server http://127.0.0.1:{server.port} is that of http://127.0" in error


async def test_an_engine_with_ranks_needs_them_addressed(harness: Harness) -> None:
    """The engine would choose one by itself, and the id is that of one."""
    server = await harness.engine()
    server.query = listed("id_dp0", "id_dp1")
    there = Pool(await harness.engine(), server, await harness.engine())
    await there.start(harness, data_parallel_ranks="off")
    [error] = [each.error for each in there.router.all(Probed) if each.error is not None]
    assert error == "MooncakeConnector with data-parallel ranks needs --data-parallel-ranks auto"
    assert there.source is None


async def test_a_response_is_not_prefilled_by_an_engine_with_ranks(harness: Harness) -> None:
    """vLLM ignores the header there, and the decode engine would wait at a rank that keeps
    nothing."""
    server = await harness.engine()
    server.query = listed("id_dp0", "id_dp1")
    there = Pool(await harness.engine(), server, await harness.engine())
    there.prefill.metrics = TWO_RANKS
    await there.start(harness, **OFTEN)
    fleet = there.router.router.fleet
    await eventually(lambda: len(fleet.pool(Role.PREFILL)) == 2)
    await eventually(lambda: all(each.health.is_up for each in fleet.pool(Role.PREFILL)))
    client = await there.router.send(RESPONSES, {"model": "m", "input": "hi"})
    call = await there.decode[0].call()
    assert call.json == {"model": "m", "input": "hi"}
    call.send(OK)
    assert (await client.answer()).status == 200
    assert [each.reason for each in there.router.all(FellBack)] == ["unpinned_rank"] * 2
    client, call = await there.asked(completion())
    assert call.json["kv_transfer_params"]["remote_engine_id"] in ("id_dp0", "id_dp1")
    call.send(OK)
    assert (await client.answer()).status == 200


# Clients that leave.


async def test_a_client_that_leaves_during_the_prefill_ends_it(harness: Harness) -> None:
    there = await pool(harness)
    client = await there.router.send(COMPLETIONS, STREAM)
    call = await there.prefill.call()
    client.leave()
    await call.left()
    await there.router.is_quiet()
    assert there.decode[0].seen == 0


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_leaves_during_the_decode_ends_it(
    harness: Harness, has_begun: bool
) -> None:
    there = await pool(harness)
    client, call = await there.asked(STREAM)
    if has_begun:
        call.stream(token("a"))
        await (await client.begin()).until(token("a"))
    client.leave()
    await call.left()
    await there.router.is_quiet()
    assert (await there.router.record()).outcome == "client_left"
