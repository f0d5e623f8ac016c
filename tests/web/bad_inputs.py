"""Bad inputs of clients and what the router answers: `python -m tests.web.bad_inputs --write` makes
the table in docs/bad-inputs.md from what a router really answers."""

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from tests.net.client import request
from tests.net.engine import chunk, json_reply
from tests.net.harness import Harness, Running
from tests.net.payloads import CHAT, COMPLETIONS, EMBEDDINGS
from tests.net.tls import make_certificate

__all__ = ["CASES", "DOCUMENT", "Case", "table", "with_table"]

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "bad-inputs.md"
BEGIN: Final = "<!-- generated: python -m tests.web.bad_inputs --write -->\n"
END: Final = "<!-- end -->\n"

BODY_BYTES: Final = 1 << 20


class Case(NamedTuple):
    """What a client sends."""

    what: str
    data: bytes


def _head(*lines: bytes, start: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"host: a", *lines, b"", b""])


def _json(raw: bytes, path: str = COMPLETIONS) -> bytes:
    return request(path, raw)


CHUNKED = _head(b"content-type: application/json", b"transfer-encoding: chunked")

CASES: Final = (
    Case("not HTTP: TLS, HTTP/2, a word", b"hello\r\n\r\n"),
    Case("HTTP/0.9, HTTP/2.0", b"GET /health HTTP/2.0\r\nhost: a\r\n\r\n"),
    Case("`Content-Length` and `Transfer-Encoding`", CHUNKED[:-2] + b"content-length: 1\r\n\r\n0"),
    Case("two `Content-Length`s", _head(b"content-length: 1", b"content-length: 1") + b"a"),
    Case("`Content-Length: 1, 1`, `+1`, `-1`", _head(b"content-length: +1") + b"a"),
    Case(
        "another `Transfer-Encoding` than `chunked`, or `gzip, chunked`",
        _head(b"transfer-encoding: gzip, chunked"),
    ),
    Case(
        "`Transfer-Encoding` with a space before the colon", _head(b"transfer-encoding : chunked")
    ),
    Case("a folded header line", _head(b"a: b", b" c")),
    Case("a bare CR or LF, or NUL, in the head", _head(b"a: b\nc: d")),
    Case("a chunk size that is no number, or with a sign", CHUNKED + b"+1\r\na\r\n0\r\n\r\n"),
    Case("a chunk that ends with a bare LF", CHUNKED + b"1\na\n0\n\n"),
    Case("a space or a byte over 127 in the target", b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n"),
    Case("`CONNECT`", b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n"),
    Case("more than 64 KiB of head", _head(b"a: " + b"x" * (64 << 10))),
    Case("more than 256 headers", _head(*[b"a: b"] * 256)),
    Case("more than 64 KiB of trailers", CHUNKED + b"0\r\n" + b"a: b\r\n" * 12_000 + b"\r\n"),
    Case("a path that is not on the list", request("/v1/../sleep", {})),
    Case("a listed path, spelled otherwise", request("/v1/completions/", {})),
    Case("another method than POST", request(COMPLETIONS, method="DELETE")),
    Case("no body declared", _head()),
    Case("a declared body above `--max-body-bytes`", _head(b"content-length: 1048577")),
    Case("a chunked body above it", CHUNKED + chunk(b"x" * (BODY_BYTES + 1))),
    Case(
        "a compressed body",
        request(COMPLETIONS, b"\x1f\x8b", (b"content-encoding", b"gzip")),
    ),
    Case("an empty body", _head(b"content-type: application/json", b"content-length: 0")),
    Case("half a JSON document", _json(b'{"prompt": ')),
    Case("JSON that is no object", _json(b"[1]")),
    Case("invalid UTF-8", _json(b'{"prompt": "\xff"}')),
    Case("a lone surrogate", _json(b'{"prompt": "\\ud800"}')),
    Case("`NaN`, `Infinity`", _json(b'{"temperature": NaN}')),
    Case("a byte order mark, UTF-16", _json(b'\xef\xbb\xbf{"prompt": "a"}')),
    Case("nested in more than 1,024 levels", _json(b'{"a":' + b"[" * 1100 + b"]" * 1100 + b"}")),
    Case(
        "nested in more than 254 levels, with KV parameters",
        _json(b'{"kv_transfer_params":1,"a":' + b"[" * 300 + b"]" * 300 + b"}"),
    ),
    Case("`model` is no string", _json(b'{"model": 1, "prompt": "a"}')),
    Case("`model` of more than 512 characters", _json(b'{"model": "' + b"a" * 600 + b'"}')),
    Case("a model that no engine serves", request(CHAT, {"model": "nothing", "messages": []})),
    Case("a route without a prompt, not JSON", request(EMBEDDINGS, b"{")),
)


async def _answer(router: Running, case: Case) -> tuple[int, str]:
    client = await router.client()
    client.writer.write(case.data)
    answer = await client.answer()
    return answer.status, answer.error["message"]


async def table(router: Running) -> str:
    """The table, from what the router answers."""
    rows = ["| input | status | message |", "|---|---|---|"]
    for case in CASES:
        status, message = await _answer(router, case)
        # What follows is the parser's, and differs with its version.
        message = re.sub(r"(not valid JSON):.*", r"\1: ...", message)
        rows.append(f"| {case.what} | {status} | {message} |")
    return "\n".join(rows) + "\n"


def with_table(text: str, made: str) -> str:
    """The document with this table."""
    before, _, rest = text.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return before + BEGIN + made + END + behind


async def started(harness: Harness) -> Running:
    """The router that is asked."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    return await harness.router(
        engine, max_body_bytes=BODY_BYTES, max_buffered_bytes=8 * BODY_BYTES
    )


async def _write() -> None:
    with tempfile.TemporaryDirectory() as place:
        harness = Harness(make_certificate(Path(place)))
        made = await table(await started(harness))
        await harness.close()
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), made))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.web.bad_inputs --write")
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_write())
