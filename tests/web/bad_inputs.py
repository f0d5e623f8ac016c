"""Bad inputs of clients and the router's answers: `python -m tests.web.bad_inputs --write` makes
the table in docs/bad-inputs.md from a router's real answers."""

import asyncio
import gzip
import re
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final

import uvloop

from router.net.client.client_connection import ClientConnection
from tests.net.client import Answer, Client, request
from tests.net.engine import Call, chunk, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, COMPLETIONS, EMBEDDINGS, completion
from tests.net.tls import make_certificate

__all__ = ["CASES", "DOCUMENT", "Case", "Routers", "ask", "table", "with_table"]

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "bad-inputs.md"
BEGIN: Final = "<!-- generated: python -m tests.web.bad_inputs --write -->\n"
END: Final = "<!-- end -->\n"

BODY_BYTES: Final = 1 << 20

SPENT_KEY: Final = (b"authorization", b"Bearer sk-fedcba9876543210")
KEYS: Final = b"team-a sk-0123456789abcdef\nteam-b sk-fedcba9876543210 requests=1\n"

# The router of each row.
USUAL: Final = "usual"
GUARDED: Final = "guarded"
"""It requires keys; the key of team-b has used up its limit."""
FULL: Final = "full"
"""Its only place is taken, and there is no queue."""

PASSED_ON: Final = "(passed on as it is; the engine judges)"


class Case:
    """What clients send: each of `inputs` is answered alike. Of those that are `late` nothing more
    comes, until the router's patience ends."""

    def __init__(
        self, what: str, *inputs: bytes, router: str = USUAL, is_late: bool = False
    ) -> None:
        self.what = what
        self.inputs = inputs
        self.router = router
        self.is_late = is_late


def _head(*lines: bytes, start: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"host: a", *lines, b"", b""])


def _get(target: bytes) -> bytes:
    return _head(start=b"GET %b HTTP/1.1" % target)


def _json(*raws: bytes, path: str = COMPLETIONS) -> tuple[bytes, ...]:
    return tuple(request(path, raw) for raw in raws)


def _encoded(coding: bytes, body: bytes) -> bytes:
    return request(COMPLETIONS, body, (b"content-encoding", coding))


def _nested(levels: int, before: bytes = b"") -> bytes:
    return b'{%b"a":%b%b}' % (before, b"[" * levels, b"]" * levels)


CHUNKED = _head(b"content-type: application/json", b"transfer-encoding: chunked")

CLIENT_HELLO: Final = bytes.fromhex("16030100370100003303030000") + b"\x00" * 47
HTTP_2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

CASES: Final = (
    Case("not HTTP: TLS, HTTP/2, a word", CLIENT_HELLO, HTTP_2, b"hello\r\n\r\n"),
    Case(
        "HTTP/0.9, HTTP/2.0",
        *(b"GET /health\r\n\r\n", b"GET /health HTTP/0.9\r\n\r\n"),
        b"GET /health HTTP/2.0\r\nhost: a\r\n\r\n",
    ),
    Case(
        "`Content-Length` and `Transfer-Encoding`",
        CHUNKED[:-2] + b"content-length: 1\r\n\r\n0",
        _head(b"content-length: 5", b"transfer-encoding: chunked") + b"0\r\n\r\n",
    ),
    Case(
        "two `Content-Length`s",
        _head(b"content-length: 1", b"content-length: 1") + b"a",
        _head(b"content-length: 1", b"content-length: 2") + b"aa",
    ),
    Case(
        "`Content-Length: 1, 1`, `+1`, `-1`, `0x1`, of more than 64 bits, or empty",
        *(
            _head(b"content-length: " + length) + b"a"
            for length in (b"1, 1", b"+1", b"-1", b"0x1", b"9" * 20, b"")
        ),
    ),
    Case(
        "another `Transfer-Encoding` than `chunked`, or `gzip, chunked`",
        *(
            _head(b"transfer-encoding: " + coding) + b"0\r\n\r\n"
            for coding in (b"gzip", b"identity", b"xchunked", b"gzip, chunked", b"chunked, gzip")
        ),
        _head(b"transfer-encoding: gzip", b"transfer-encoding: chunked") + b"0\r\n\r\n",
    ),
    Case(
        "`Transfer-Encoding` with a space before the colon",
        *(_head(b"transfer-encoding%b: chunked" % space) for space in (b" ", b"\t")),
    ),
    Case("a folded header line", _head(b"a: b", b" c"), _head(b"a: b", b"\tc")),
    Case(
        "a bare CR or LF, or NUL, in the head",
        *(_head(b"a: b%bc: d" % byte) for byte in (b"\r", b"\n", b"\0")),
    ),
    Case(
        "a chunk size that is no number, or with a sign",
        *(
            CHUNKED + size + b"\r\na\r\n0\r\n\r\n"
            for size in (b"x", b"", b"0x1", b"+1", b"-1", b" 1", b"f" * 17)
        ),
    ),
    Case(
        "a chunk that ends with a bare LF",
        CHUNKED + b"1\na\n0\n\n",
        CHUNKED + b"1\r\na\n0\r\n\r\n",
    ),
    Case("a space or a byte over 127 in the target", _get(b"/a b"), _get(b"/\xc3\xa9")),
    Case("`CONNECT`", b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n"),
    Case(
        "more than 64 KiB of head",
        _head(b"a: " + b"x" * (64 << 10)),
        _head(b"x" * (64 << 10) + b": a"),
        _head(*[b"a: " + b"x" * 1000] * 70),
        _get(b"/" + b"x" * (64 << 10)),
    ),
    Case("more than 256 headers", _head(*[b"a: b"] * 256)),
    Case("more than 64 KiB of trailers", CHUNKED + b"0\r\n" + b"a: b\r\n" * 12_000 + b"\r\n"),
    Case("a head that does not arrive in time", _head()[:-2], b"P", is_late=True),
    Case(
        "a body that does not arrive in time",
        *(_head(b"content-length: 2") + b"{", CHUNKED, CHUNKED + b"2\r\n{"),
        is_late=True,
    ),
    Case("a path that is not on the list", request("/v1/../sleep", {})),
    Case("a listed path, spelled otherwise", request("/v1/completions/", {})),
    Case("another method than POST", request(COMPLETIONS, method="DELETE")),
    Case("no body declared", _head()),
    Case(
        "a declared body above `--max-body-bytes`",
        _head(b"content-length: 1048577"),
        _head(b"content-length: 9223372036854775807"),
    ),
    Case("a chunked body above it", CHUNKED + chunk(b"x" * (BODY_BYTES + 1))),
    Case("a body in an unknown content coding", _encoded(b"br", b"{}")),
    Case(
        "a gzip body that ends early or is empty",
        *(_encoded(b"gzip", body) for body in (gzip.compress(b"{}")[:-1], b"")),
    ),
    Case(
        "a gzip body that is corrupt, plain, or followed by other bytes",
        *(
            _encoded(b"gzip", body)
            for body in (
                gzip.compress(b"{}")[:-4] + b"\xff\0\0\0",
                b"{}",
                gzip.compress(b"{}") + b"\0\0",
            )
        ),
    ),
    Case(
        "a compressed body that decodes to more than `--max-body-bytes`",
        _encoded(b"gzip", gzip.compress(b"x" * (BODY_BYTES + 1))),
        _encoded(b"deflate", zlib.compress(b"x" * (BODY_BYTES + 1))),
    ),
    Case(
        "no API key, where the router asks for one",
        request(COMPLETIONS, completion()),
        request(COMPLETIONS, completion(), (b"authorization", b"Basic dXNlcjpwYXNz")),
        router=GUARDED,
    ),
    Case(
        "an API key that nobody has",
        request(COMPLETIONS, completion(), (b"authorization", b"Bearer sk-0123456789abcdeF")),
        request(COMPLETIONS, completion(), (b"x-api-key", b"sk-0")),
        router=GUARDED,
    ),
    Case(
        "an API key whose limit is reached",
        request(COMPLETIONS, completion(), SPENT_KEY),
        router=GUARDED,
    ),
    Case(
        "more requests than `--max-in-flight` and the queue hold",
        request(COMPLETIONS, completion()),
        router=FULL,
    ),
    Case("an empty body", _head(b"content-type: application/json", b"content-length: 0")),
    Case("half a JSON document", *_json(b'{"prompt": ', b'{"prompt": "a', b'{"prompt": "a"}}')),
    Case("JSON that is no object", *_json(b"[1]", b'"a"', b"1", b"null")),
    Case("invalid UTF-8", *_json(b'{"prompt": "\xff"}', b'{"\xc0\xaf": "a"}')),
    Case("a lone surrogate", *_json(b'{"prompt": "\\ud800"}', b'{"\\udc00": "a"}')),
    Case("`NaN`, `Infinity`", *_json(b'{"temperature": NaN}', b'{"temperature": -Infinity}')),
    Case(
        "a byte order mark, UTF-16",
        *_json(b'\xef\xbb\xbf{"prompt": "a"}', '{"prompt": "a"}'.encode("utf-16")),
    ),
    Case(
        "a number above 1.8e308",
        *_json(b'{"n": 1e309}', b'{"n": -1e999999999}', b'{"n": %b}' % (b"1" * 400)),
    ),
    Case(
        "a whole number of more than 64 bits, or a long fraction",
        *_json(b'{"n": 18446744073709551616}', b'{"n": -1%b}' % (b"0" * 300)),
        *_json(b'{"n": 0.%b1}' % (b"0" * 100_000), b'{"n": 1e-999999999}'),
    ),
    Case(
        "a key that comes twice",
        *_json(b'{"model": "x", "model": "m"}', b'{"prompt": "a", "prompt": ["b", "c"]}'),
        *_json(b'{"stream": true, "stream": false}', b'{"n": {"a": 1, "a": 2}}'),
    ),
    Case("nested in more than 1,024 levels", *_json(_nested(1100), b"[" * 500_000)),
    Case(
        "nested in more than 254 levels, with KV parameters",
        *_json(_nested(300, b'"kv_transfer_params":1,'), _nested(300, b'"ec_transfer_params":1,')),
    ),
    Case(
        "`model` is no string",
        *_json(b'{"model": 1}', b'{"model": ["m"]}', b'{"model": {}}', b'{"model": false}'),
    ),
    Case("`model` of more than 512 characters", *_json(b'{"model": "%b"}' % (b"a" * 513))),
    Case("a model that no engine serves", request(CHAT, {"model": "nothing", "messages": []})),
    Case("a route without a prompt, not JSON", *_json(b"{", b"a=b", path=EMBEDDINGS)),
)


class Routers:
    """The routers of the rows, each with an engine that records requests."""

    def __init__(self, harness: Harness, place: Path) -> None:
        self._harness = harness
        self._place = place
        self._running: dict[str, Running] = {}
        self.passed_on: list[bytes] = []
        """Bodies that came to an engine."""

    async def get(self, name: str) -> Running:
        """The router of this name."""
        if name not in self._running:
            self._running[name] = await getattr(self, f"_{name}")()
        return self._running[name]

    async def _usual(self) -> Running:
        return await self._router(max_body_bytes=BODY_BYTES, max_buffered_bytes=8 * BODY_BYTES)

    async def _guarded(self) -> Running:
        file = self._place / "keys"
        file.write_bytes(KEYS)
        router = await self._router(api_key_file=file)
        assert (await router.ask(COMPLETIONS, completion(), SPENT_KEY)).status == 200
        self.passed_on.clear()
        return router

    async def _full(self) -> Running:
        engine = await self._harness.engine()
        router = await self._harness.router(engine, max_in_flight=1, queue_size=0)
        await (await router.client()).send(request(COMPLETIONS, completion()))
        await engine.call()
        return router

    async def _router(self, **settings: Any) -> Running:
        engine = await self._harness.engine()
        engine.answer_all(self._note)
        return await self._harness.router(engine, **settings)

    def _note(self, call: Call) -> None:
        self.passed_on.append(call.body)
        call.send(json_reply({}))


async def ask(routers: Routers, case: Case, data: bytes) -> Answer:
    """The answer to an input."""
    router = await routers.get(case.router)
    client = await router.client()
    client.writer.write(data)
    if case.is_late:
        await _run_out_of_patience(router, client)
    answer = await client.answer()
    came, routers.passed_on = routers.passed_on, []
    if answer.status == 200:
        assert came == [data.partition(b"\r\n\r\n")[2]], "it is passed on as it is"
    else:
        assert came == [], "no engine is asked"
    return answer


async def _answer(routers: Routers, case: Case, data: bytes) -> tuple[int, str]:
    """The status, and the error's message."""
    answer = await ask(routers, case, data)
    if answer.status == 200:
        return answer.status, PASSED_ON
    # What follows is the parser's, and differs with its version.
    return answer.status, re.sub(r"(not valid JSON):.*", r"\1: ...", answer.error["message"])


async def _run_out_of_patience(router: Running, client: Client) -> None:
    """The time for what is awaited is over, as soon as the router has read what was sent."""
    name = client.writer.get_extra_info("sockname")

    def read() -> list[ClientConnection]:
        mine = [c for c in router.connections if c.transport.get_extra_info("peername") == name]
        return [each for each in mine if each._parser.in_head or each.active is not None]

    await eventually(read)
    read()[0].on_deadline()


async def table(routers: Routers) -> str:
    """The table, from what the routers answer."""
    rows = ["| input | status | message |", "|---|---|---|"]
    for case in CASES:
        answers = {data: await _answer(routers, case, data) for data in case.inputs}
        assert len(set(answers.values())) == 1, (case.what, answers)
        status, message = answers[case.inputs[0]]
        rows.append(f"| {case.what} | {status} | {message} |")
    return "\n".join(rows) + "\n"


def with_table(text: str, made: str) -> str:
    """The document with this table."""
    before, _, rest = text.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return before + BEGIN + made + END + behind


async def _write() -> None:
    with tempfile.TemporaryDirectory() as place:
        harness = Harness(make_certificate(Path(place)))
        made = await table(Routers(harness, Path(place)))
        await harness.close()
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), made))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.web.bad_inputs --write")
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_write())
