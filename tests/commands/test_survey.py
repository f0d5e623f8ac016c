"""The interpretation of an engine's answers and silence."""

import asyncio
import errno
import socket
import ssl
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey

from router.commands.survey import Finding, survey
from router.core.values import Role
from router.net.engine.engine_session import trouble_of
from router.settings import Settings, load
from tests.commands.conftest import TLS, Engine

NOBODY = cast("ConnectionKey", SimpleNamespace(host="d0", port=8000, ssl=True, is_ssl=False))


def settings_for(*decode: str, **others: Any) -> Settings:
    return load({"decode": ",".join(decode), **others})


async def found(engine: Engine, **others: Any) -> Finding:
    [finding] = await survey(settings_for(engine.url, **others))
    return finding


async def test_a_good_engine_is_found_with_version_and_models(start):
    finding = await found(await start(Engine()))
    assert (finding.health, finding.version, finding.advice) == ("ok", "0.32.0", None)
    assert finding.models == {"tiny": 2048}


async def test_engines_are_queried_concurrently(start):
    together = asyncio.Barrier(3)

    async def wait_for_the_others(_: web.Request) -> web.Response:
        await together.wait()
        return web.Response()

    engines = [await start(Engine(**{"/health": wait_for_the_others})) for _ in range(3)]
    findings = await survey(settings_for(*(engine.url for engine in engines)))
    assert [finding.health for finding in findings] == ["ok"] * 3


async def test_findings_stand_in_the_order_of_the_settings(start, closed_url):
    engine = await start(Engine())
    findings = await survey(load({"prefill": closed_url, "decode": engine.url}))
    assert [(f.endpoint.role, f.endpoint.url) for f in findings] == [
        (Role.PREFILL, closed_url),
        (Role.DECODE, engine.url),
    ]


async def test_requests_to_an_engine_have_its_key_and_prefix(start):
    engine = await start(Engine())
    engine.answers = {f"/a{path}": answer for path, answer in engine.answers.items()}
    [finding] = await survey(settings_for(f"{engine.url}/a/", engine_api_key="sk-1"))
    assert finding.health == "ok"
    assert {request.path for request in engine.asked} == {"/a/health", "/a/version", "/a/v1/models"}
    assert {request.headers.get("authorization") for request in engine.asked} == {"Bearer sk-1"}


async def test_without_a_key_none_is_sent(start):
    engine = await start(Engine())
    await found(engine)
    assert {request.headers.get("authorization") for request in engine.asked} == {None}


async def test_a_router_is_named_as_one(start):
    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.2.0", "server": "pd-router"})

    finding = await found(await start(Engine(**{"/version": version})))
    assert finding.health == "a router"
    assert finding.advice == "this is a pd-router, not an engine: name the engines behind it"


async def test_an_engine_without_a_version_is_good(start):
    for answer in (404, "no JSON", {"version": 7}, {}):
        finding = await found(await start(Engine(**{"/version": answer})))
        assert (finding.health, finding.version, finding.advice) == ("ok", None, None)


async def test_an_engine_without_a_health_route_is_good_if_it_lists_models(start):
    finding = await found(await start(Engine(**{"/health": 404})))
    assert (finding.health, finding.advice) == ("ok", None)
    finding = await found(await start(Engine(**{"/health": 404, "/v1/models": 404})))
    assert finding.health == "404"
    assert finding.advice == "/health answers 404: is this URL a vLLM server's base?"


async def test_a_model_without_a_length_is_known(start):
    cards = [{"id": "tiny", "max_model_len": 2048}, {"id": "lora", "max_model_len": None}, 7, {}]
    finding = await found(await start(Engine(**{"/v1/models": {"data": cards}})))
    assert finding.models == {"tiny": 2048, "lora": None}


async def test_a_redirect_is_not_followed(start):
    async def redirect(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/version")

    engine = await start(Engine(**{"/health": redirect}))
    assert (await found(engine)).health == "307"


@pytest.mark.parametrize(
    ("path", "answer", "health", "advice"),
    [
        ("/health", 503, "503", "takes no requests"),
        ("/health", 307, "307", "/health answers 307"),
        ("/health", 401, "401", "/health wants a key: give it by --engine-api-key"),
        ("/v1/models", 401, "401", "/v1/models wants a key: give it by --engine-api-key"),
        ("/v1/models", 403, "403", "wants a key"),
        ("/v1/models", 500, "500", "/v1/models answers 500"),
        ("/v1/models", "[]", "no model list", "is this a vLLM server?"),
        ("/v1/models", "<html>", "no model list", "is this a vLLM server?"),
        ("/v1/models", {"data": 7}, "no model list", "is this a vLLM server?"),
        ("/v1/models", {"data": []}, "no models", "it serves no model"),
    ],
)
async def test_an_answer_that_is_not_right_comes_with_advice(path, answer, health, advice, start):
    finding = await found(await start(Engine(**{path: answer})))
    assert finding.health == health
    assert advice in (finding.advice or "")


async def test_a_refused_key_is_not_requested_again(start):
    finding = await found(await start(Engine(**{"/v1/models": 401})), engine_api_key="sk-1")
    assert finding.advice is not None
    assert "/v1/models refuses the key in --engine-api-key" in finding.advice
    assert "sk-1" not in finding.advice


async def test_nothing_listens(closed_url):
    [finding] = await survey(settings_for(closed_url))
    assert finding.health == "refused"
    assert "nothing listens there" in (finding.advice or "")


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_an_engine_that_does_not_answer_in_time(path, start):
    asked = asyncio.Event()

    async def never(_: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        return web.Response()

    finding = await found(await start(Engine(**{path: never})), health_check_timeout="0.1")
    assert asked.is_set()
    assert finding.health == "timeout"
    assert f"no answer to {path} in 0.1 s" in (finding.advice or "")


async def test_an_engine_that_breaks_off(start):
    async def leave(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    finding = await found(await start(Engine(**{"/health": leave})))
    assert finding.health == "broken"


async def test_an_endless_answer_is_not_read_to_its_end(start, monkeypatch):
    monkeypatch.setattr("router.commands.survey.MAX_ANSWER_BYTES", 1000)
    finding = await found(await start(Engine(**{"/v1/models": "x" * 1001})))
    assert finding.health == "broken"


async def test_a_name_that_does_not_resolve(monkeypatch):
    async def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    [finding] = await survey(settings_for("http://no-such-host:8000"))
    assert finding.health == "unknown host"


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return context


async def test_https_with_a_certificate_that_is_trusted(start):
    engine = await start(Engine(), tls_context())
    assert engine.url.startswith("https://")
    finding = await found(engine, engine_ca_file=str(TLS / "certificate.pem"))
    assert finding.health == "ok"


async def test_https_with_a_certificate_that_is_not(start):
    finding = await found(await start(Engine(), tls_context()))
    assert finding.health == "certificate"
    assert "--engine-ca-file" in (finding.advice or "")


async def test_https_where_http_is_spoken_and_the_other_way_round(start):
    plain, tls = await start(Engine()), await start(Engine(), tls_context())
    findings = await survey(
        settings_for(plain.url.replace("http", "https"), tls.url.replace("https", "http"))
    )
    assert [finding.health for finding in findings] == ["no TLS", "broken"]


@pytest.mark.parametrize(
    ("error", "health"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "unreachable"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, ..."), "unreachable"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "refused"),
    ],
)
def test_a_connection_that_does_not_come_about(error, health):
    assert trouble_of(aiohttp.ClientConnectorError(NOBODY, error)).health == health
