"""Compressed bodies of requests are decoded: engines get plain ones."""

import gzip
import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from router.net.request import content_coding
from router.net.request.content_coding import FREE_BYTES, MAX_MEMBERS, BodyDecoder
from tests.net.client import request
from tests.net.engine import chunk, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, MESSAGES, answer_remotely, completion

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    zstd: Any = pytest.importorskip("backports.zstd")

BODY = orjson.dumps(completion("hello"))
PROSE = "".join(f"{n} plus {n} is {n + n}. " for n in range(60_000))
LARGE = orjson.dumps(completion(PROSE))
"""Of 1.3 MB: another process parses it."""
REPEATED = orjson.dumps(completion("x" * FREE_BYTES))
MEDIUM = orjson.dumps(completion(PROSE[:200_000]))
"""Decoded in a thread, and parsed on the event loop."""

COMPRESS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"X-GZIP": gzip.compress,
    b"deflate": zlib.compress,
    b"zstd": zstd.compress,
}
CODINGS = pytest.mark.parametrize("coding", COMPRESS)
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
"""A zstd frame without content (RFC 8878 section 3.1.2)."""


def encoded(coding: bytes) -> tuple[bytes, bytes]:
    """The header."""
    return (b"content-encoding", coding)


def held(router: Running) -> int:
    """Bytes of bodies that it holds."""
    return router.router.handler.network.byte_budget.held


async def refused(
    harness: Harness, coding: bytes, body: bytes, status: int, **settings: Any
) -> str:
    """The message with which a body is refused. No engine sees it, and nothing of it is kept."""
    engine, router = await harness.single(**settings)
    engine.answer_all(lambda call: call.send(json_reply({})))
    answer = await router.ask(COMPLETIONS, body, encoded(coding))
    assert answer.status == status
    assert (engine.seen, held(router)) == (0, 0)
    return str(answer.error["message"])


@CODINGS
@pytest.mark.parametrize("body", [BODY, MEDIUM, LARGE], ids=["small", "medium", "large"])
async def test_an_engine_gets_a_plain_body(harness: Harness, coding: bytes, body: bytes) -> None:
    engine, router = await harness.single()
    client = await router.client()
    for _ in range(2):  # the second time the head is a known one
        await client.send(request(COMPLETIONS, COMPRESS[coding](body), encoded(coding)))
        call = await engine.call()
        assert await call.read() == body
        assert call.values(b"content-encoding") == []
        assert call.values(b"content-length") == [b"%d" % len(body)]
        assert held(router) == len(body)
        call.send(json_reply({}))
        assert (await client.answer()).status == 200
    first, second = await router.records(2)
    assert first.tokens == second.tokens > 0
    assert held(router) == 0


async def test_a_chunked_body_is_decoded(harness: Harness) -> None:
    engine, router = await harness.single()
    data = zstd.compress(BODY)
    chunks = b"".join(map(chunk, (data[:5], data[5:6], data[6:], b"")))
    client = await router.send(
        COMPLETIONS, chunks, encoded(b"zstd"), (b"transfer-encoding", b"chunked")
    )
    call = await engine.call()
    assert await call.read() == BODY
    call.send(json_reply({}))
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(BODY[:9]) + gzip.compress(b"") + gzip.compress(BODY[9:])),
        (b"deflate", zlib.compress(BODY[:9]) + zlib.compress(BODY[9:])),
        (b"zstd", SKIPPABLE + zstd.compress(BODY[:9]) + zstd.compress(BODY[9:]) + SKIPPABLE),
    ],
    ids=["gzip", "deflate", "zstd"],
)
async def test_several_members_are_one_body(harness: Harness, coding: bytes, body: bytes) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, body, encoded(coding))
    call = await engine.call()
    assert await call.read() == BODY
    call.send(json_reply({}))
    assert (await client.answer()).status == 200


async def test_a_decoded_prompt_is_prefilled_remotely(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(decode, prefill=(prefill,))
    answer = await router.ask(COMPLETIONS, zstd.compress(BODY), encoded(b"zstd"))
    assert answer.status == 200
    assert (prefill.seen, decode.seen) == (1, 1)


# Refusals.


@CODINGS
@pytest.mark.parametrize("body", [BODY, LARGE], ids=["small", "large"])
async def test_half_a_body_is_400(harness: Harness, coding: bytes, body: bytes) -> None:
    half = COMPRESS[coding](body)[:-1]
    message = await refused(harness, coding, half, 400)
    assert message == f"The body is not valid {coding.decode().lower()}: it ends early."


async def test_an_empty_body_is_no_member(harness: Harness) -> None:
    assert "ends early" in await refused(harness, b"gzip", b"", 400)


@CODINGS
@pytest.mark.parametrize("behind", [b"\0\0\0\0\0\0\0\0", b'{"prompt":"more"}'])
async def test_bytes_behind_a_member_are_400(
    harness: Harness, coding: bytes, behind: bytes
) -> None:
    assert "corrupt" in await refused(harness, coding, COMPRESS[coding](BODY) + behind, 400)


@CODINGS
async def test_a_plain_body_with_a_coding_is_400(harness: Harness, coding: bytes) -> None:
    assert "corrupt" in await refused(harness, coding, BODY, 400)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_a_wrong_checksum_is_400(harness: Harness, coding: bytes) -> None:
    data = bytearray(COMPRESS[coding](BODY))
    data[-5 if coding == b"gzip" else -1] ^= 1
    assert "corrupt" in await refused(harness, coding, bytes(data), 400)


async def test_a_zstd_window_of_more_than_8_mib_is_400(harness: Harness) -> None:
    options = {zstd.CompressionParameter.window_log: 24}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(BODY) + compressor.flush()
    assert "corrupt" in await refused(harness, b"zstd", data, 400)


async def test_endless_members_are_400(harness: Harness) -> None:
    empty = gzip.compress(b"") * MAX_MEMBERS
    assert "too many parts" in await refused(harness, b"gzip", empty + gzip.compress(BODY), 400)


@CODINGS
async def test_a_body_that_grows_beyond_the_limit_is_413(harness: Harness, coding: bytes) -> None:
    data = COMPRESS[coding](MEDIUM)
    limit = len(MEDIUM) - 1
    message = await refused(harness, coding, data, 413, max_body_bytes=limit)
    assert message == f"The decoded body is larger than {limit} bytes."


@CODINGS
async def test_a_body_of_a_high_ratio_is_413(harness: Harness, coding: bytes) -> None:
    bomb = COMPRESS[coding](REPEATED)
    message = await refused(harness, coding, bomb, 413)
    assert message == "The decoded body is more than 200 times as large."


async def test_a_short_body_of_a_high_ratio_is_decoded(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply({})))
    data = zstd.compress(orjson.dumps(completion("x" * (FREE_BYTES // 2))))
    assert (await router.ask(COMPLETIONS, data, encoded(b"zstd"))).status == 200


async def test_a_decoded_body_without_room_is_503(harness: Harness) -> None:
    limits = {"max_body_bytes": len(LARGE), "max_buffered_bytes": len(LARGE)}
    message = await refused(harness, b"gzip", gzip.compress(LARGE), 503, **limits)
    assert message == "The router holds too many request bodies now."


async def test_the_decoded_body_is_judged_like_a_plain_one(harness: Harness) -> None:
    assert "not valid JSON" in await refused(harness, b"gzip", gzip.compress(b"{"), 400)


async def test_refusals_have_the_shape_of_their_api(harness: Harness) -> None:
    _, router = await harness.single()
    for coding, status in ((b"gzip", 400), (b"br", 415)):
        answer = await router.ask(MESSAGES, b"{}", encoded(coding))
        assert answer.status == status
        assert answer.anthropic_error["type"] == "invalid_request_error"


# Clients that leave.


async def test_a_client_that_leaves_ends_the_decoding(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, go_on = 0, threading.Event()
    read = BodyDecoder.read

    def slow(decoder: BodyDecoder, most: int) -> bytes:
        nonlocal reads
        reads += 1
        assert go_on.wait(60)
        return read(decoder, most)

    monkeypatch.setattr(content_coding.BodyDecoder, "read", slow)
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, zstd.compress(LARGE), encoded(b"zstd"))
    try:
        await eventually(lambda: reads == 1)
        assert held(router) > 0
        client.leave()
        assert (await router.record()).outcome == "client_left"
        assert held(router) == 0
    finally:
        go_on.set()
    await router.is_quiet()
    assert (engine.seen, reads) == (0, 1)
