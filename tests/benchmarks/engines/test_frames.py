import httptools
import orjson

from benchmarks.engines import frames
from benchmarks.streaming.sse import EventReader


class Reader:
    """Reads responses as any client would."""

    def __init__(self, data: bytes) -> None:
        self.body, self.complete = b"", 0
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(data)
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete += 1


def stream(tokens: int, with_usage: bool) -> Reader:
    content = b"".join(frames.TOKENS[i % len(frames.TOKENS)] for i in range(tokens - 1))
    tail = frames.stream_tail(with_usage, 250, tokens)
    return Reader(frames.STREAM_HEAD + frames.ROLE + content + tail)


def test_a_stream_is_one_chunked_response_with_the_events_that_clients_expect() -> None:
    for with_usage in (False, True):
        read = stream(5, with_usage)
        events = EventReader().feed(read.body)
        assert (read.status, read.complete, events[-1]) == (200, 1, b"data: [DONE]")
        assert len(events) == frames.stream_events(5, with_usage)


def test_events_are_json_of_vllms_shape_and_size() -> None:
    *events, usage, done, _ = stream(3, True).body.split(b"\n\n")
    bodies = [orjson.loads(event.removeprefix(b"data: ")) for event in events]
    assert [body["choices"][0]["finish_reason"] for body in bodies] == [None, None, None, "length"]
    assert {body["object"] for body in bodies} == {"chat.completion.chunk"}
    counts = orjson.loads(usage.removeprefix(b"data: "))
    assert (counts["choices"], counts["usage"]["completion_tokens"]) == ([], 3)
    assert done == b"data: [DONE]"
    assert all(225 <= len(token) <= 245 for token in frames.TOKENS)


def test_answers_without_a_stream() -> None:
    read = Reader(frames.completion(10, 2, {"remote_block_ids": [[1]]}))
    body = orjson.loads(read.body)
    assert body["usage"]["completion_tokens"] == 2
    assert body["kv_transfer_params"] == {"remote_block_ids": [[1]]}
    assert Reader(frames.failure(400, "no")).status == 400


def test_requests_of_routers_to_engines() -> None:
    assert orjson.loads(Reader(frames.models()).body)["data"][0]["id"] == frames.MODEL
    metrics = Reader(frames.metrics(3)).body.decode()
    assert f'vllm:num_requests_running{{engine="0",model_name="{frames.MODEL}"}} 3.0\n' in metrics
