"""nginx in front and uvicorn behind: three parsers see the same requests.

nginx marks every request that it sees. A request that reaches the engine without the mark was
hidden in the body of another one: nginx took it for a body, the router or uvicorn for a request.
"""

import asyncio
import getpass
import grp
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import uvicorn

from tests.net.client import SECONDS, Client
from tests.net.harness import Harness, eventually
from tests.net.payloads import completion
from tests.net.smuggled import NAMED, ODD, SHAPES, cl_te, te_cl
from tests.ports import own_port

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
AT_ONCE = 40

CONFIGURATION = """\
{user}daemon off;
worker_processes 1;
pid {place}/nginx.pid;
error_log {place}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {place}/body;
  proxy_temp_path {place}/proxy;
  fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi;
  scgi_temp_path {place}/scgi;
  client_header_timeout 1s;
  client_body_timeout 1s;
  keepalive_timeout 2s;
  lingering_timeout 1s;
  ignore_invalid_headers off;
  underscores_in_headers on;
  upstream router {{
    server 127.0.0.1:{router};
    keepalive 16;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://router;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Front $request_id;
      proxy_request_buffering {buffering};
      proxy_buffering off;
    }}
  }}
}}
"""


class Back:
    """vLLM's front end without vLLM: uvicorn with h11, which records requests."""

    def __init__(self) -> None:
        self.fronts: list[list[bytes]] = []
        config = uvicorn.Config(
            self._app,
            host="127.0.0.1",
            port=0,
            http="h11",
            interface="asgi3",
            lifespan="off",
            log_level="critical",
        )
        self._server = uvicorn.Server(config)

    async def start(self) -> None:
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup()
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        self._server.force_exit = True
        await self._server.shutdown()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "POST":
            self.fronts.append([value for name, value in scope["headers"] if name == b"x-front"])
            orjson.loads(body)  # the router forwards nothing else to this route
        answer = b'{"data":[{"id":"m"}]}'
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def _nginx(place: Path, router: int, buffering: str) -> AsyncIterator[int]:
    user = ""
    if os.geteuid() == 0:  # its worker would run as nobody, which cannot read our directory
        user = f"user {getpass.getuser()} {grp.getgrgid(os.getegid()).gr_name};\n"
    port = own_port()
    path = place / "nginx.conf"
    path.write_text(
        CONFIGURATION.format(user=user, place=place, router=router, port=port, buffering=buffering)
    )
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(place), "-e", "stderr", "-c", str(path)
    )

    async def listens() -> bool:
        try:
            (await Client.open(port)).leave()
        except ConnectionRefusedError:
            return False
        return True

    try:
        while not await listens():
            assert process.returncode is None
            await asyncio.sleep(0.01)
        yield port
    finally:
        process.terminate()
        await process.wait()


def _post(prompt: str, *lines: bytes, close: bool = False) -> bytes:
    body = orjson.dumps(completion(prompt))
    head = [b"POST /v1/completions HTTP/1.1", b"Host: a", b"Content-Type: application/json", *lines]
    head += [b"Content-Length: %d" % len(body), *([b"Connection: close"] if close else [])]
    return b"\r\n".join([*head, b"", b""]) + body


HIDDEN = _post("hidden")
LAST = _post("last", close=True)


def _cl_te(spelling: bytes) -> bytes:
    return cl_te(b"/v1/completions", spelling, HIDDEN)


def _te_cl(spelling: bytes) -> bytes:
    return te_cl(b"/v1/completions", spelling, HIDDEN)


def _chunked(chunks: bytes) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + chunks + HIDDEN


SPELLINGS = [*NAMED.values(), *(shape % byte for shape in SHAPES for byte in ODD[::6])]
BODY = orjson.dumps(completion("chunks"))
ONE_CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
ATTACKS = [
    *(framed(spelling) for framed in (_cl_te, _te_cl) for spelling in SPELLINGS),
    *(
        _chunked(chunks)
        for chunks in (
            ONE_CHUNK + b"0\r\n\r\n",
            ONE_CHUNK + b"0\r\nContent-Length: 5\r\n\r\n",
            ONE_CHUNK + b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
            ONE_CHUNK.replace(b"\r\n", b";a=b\r\n", 1) + b"0;c\r\n\r\n",
            ONE_CHUNK.replace(b"\r\n", b'; a="\n"\r\n', 1) + b"0\r\n\r\n",
            ONE_CHUNK.replace(b"\r\n", b"\n", 1) + b"0\r\n\r\n",
            ONE_CHUNK + b"0\n\n",
            ONE_CHUNK + b"00000000000000000\r\n\r\n",
            b"0" * 20 + ONE_CHUNK + b"0\r\n\r\n",
        )
    ),
    _post("a", b"Connection: close, Content-Length, Host") + HIDDEN,
    _post("a", b"Connection: X-Front", b"X-Front: mine") + HIDDEN,
    _post("a", b"Expect: 100-continue") + HIDDEN,
    _post("a", b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings") + HIDDEN,
    _post("a").replace(b"/v1/completions", b"http://other/v1/completions") + HIDDEN,
    _post("a").replace(b"POST ", b"POST  ") + HIDDEN,
    HIDDEN * 20,
]


async def _attack(port: int, data: bytes) -> bytes:
    client = await Client.open(port)
    read = b""
    with suppress(ConnectionError):
        await client.send(data + LAST)
        async with asyncio.timeout(SECONDS):
            while more := await client.reader.read(1 << 16):
                read += more
    client.leave()
    return read


@pytest.mark.skipif(not os.access(NGINX, os.X_OK), reason="needs nginx")
@pytest.mark.parametrize("buffering", ["on", "off"])
async def test_no_request_is_hidden_from_nginx(
    harness: Harness, tmp_path: Path, buffering: str
) -> None:
    back = Back()
    await back.start()
    engine: Any = SimpleNamespace(url=back.url)
    router = await harness.router(engine)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(data: bytes) -> bytes:
        async with places:
            return await _attack(port, data)

    async with _nginx(tmp_path, router.port, buffering) as port:
        read = await asyncio.gather(*map(one, ATTACKS))
    await eventually(lambda: not router.router.handler.active)
    await back.stop()
    assert all(answer.startswith(b"HTTP/1.1 ") for answer in read)
    assert len(back.fronts) >= len(ATTACKS) // 4  # the attacks are not all refused at the door
    assert [front for front in back.fronts if len(front) != 1] == []
    assert len({front[0] for front in back.fronts}) == len(back.fronts)
