"""The gRPC server that Envoy asks: its keys, its port, and connections that end without a word."""

import asyncio
import builtins
import os
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from router.net.request.network import Network
from router.settings import SettingsError, load
from router.web.epp.server import EndpointPicker
from tests.net.harness import Harness, eventually
from tests.web.epp.envoy import BODY, Picker, picking, refused


class Link:
    """A connection to a port that can be cut without a word, as when a host loses its power."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pumps: list[asyncio.Task[None]] = []
        self.passed = 0
        """Pieces of data that have been passed on."""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        """Pass nothing on any more, in either direction."""
        for pump in self._pumps:
            pump.cancel()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers = [writer, other_writer]
        self._pumps = [
            asyncio.ensure_future(self._pump(reader, other_writer)),
            asyncio.ensure_future(self._pump(other_reader, writer)),
        ]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            self.passed += 1


async def test_requests_of_a_vanished_envoy_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.web.epp.server.KEEPALIVE_MS", 100)
    # Long enough for an answer on a busy machine, and what the end of this test takes.
    monkeypatch.setattr("router.web.epp.server.KEEPALIVE_TIMEOUT_MS", 5_000)
    async with picking(harness) as picker:
        clients = picker.router.router.clients
        assert clients.picker is not None
        link = Link(clients.picker.port)
        async with link as place, grpc.aio.insecure_channel(place) as channel:
            call = Picker(picker.router, channel).call()
            await call.head()
            await call.told()
            await call.body(BODY)
            await call.told()
            assert any(member.view.in_flight for member in picker.router.router.fleet)
            silent_since = link.passed
            await eventually(
                lambda: link.passed >= silent_since + 10
            )  # it gets the request and answers
            assert clients.network.active
            link.cut()
            await eventually(lambda: not clients.network.active)
        assert not any(member.view.in_flight for member in picker.router.router.fleet)


async def test_keys_are_required(harness: Harness, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("me a-key-with-16-characters\n")
    router = await harness.router(await harness.engine(), epp_port=0, api_key_file=keys)
    assert router.router.clients.picker is not None
    place = f"127.0.0.1:{router.router.clients.picker.port}"
    async with grpc.aio.insecure_channel(place) as channel:
        it = Picker(router, channel)
        call = it.call()
        await call.head()
        await refused(call, 401)
        await call.leave()
        assert (await router.record()).status == 401
        call = it.call()
        await call.head(authorization="Bearer a-key-with-16-characters")
        assert (await call.told()).WhichOneof("response") == "request_headers"
        await call.leave()


def test_grpc_is_loaded_without_its_fork_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end some of the processes that the router starts by SIGSEGV."""
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    load_module, seen = builtins.__import__, []

    def watched(name: str, *others: Any, **more: Any) -> Any:
        if name == "grpc":
            seen.append(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
        return load_module(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", watched)
    EndpointPicker(cast("Network", None), "127.0.0.1", 0)
    assert seen[0] == "0"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"workers": "2"}, "--workers"),
        ({"max_in_flight": "5"}, "--epp-port: Envoy limits requests"),
        ({"port": "9002"}, "--epp-port: it is --port"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load({"decode": "http://d0", "epp_port": "9002", **flags})


async def test_a_port_that_is_taken_is_named(harness: Harness) -> None:
    _engine, taken = await harness.single(epp_port=0)
    assert taken.router.clients.picker is not None
    other = taken.router.clients.picker.__class__(
        taken.router.clients.picker._network, "127.0.0.1", taken.router.clients.picker.port
    )
    with pytest.raises(SettingsError, match="--epp-port: cannot listen"):
        await other.start()
