"""Serialises events for the other worker processes of the host."""

import dataclasses
import io
import pickle
import zlib
from typing import Any

__all__ = ["decode", "encode"]


class _Pickler(pickle.Pickler):
    """Rebuilds dataclasses by calling their classes, because attributes of compiled frozen ones
    cannot be set."""

    def reducer_override(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return type(value), tuple(getattr(value, field.name) for field in fields)
        return NotImplemented


def encode(event: object) -> bytes:
    """The inverse of `decode`."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(event)
    return zlib.compress(out.getvalue(), 1)


def decode(data: bytes) -> Any:
    """Deserialise an event of another process of this program. Never use it for data from
    elsewhere, because it is based on pickle."""
    return pickle.loads(zlib.decompress(data))
