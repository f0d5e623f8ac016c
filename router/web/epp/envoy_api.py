"""The part of Envoy's external processing API that an endpoint picker uses.

Names and numbers are from envoy/service/ext_proc/v3/external_processor.proto and
envoy/config/core/v3/base.proto (Envoy 1.40); enumerations are read as numbers. The wire format only
depends on the numbers. (`xds-protos` has the whole API, but installs an old opentelemetry-proto
over the existing one, which breaks tracing.)
"""

from types import SimpleNamespace
from typing import Any, Final

__all__ = ["messages"]

PACKAGE: Final = "pd_router.envoy"

BOOL: Final = 8
TEXT: Final = 9
BYTES: Final = 12
NUMBER: Final = 5
"""Scalar types: FieldDescriptorProto.Type."""

STRUCT: Final = "google.protobuf.Struct"

MESSAGES: Final[dict[str, tuple[tuple[int, str, int | str], ...]]] = {
    "HeaderValue": ((1, "key", TEXT), (2, "value", TEXT), (3, "raw_value", BYTES)),
    "HeaderValueOption": ((1, "header", "HeaderValue"), (3, "append_action", NUMBER)),
    "HeaderMap": ((1, "headers", "[HeaderValue]"),),
    "HeaderMutation": ((1, "set_headers", "[HeaderValueOption]"), (2, "remove_headers", "[text]")),
    "Metadata": ((1, "filter_metadata", "{Struct}"),),
    "HttpStatus": ((1, "code", NUMBER),),
    # Envoy's messages.
    "HttpHeaders": ((1, "headers", "HeaderMap"), (3, "end_of_stream", BOOL)),
    "HttpBody": ((1, "body", BYTES), (2, "end_of_stream", BOOL)),
    "HttpTrailers": ((1, "trailers", "HeaderMap"),),
    "ProtocolConfiguration": ((1, "request_body_mode", NUMBER), (2, "response_body_mode", NUMBER)),
    "ProcessingRequest": (
        (2, "request_headers", "HttpHeaders"),
        (3, "response_headers", "HttpHeaders"),
        (4, "request_body", "HttpBody"),
        (5, "response_body", "HttpBody"),
        (6, "request_trailers", "HttpTrailers"),
        (7, "response_trailers", "HttpTrailers"),
        (8, "metadata_context", "Metadata"),
        (11, "protocol_config", "ProtocolConfiguration"),
    ),
    # The responses to Envoy.
    "StreamedBodyResponse": ((1, "body", BYTES), (2, "end_of_stream", BOOL)),
    "BodyMutation": ((1, "body", BYTES), (3, "streamed_response", "StreamedBodyResponse")),
    "CommonResponse": (
        (2, "header_mutation", "HeaderMutation"),
        (3, "body_mutation", "BodyMutation"),
        (5, "clear_route_cache", BOOL),
    ),
    "HeadersResponse": ((1, "response", "CommonResponse"),),
    "BodyResponse": ((1, "response", "CommonResponse"),),
    "TrailersResponse": ((1, "header_mutation", "HeaderMutation"),),
    "ImmediateResponse": (
        (1, "status", "HttpStatus"),
        (2, "headers", "HeaderMutation"),
        (3, "body", BYTES),
    ),
    "ProcessingResponse": (
        (1, "request_headers", "HeadersResponse"),
        (2, "response_headers", "HeadersResponse"),
        (3, "request_body", "BodyResponse"),
        (4, "response_body", "BodyResponse"),
        (5, "request_trailers", "TrailersResponse"),
        (6, "response_trailers", "TrailersResponse"),
        (7, "immediate_response", "ImmediateResponse"),
        (8, "dynamic_metadata", STRUCT),
    ),
}
"""For each message the number, name and type of its fields; brackets mean a list, braces a map from
text."""

ONE_OF: Final = {
    "ProcessingRequest": ("request", range(2, 8)),
    "ProcessingResponse": ("response", range(1, 8)),
    "BodyMutation": ("mutation", (1, 3)),
}
"""Messages of which exactly one of these fields is set (oneof), and the name of the oneof."""


def messages() -> SimpleNamespace:
    """The message classes by name. Raises ImportError without protobuf."""
    from google.protobuf import (  # noqa: PLC0415 - an extra
        descriptor_pb2,
        descriptor_pool,
        message_factory,
        struct_pb2,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name="pd_router/envoy.proto", package=PACKAGE, syntax="proto3"
    )
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        choice, numbers = ONE_OF.get(name, ("", ()))
        if choice:
            message.oneof_decl.add(name=choice)
        for number, field_name, kind in fields:
            field = message.field.add(name=field_name, number=number)
            _set_type(message, field, kind)
            if number in numbers:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            for name in MESSAGES
        }
    )


def _set_type(message: Any, field: Any, kind: int | str) -> None:
    field.label = field.LABEL_OPTIONAL
    if isinstance(kind, int):
        field.type = kind
        return
    if kind.startswith(("[", "{")):
        field.label = field.LABEL_REPEATED
    if kind == "[text]":
        field.type = TEXT
    elif kind.startswith("{"):
        _add_map(message, field)
    else:
        field.type = field.TYPE_MESSAGE
        name = kind.strip("[]")
        field.type_name = f".{name}" if "." in name else f".{PACKAGE}.{name}"


def _add_map(message: Any, field: Any) -> None:
    """Add a map from text to Struct; protobuf encodes a map as a list of pairs."""
    pair = message.nested_type.add(name="FilterMetadataEntry")
    pair.options.map_entry = True
    for number, name in ((1, "key"), (2, "value")):
        pair.field.add(name=name, number=number, label=field.LABEL_OPTIONAL, type=TEXT)
    pair.field[1].type = field.TYPE_MESSAGE
    pair.field[1].type_name = f".{STRUCT}"
    field.type = field.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message.name}.{pair.name}"
