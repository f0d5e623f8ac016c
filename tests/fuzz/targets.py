"""The fuzz targets: all parsers of bytes from clients and engines.

A target takes any bytes and asserts what must hold of them. pytest runs each with hypothesis and
with the corpus; `python -m tests.fuzz` with atheris, guided by coverage.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import orjson

from router.core.errors import BadRequest, EngineFailed
from router.core.kv_events.batches import read_batch
from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.lookups import prompt_ids
from router.core.kv_events.ordering import MAX_AHEAD, Apply, EventStream, Replay
from router.core.kv_events.parsing import BadBatch, read_event
from router.core.kv_events.source_blocks import SourceBlocks
from router.core.plans import first_token
from router.core.plans.prefill import body_for_prefill
from router.core.plans.splices import FirstToken, whole_answer
from router.core.prefix.held import HeldPrefixes
from router.core.prefix.keys import prefix_keys
from router.core.replicas import peer_messages
from router.core.routes import ROUTES
from router.core.routing import large_body
from router.core.values import Failure, Reply, RouteKind
from router.core.wire import exposition, sse
from router.core.wire import facts as reading
from router.core.wire.api_errors import engine_error, status_of
from router.core.wire.bootstrap import engine_ids
from router.core.wire.jsonspan import MARK, member, redact, with_member
from router.core.wire.usage import generated_tokens, prompt_tokens
from router.net.engine.answer import AnswerHead, Sink
from router.net.engine.engine_connection import EngineConnection
from router.net.known_heads import KnownHeads
from router.net.kv_events.finder import sources_in
from router.net.kv_ready import KVReadySocket
from router.net.limits.read_limiter import ReadLimiter
from tests.net.wire import Handler, Wire, settled

__all__ = ["TARGETS", "pieces"]

PATHS = sorted(ROUTES)
REFERENCE = b'{"remote_block_ids":[[1,2]],"remote_engine_id":"x"}'


def pieces(data: bytes) -> list[bytes]:
    """`data` cut into reads, at places that it names itself."""
    cuts = sorted({byte % max(1, len(data)) for byte in data[:: max(1, len(data) // 5)]})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


# A client's body.


def facts(data: bytes) -> None:
    """A body is refused with 400, or its facts hold and it can be forwarded, in either process."""
    route = ROUTES[PATHS[data[0] % len(PATHS)]] if data else ROUTES[PATHS[0]]
    raw = data[1:]
    kind = b"multipart/form-data; boundary=b" if raw.startswith(b"--") else b"application/json"
    try:
        found = reading.read(route, kind, raw)
    except BadRequest as error:
        error.body()
        return
    assert found.tokens >= 0
    assert found.sequences >= 1
    keys = prefix_keys(found)
    assert len(keys.keys) == len(keys.ends) <= len(raw)
    assert list(keys.ends) == sorted(keys.ends)
    if found.route.generates:
        _is_forwarded(found.raw, raw)
        _is_prefilled(found)
    apart = large_body.digest(route, kind, raw, 0)
    summary = orjson.loads(orjson.dumps(apart.summary))
    assert (summary["model"], summary["tokens"]) == (found.model, found.tokens)
    assert (apart.raw is None) == (found.raw is raw)
    again = large_body.facts_of(route, b"", summary, pieces(found.raw) or [b""], ())
    assert b"".join((*again.lead, again.raw)).rstrip() == found.raw.rstrip()
    first_token.is_exact(found)


def _is_forwarded(forwarded: bytes, raw: bytes) -> None:
    try:
        given, sent = json.loads(raw), json.loads(forwarded)
    except RecursionError:  # the json module reads fewer levels than orjson
        return
    assert reading.TRANSFER_KEYS.isdisjoint(sent)
    assert {k: v for k, v in sent.items() if k != "vllm_xargs"}.keys() <= given.keys()
    spliced = json.loads(with_member(forwarded, "kv_transfer_params", REFERENCE))
    assert spliced.pop("kv_transfer_params") == json.loads(REFERENCE)
    assert repr(spliced) == repr(sent)  # NaN equals nothing


def _is_prefilled(found: Any) -> None:
    written = body_for_prefill(found)
    if written is None:
        return  # nested too deeply
    body = orjson.loads(written)
    assert body["stream"] is False
    name = "max_output_tokens" if found.route.kind is RouteKind.RESPONSES else "max_tokens"
    assert body[name] == 1


# A client's HTTP.


def client_http(data: bytes) -> None:
    """What the requests are does not depend on the reads in which they come, as long as these are
    below the limits of a single one."""
    data = data[:2048]

    async def run() -> None:
        whole, written, is_closed = await settled(Handler(), data)
        cut, cut_written, cut_is_closed = await settled(Handler(), *pieces(data))
        assert whole == cut
        if whole:
            written, cut_written = _good_answers(written), _good_answers(cut_written)
        assert (written, is_closed) == (cut_written, cut_is_closed)

    asyncio.run(run())


def _good_answers(written: bytes) -> bytes:
    """What is not HTTP ends the connection: with 400 where it comes alone, with the last answer
    where it comes with a request that is not answered yet."""
    return written.partition(b"HTTP/1.1 4")[0].replace(b"connection: close\r\n", b"")


# An engine's HTTP.


class _Sink(Sink):
    """Takes one answer, as the relay would."""

    def __init__(self, *, takes_chunks: bool) -> None:
        self._takes_chunks = takes_chunks
        self.status = 0
        self.body = b""
        self.ends: list[str] = []

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        assert not self.status
        assert not self.ends
        self.status = head.status
        lines = head.lines_for_client()
        assert b"\r\n\r\n" not in lines
        assert lines.count(b"\n") == lines.count(b"\r\n") == lines.count(b"\r")

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        assert self.status
        assert not self.ends
        self.body += data

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        if not self._takes_chunks or not chunk.endswith(b"\r\n"):
            return False
        head, _, rest = chunk.partition(b"\r\n")
        assert int(head, 16) == size
        self.on_data(rest[:size], is_last=False)
        return True

    def on_end(self) -> None:
        self.ends.append("end")

    def on_lost(self, failure: Failure) -> None:
        self.ends.append("lost")


class _Pool:
    def __init__(self) -> None:
        self.known_heads: KnownHeads[AnswerHead] = KnownHeads(8)
        self.read_limiter = ReadLimiter(1 << 30)
        self.kept = 0

    def put(self, _: EngineConnection) -> None:
        self.kept += 1

    def forget(self, _: EngineConnection) -> None: ...


class _EngineWire(Wire):
    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)


def _answered(reads: list[bytes], *, takes_chunks: bool) -> tuple[int, bytes, list[str]]:
    pool, wire = _Pool(), _EngineWire()
    connection = EngineConnection(pool)
    connection.connection_made(wire)  # type: ignore[arg-type]
    sink = _Sink(takes_chunks=takes_chunks)
    connection.start(b"POST / HTTP/1.1\r\n\r\n", b"", sink)
    for read in reads:
        if wire.is_closed or sink.ends:
            break
        connection.data_received(read)
    if not wire.is_closed and not sink.ends:
        wire.close()
        connection.connection_lost(None)
    assert len(sink.ends) == 1
    return sink.status, sink.body, sink.ends


def engine_http(data: bytes) -> None:
    """What an answer is does not depend on the reads in which it comes, nor on the short ways
    around the parser; it ends once."""
    whole = _answered([data] if data else [], takes_chunks=False)
    single = _answered([data[n : n + 1] for n in range(len(data))], takes_chunks=False)
    assert single == whole
    lines = data.split(b"\r\n")
    reads = [line + b"\r\n" for line in lines[:-1]] + [lines[-1]]
    pairs = [b"".join(reads[n : n + 2]) for n in range(0, len(reads), 2)]
    for cut in (pieces(data), pairs, reads):
        assert _answered([each for each in cut if each], takes_chunks=True) == whole


# An engine's events and JSON.


def sse_stream(data: bytes) -> None:
    """Events come out as they went in, whole, however they were cut."""
    splitter = sse.EventSplitter()
    out = [splitter.feed(piece) for piece in pieces(data)]
    for whole in out:
        assert not whole or whole.endswith((b"\n\n", b"\n\r\n"))
    assert b"".join(out) + splitter.rest() == data
    for whole in out:
        for event in sse.events(whole):
            sse.event_kind(event)
            sse.data_of(event)
            assert 400 <= status_of(event) <= 599
            assert sse.keep_alive(event) in (b"", event, b": ping\n\n")
        clean = redact(whole)
        assert len(clean) <= len(whole)
        FirstToken("x").events(clean)
    for number in (generated_tokens(data), prompt_tokens(data)):
        assert 0 <= number < 10**9
    prompt_ids(data)


def engine_json(data: bytes) -> None:
    """An engine's reply is understood, or is a fault of the engine: never one of the router."""
    clean = redact(data)
    if _is_object(data) and MARK in data:
        _is_redacted(data, clean)
    try:
        reference = member(data, "kv_transfer_params")
    except ValueError:
        reference = None
    if reference is not None:
        assert repr(json.loads(reference)) == repr(json.loads(data)["kv_transfer_params"])
    assert len(engine_error("decode", 400, data)) < 300
    FirstToken("x").body(data)
    sources_in(data, "http://127.0.0.1:1")
    with contextlib.suppress(ValueError):
        assert engine_ids(data)
    reply = Reply(200, (), data)
    first_token.read_tokens(reply)
    sampled = first_token.read_sampled(reply)
    for stream in (False, True):
        body = {"prompt": "x", "stream": stream, "stream_options": {"include_usage": True}}
        asked = reading.read(ROUTES["/v1/completions"], b"application/json", orjson.dumps(body))
        if sampled is not None:
            try:
                whole_answer(asked, reply)
            except EngineFailed:
                assert data.count(b"[") + data.count(b"{") > 250


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False


def _is_redacted(data: bytes, clean: bytes) -> None:
    """What is left is JSON, without the members in their plain spelling, else as it was."""
    orjson.loads(clean)
    assert redact(clean) == clean
    for name in _names(orjson.loads(clean)):
        if name in reading.TRANSFER_KEYS:  # with an escape in its name
            assert b"\\" in data


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _names(each)
    elif isinstance(value, list):
        for each in value:
            yield from _names(each)


def metrics(data: bytes) -> None:
    """Gauges are numbers that an engine can have, or absent."""
    gauges = exposition.read(data)
    exposition.shortened(data * (1 + exposition.MAX_LORA_SERIES))
    for number in (gauges.running, gauges.waiting, gauges.kv_usage, gauges.cache_tokens):
        assert number is None or 0 <= number < float("inf")


# KV-cache events.


def kv_events(data: bytes) -> None:
    """A message is refused as a bad batch, or applied within the source's limit."""
    blocks = SourceBlocks(BlockIndex())
    for message in data.split(b"\xff\xff")[:8]:
        try:
            for raw in read_batch(msgpack, message):
                for event in () if raw is None else read_event(raw):
                    blocks.apply(event)
        except (BadBatch, RecursionError):
            blocks.clear()
        assert 0 <= blocks.held <= blocks.limit
    blocks.leave()


def kv_stream(data: bytes) -> None:
    """Batches are applied in order, each once, for any arrival order."""
    stream = EventStream(can_replay=True)
    applied: list[int] = []
    for at in range(0, len(data) - 1, 2):
        seq = data[at + 1] if data[at] & 8 else (1 << 64) - 1 - data[at + 1]
        payload = seq.to_bytes(8, "big")
        steps = (
            stream.connected,
            lambda seq=seq, payload=payload: stream.live(seq, payload),
            lambda seq=seq, payload=payload: stream.replayed(seq, payload),
            stream.replay_ended,
        )[data[at] % 4]()
        for step in steps:
            if isinstance(step, Apply):
                number = int.from_bytes(step.payload, "big")
                assert not applied or number == applied[-1] + 1
                applied.append(number)
            else:
                applied = [] if not isinstance(step, Replay) else applied
                assert not isinstance(step, Replay) or 0 <= step.start < 1 << 64
        assert len(stream._ahead) <= MAX_AHEAD


def kv_ready(data: bytes) -> None:
    """A notification names a transfer, or is ignored."""
    socket = KVReadySocket("tcp://127.0.0.1:*")
    socket._take([data])
    assert socket.received + socket.ignored == 1


# Reports of a sibling replica.


def peer_line(data: bytes) -> None:
    """A line is refused, or can be written again unchanged and stored in an index."""
    try:
        told = peer_messages.decode_message(data)
    except ValueError:
        return
    if isinstance(told, peer_messages.PeerReport):
        assert peer_messages.decode_message(peer_messages.encode_report(told)) == told
        return
    index = HeldPrefixes()
    for held in told.held:
        for prefix in held.prefixes:
            index.hold(prefix)
            assert index.match(prefix) <= prefix.ends[-1]
    assert index.tokens <= index.capacity


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        facts,
        client_http,
        engine_http,
        sse_stream,
        engine_json,
        metrics,
        kv_events,
        kv_stream,
        kv_ready,
        peer_line,
    )
}
