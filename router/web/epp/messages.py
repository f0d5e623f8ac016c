"""Messages of Envoy's external processing protocol (envoy.service.ext_proc.v3), and the responses
to them.

The classes are created from the part of Envoy's API that is used (`envoy_api`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from router.core.gateway.protocol import DESTINATION, SERVED
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
"""Bytes of a returned body per message; in this mode Envoy's limit is 64 KiB."""

METADATA: Final = "envoy.lb"
"""The metadata namespace from which Envoy's override_host policy takes hosts, and in which it
reports the selected one."""


class Modes(NamedTuple):
    """How Envoy is configured to send bodies."""

    request: int
    response: int


class Messages:
    """Parses requests and creates responses. Raises ImportError, whose message names the extra to
    install."""

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

    # Envoy's messages.

    @staticmethod
    def modes(message: Any) -> Modes:
        """The body modes in the first message of a request."""
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
        """The address of the engine that answered, if Envoy reports it (`selected_host_key`, and
        `forwarding_namespaces`)."""
        known = message.metadata_context.filter_metadata
        if METADATA not in known or SERVED.decode() not in known[METADATA].fields:
            return None
        return str(known[METADATA].fields[SERVED.decode()].string_value) or None

    # The responses.

    def go_on(self, kind: str) -> Any:
        """Continue. `kind` is the name of the message that is responded to."""
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
        """Replace the whole body. Envoy rejects a body whose length differs from the headers."""
        response = message.request_body.response
        response.body_mutation.body = body
        self._mutate(response.header_mutation, {b"content-length": b"%d" % len(body)})

    def pieces(self, kind: str, body: bytes, *, is_last: bool) -> Iterator[Any]:
        """Return a body, or part of one, unchanged."""
        for start in range(0, max(1, len(body)), PIECE_BYTES):
            message = self.go_on(kind)
            end = start + PIECE_BYTES
            streamed = getattr(message, kind).response.body_mutation.streamed_response
            streamed.body = body[start:end]
            streamed.end_of_stream = is_last and end >= len(body)
            yield message

    def answer(self, status: int, body: bytes, headers: Mapping[bytes, bytes]) -> Any:
        """Have Envoy answer the client directly."""
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
