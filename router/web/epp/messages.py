"""Envoy's external processing protocol (envoy.service.ext_proc.v3): what it tells, and the answers.

The classes are made from the part of Envoy's API that is used (`envoy_api`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from router.core.routing.gateway import DESTINATION, SERVED
from router.web.epp import envoy_api

__all__ = ["BUFFERED", "FULL_DUPLEX", "NO_BODY", "STREAMED", "Messages", "Modes"]

NO_BODY: Final = 0
STREAMED: Final = 1
BUFFERED: Final = 2
FULL_DUPLEX: Final = 4
"""ProcessingMode.BodySendMode."""

OVERWRITE: Final = 2
"""HeaderAppendAction OVERWRITE_IF_EXISTS_OR_ADD."""

PIECE_BYTES: Final = 60_000
"""Of a body that is given back: below Envoy's limit of 64 KiB for a message in that mode."""

METADATA: Final = "envoy.lb"
"""The namespace in which Envoy's override_host policy looks for hosts and says which it took."""


class Modes(NamedTuple):
    """How Envoy is configured to pass bodies by."""

    request: int
    response: int


class Messages:
    """Reads requests and makes responses. Raises ImportError, naming the extra to install."""

    def __init__(self) -> None:
        try:
            pb = envoy_api.messages()
        except ImportError as error:
            raise ImportError(
                f"an endpoint picker needs {error.name}: pip install 'pd-router[epp]'"
            ) from None
        self._pb: Any = pb
        self.parse: Any = pb.ProcessingRequest.FromString
        self.serialise: Any = pb.ProcessingResponse.SerializeToString

    # What Envoy tells.

    @staticmethod
    def modes(message: Any) -> Modes:
        """Of the first message of a request."""
        config = message.protocol_config
        return Modes(config.request_body_mode, config.response_body_mode)

    @staticmethod
    def fields(headers: Any) -> dict[bytes, bytes]:
        """Headers by lower-case name."""
        return {
            each.key.encode(): each.raw_value or each.value.encode()
            for each in headers.headers.headers
        }

    @staticmethod
    def served(message: Any) -> str | None:
        """The address of the engine that answers, where Envoy tells (`selected_host_key`, and
        `forwarding_namespaces`)."""
        known = message.metadata_context.filter_metadata
        if METADATA not in known or SERVED.decode() not in known[METADATA].fields:
            return None
        return str(known[METADATA].fields[SERVED.decode()].string_value) or None

    # What it is answered.

    def go_on(self, kind: str) -> Any:
        """Continue; `kind` is the name of what is answered."""
        pb = self._pb
        answer = pb.TrailersResponse() if kind.endswith("trailers") else None
        if answer is None:
            cls = pb.HeadersResponse if kind.endswith("headers") else pb.BodyResponse
            answer = cls(response=pb.CommonResponse())
        return pb.ProcessingResponse(**{kind: answer})

    def with_headers(
        self, kind: str, headers: Mapping[bytes, bytes], *, drop: tuple[bytes, ...] = ()
    ) -> Any:
        """Continue with these headers set, and those in `drop` removed."""
        message = self.go_on(kind)
        common = getattr(message, kind).response
        self._mutate(common.header_mutation, headers)
        common.header_mutation.remove_headers.extend(
            name.decode() for name in drop if name not in headers
        )
        common.clear_route_cache = kind.startswith("request")
        if DESTINATION in headers:
            lb = message.dynamic_metadata.fields[METADATA].struct_value
            addresses = headers[DESTINATION].decode()
            lb.fields[DESTINATION.decode()].string_value = addresses
        return message

    def replace_body(self, message: Any, body: bytes) -> None:
        """Of a whole body: the engine gets another one. Envoy refuses one that differs from the
        length that the headers tell."""
        response = message.request_body.response
        response.body_mutation.body = body
        self._mutate(response.header_mutation, {b"content-length": b"%d" % len(body)})

    def pieces(self, kind: str, body: bytes, *, is_last: bool) -> Iterator[Any]:
        """A body, or a part of one, that goes on as it is."""
        for start in range(0, max(1, len(body)), PIECE_BYTES):
            message = self.go_on(kind)
            end = start + PIECE_BYTES
            streamed = getattr(message, kind).response.body_mutation.streamed_response
            streamed.body = body[start:end]
            streamed.end_of_stream = is_last and end >= len(body)
            yield message

    def answer(self, status: int, body: bytes, headers: Mapping[bytes, bytes]) -> Any:
        """Envoy answers the client itself."""
        message = self._pb.ProcessingResponse()
        message.immediate_response.status.code = status
        message.immediate_response.body = body
        self._mutate(message.immediate_response.headers, headers)
        return message

    def _mutate(self, mutation: Any, headers: Mapping[bytes, bytes]) -> None:
        for name, value in headers.items():
            mutation.set_headers.append(
                self._pb.HeaderValueOption(
                    header=self._pb.HeaderValue(key=name.decode(), raw_value=value),
                    append_action=OVERWRITE,
                )
            )
