"""`python -m benchmarks.picker [PICKS]`: the CPU time that requests cost the endpoint picker,
without and with the chunks of their answers. Needs the extra `epp`.

It is asked as Envoy asks: a stream per request on one connection, the whole body in one message,
the answer's head and, for a stream, its chunks. One request at a time: none is helped by others.
"""

import sys
import tempfile
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from benchmarks.system import procfs
from benchmarks.system.processes import Process, free_port
from router.web.epp import envoy_api

pb = envoy_api.messages()

PICKS = 1000
WARM = 200
"""Picks before the first that counts."""

SECONDS = 300.0
"""For a process to start."""

CHUNKS = 20
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
FULL_DUPLEX, STREAMED, NONE = 4, 1, 0
CHUNK = b'data: {"choices":[{"text":"word"}]}\n\n'
BODY = b'{"model":"sim","stream":true,"max_tokens":20,"prompt":"%b"}' % (b"word " * 200)


def headers(fields: dict[str, str]) -> Any:
    """As Envoy sends them."""
    pairs = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in fields.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=pairs))


def messages(response_mode: int, chunks: int) -> list[Any]:
    """Of one request."""
    head = pb.ProcessingRequest(
        request_headers=headers(
            {
                ":method": "POST",
                ":path": "/v1/completions",
                ":authority": "models.example",
                "content-type": "application/json",
                "x-forwarded-proto": "http",
            }
        )
    )
    head.protocol_config.request_body_mode = FULL_DUPLEX
    head.protocol_config.response_body_mode = response_mode
    body = pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY, end_of_stream=True))
    answer = pb.ProcessingRequest(response_headers=headers({":status": "200"}))
    pieces = [
        pb.ProcessingRequest(response_body=pb.HttpBody(body=CHUNK, end_of_stream=n == chunks - 1))
        for n in range(chunks)
    ]
    return [head, body, answer, *pieces]


def ask(call: Any, request: list[Any]) -> None:
    """One request, in step: the next message is sent when the one before is answered."""
    sent: SimpleQueue[Any] = SimpleQueue()
    told = call(iter(sent.get, None))
    for number, message in enumerate(request):
        sent.put(message)
        if number:
            next(told)
        if number == 1:  # the headers are answered with the body
            next(told)
    sent.put(None)
    if any(True for _ in told):
        raise RuntimeError("more answers than messages")


def measure(place: Path, picks: int) -> None:
    """Print what a pick costs, without and with the answer's chunks."""
    engine, http, port = free_port(), free_port(), free_port()
    simulator = (sys.executable, "-m", "router.simulator", "--port", str(engine))
    command = (
        *(sys.executable, "-m", "router.cli", "epp", "--host", "127.0.0.1"),
        *("--port", str(http), "--epp-port", str(port), "--log-level", "warning"),
        *("--decode", f"http://127.0.0.1:{engine}"),
    )
    with Process(simulator, place / "engine.log") as one:
        one.wait_ready(f"http://127.0.0.1:{engine}/health", SECONDS)
        with Process(command, place / "router.log") as router:
            router.wait_ready(f"http://127.0.0.1:{http}/ready", SECONDS)
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_stream(
                    METHOD,
                    request_serializer=pb.ProcessingRequest.SerializeToString,
                    response_deserializer=pb.ProcessingResponse.FromString,
                )
                _report(router.pid, call, picks)


def _report(pid: int, call: Any, picks: int) -> None:
    def milliseconds(request: list[Any]) -> float:
        for _ in range(WARM):
            ask(call, request)
        before = procfs.cpu_s(pid)
        for _ in range(picks):
            ask(call, request)
        return (procfs.cpu_s(pid) - before) / picks * 1000

    pick, whole = milliseconds(messages(NONE, 0)), milliseconds(messages(STREAMED, CHUNKS))
    print(f"CPU time per pick: {pick:.2f} ms")
    print(f"CPU time per chunk of its answer: {(whole - pick) / CHUNKS:.2f} ms")


def main() -> None:
    """Measure in a temporary folder."""
    picks = int(sys.argv[1]) if len(sys.argv) > 1 else PICKS
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), picks)


if __name__ == "__main__":
    main()
