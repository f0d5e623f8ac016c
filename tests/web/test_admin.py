"""What operators read, and on which port."""

import asyncio
import json
from html.parser import HTMLParser

import pytest

from router.settings import SettingsError, load
from tests.net.client import Client
from tests.net.harness import Harness, Running
from tests.net.payloads import COMPLETIONS, DONE, completion, token

FOR_OPERATORS = ["/", "/metrics", "/endpoints", "/docs", "/openapi.json", "/dashboard"]
FOR_PROBES = ["/health", "/ready", "/version"]


def _admin_port(router: Running) -> int:
    assert router.server.admin is not None
    port: int = router.server.admin.socket.getsockname()[1]
    return port


def admin_url(router: Running) -> str:
    """The base URL of the admin listener."""
    return f"http://127.0.0.1:{_admin_port(router)}"


async def admin_client(router: Running) -> Client:
    """A new connection to the admin port."""
    client = await Client.open(_admin_port(router))
    router.clients.append(client)
    return client


@pytest.mark.parametrize("path", FOR_OPERATORS)
async def test_admin_port_hides_public_operations(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    assert (await (await admin_client(router)).get(path)).status == 200
    assert (await (await router.client()).get(path)).status == 404


@pytest.mark.parametrize("path", FOR_OPERATORS)
async def test_without_one_they_are_public(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine())
    assert router.server.admin is None
    assert (await (await router.client()).get(path)).status == 200


@pytest.mark.parametrize("path", FOR_PROBES)
async def test_both_ports_answer_probes(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    assert (await (await admin_client(router)).get(path)).status == 200
    assert (await (await router.client()).get(path)).status == 200


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/models"])
async def test_the_admin_port_serves_no_inference(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    answer = await (await admin_client(router)).ask(path, completion())
    assert answer.status == 404
    assert answer.error["message"] == f"POST {path}: no such route."


async def test_a_body_that_cannot_be_read_is_400_and_not_a_missing_route(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    for body in (b'"\xff"', b"[" * 100_000):
        answer = await (await admin_client(router)).ask("/admin/engines", body)
        assert (answer.status, answer.error["type"]) == (400, "BadRequestError")
        assert "no such route" not in answer.error["message"]


async def test_invalid_targets_are_refused_there_too(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    client = await admin_client(router)
    await client.send(b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await client.answer()).status == 400


async def test_operators_can_look_while_the_router_drains(harness: Harness) -> None:
    _, router, client, call = await harness.stream(admin_port=0)
    call.stream(token("a"))
    await client.begin()
    ending = asyncio.ensure_future(router.server.shutdown())
    await asyncio.sleep(0)
    assert router.server.admin is not None
    port = router.server.admin.socket.getsockname()[1]
    admin = await admin_client(router)
    assert (await admin.get("/ready")).status == 503
    call.end(DONE)
    await ending
    with pytest.raises(ConnectionRefusedError):
        await Client.open(port)


async def test_endpoints_are_for_people_too(harness: Harness) -> None:
    dead, good = await harness.engine(listening=False), await harness.engine()
    router = await harness.router(good, dead, ready=False)
    answer = await (await router.client()).get("/endpoints")
    assert answer.body.startswith(b"[\n  {\n")
    up, starting = answer.json
    assert (up["state"], up["cause"], up["last_error"], up["last_error_at"]) == (
        *("up", None, None, None),
    )
    assert up["version"] == "0.32.0"
    assert up["since"].endswith("Z")
    assert starting["cause"].startswith("nothing listens there")
    assert starting["last_error"] == starting["cause"]
    assert starting["last_error_at"].endswith("Z")


class Links(HTMLParser):
    """What a page loads or points to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href")]


async def test_the_docs_need_nothing_from_elsewhere(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get("/docs")
    page = answer.body.decode()
    links = Links()
    links.feed(page)
    assert links.found == ["openapi.json"]
    for operation in ("GET /metrics", "GET /v1/models", "POST /v1/chat/completions"):
        assert operation in page
    described = await (await router.client()).get("/openapi.json")
    assert "/endpoints" in json.loads(described.body)["paths"]


@pytest.mark.parametrize("admin_port", [None, 0])
async def test_a_browser_at_the_root_finds_the_live_page(
    harness: Harness, admin_port: int | None
) -> None:
    router = await harness.router(await harness.engine(), admin_port=admin_port)
    client = await (router.client() if admin_port is None else admin_client(router))
    links = Links()
    links.feed((await client.get("/")).body.decode())
    assert links.found[:2] == ["dashboard", "docs"]
    for link in links.found:
        assert (await client.get(f"/{link}")).status == 200, link


WRONG = [
    ({"admin_host": "127.0.0.1"}, "--admin-host: needs --admin-port"),
    ({"admin_port": 8000}, "--admin-port: it is --port; take another one"),
]


@pytest.mark.parametrize(("flags", "text"), WRONG)
def test_ports_that_do_not_fit_are_refused(flags: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load({"decode": "http://d0", **flags})


def test_the_admin_host_is_the_public_one_unless_it_is_given() -> None:
    given = {"decode": "http://d0", "host": "::1", "admin_port": 8001}
    assert load(given).listening_admin_host == "::1"
    assert load({**given, "admin_host": "127.0.0.1"}).listening_admin_host == "127.0.0.1"
