"""What Envoy sends the endpoint picker, over a real gRPC connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import orjson

from router.web.epp import envoy_api
from router.web.epp.messages import BUFFERED, STREAMED
from router.web.epp.server import SERVICE
from tests.net.harness import Harness, Running

pb = envoy_api.messages()

BODY = b'{"model":"m","prompt":"Hello"}'


class Call:
    """One request that an Envoy would ask about."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def head(
        self, request_mode: int = BUFFERED, response_mode: int = STREAMED, **given: Any
    ) -> None:
        """Send the headers. `end`: no body follows."""
        end = given.pop("end", False)
        fields = {":method": "POST", ":path": "/v1/completions"} | {
            name.replace("_", "-"): value for name, value in given.items()
        }
        if "path" in fields:
            fields[":path"] = fields.pop("path")
        if "method" in fields:
            fields[":method"] = fields.pop("method")
        message = pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=headers(fields), end_of_stream=end)
        )
        message.protocol_config.request_body_mode = request_mode
        message.protocol_config.response_body_mode = response_mode
        await self._stream.write(message)

    async def body(self, data: bytes, *, end: bool = True) -> None:
        """Send a piece of the request's body."""
        body = pb.HttpBody(body=data, end_of_stream=end)
        await self._stream.write(pb.ProcessingRequest(request_body=body))

    async def answer_head(self, status: int = 200, *, end: bool = False) -> None:
        """Send the head of the engine's answer."""
        head = pb.HttpHeaders(headers=headers({":status": str(status)}), end_of_stream=end)
        await self._stream.write(pb.ProcessingRequest(response_headers=head))

    async def answer(self, status: int = 200, *, end: bool = False) -> Any:
        """The engine's answer begins."""
        await self.answer_head(status, end=end)
        return await self.told()

    async def told(self) -> Any:
        """The next message of the picker."""
        async with asyncio.timeout(60):
            return await self._stream.read()

    def cancel(self) -> None:
        """Reset the call, as Envoy does when the client leaves."""
        self._stream.cancel()

    async def leave(self) -> None:
        """End the call, as Envoy does when the request is over."""
        await self._stream.done_writing()


def headers(fields: dict[str, str]) -> Any:
    """As Envoy sends them."""
    pairs = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in fields.items()]
    return pb.HeaderMap(headers=pairs)


def set_headers(mutation: Any) -> dict[str, bytes]:
    """The headers that a message sets."""
    return {each.header.key: each.header.raw_value for each in mutation.set_headers}


class Picker:
    """A router with an endpoint picker, and a gRPC connection to it."""

    def __init__(self, router: Running, channel: Any) -> None:
        self.router = router
        self._call = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )

    def call(self) -> Call:
        """A request."""
        return Call(self._call())

    async def asked(self, request_mode: int = BUFFERED, response_mode: int = STREAMED) -> Call:
        """A request for which an engine was chosen."""
        call = self.call()
        await call.head(request_mode, response_mode)
        if request_mode == BUFFERED:
            await call.told()
        await call.body(BODY)
        await call.told()
        if request_mode != BUFFERED:  # headers and body are responded to at once
            await call.told()
        return call


@asynccontextmanager
async def picking(harness: Harness, **settings: Any) -> AsyncIterator[Picker]:
    """A picker in front of two engines."""
    engines = await harness.engine(), await harness.engine()
    router = await harness.router(*engines, epp_port=0, **settings)
    assert router.router.clients.picker is not None
    place = f"127.0.0.1:{router.router.clients.picker.port}"
    async with grpc.aio.insecure_channel(place) as channel:
        yield Picker(router, channel)


async def refused(call: Call, status: int) -> str:
    """The error's message."""
    told = await call.told()
    assert told.WhichOneof("response") == "immediate_response"
    assert told.immediate_response.status.code == status
    error = orjson.loads(told.immediate_response.body)["error"]
    assert error["code"] == status
    assert set_headers(told.immediate_response.headers)["content-type"] == b"application/json"
    return str(error["message"])
