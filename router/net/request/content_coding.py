"""Decodes compressed bodies of requests (RFC 9110 section 8.4.1): gzip, zstd, and deflate in zlib's
format.

A body may consist of several gzip members or zstd frames in a row (RFC 1952, RFC 8878). Anything
else behind the first one is an error.
"""

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from router.core.errors import BadRequest, BodyTooLarge, UnsupportedBody
from router.net.request.charges import Charges

__all__ = ["check_coding", "decode"]

SMALL_BYTES: Final = 64 << 10
"""A body of up to this size, compressed and decoded, is decoded on the event loop: 0.2 ms."""

STEP_BYTES: Final = 1 << 20
"""Most bytes that a thread decodes before the client is looked at again: 1 to 4 ms."""

INPUT_BYTES: Final = 64 << 10
"""Bytes that a decompressor is given at a time. It copies those that it has not used."""

MAX_RATIO: Final = 200
"""Decoded over compressed size, above which a body is refused; Apache's default. Chats reach 20,
zlib can reach 1,032 and zstd 30,000."""

FREE_BYTES: Final = 1 << 20
"""Decoded bytes up to which any ratio is accepted: a short test prompt may be one repeated word."""

MAX_MEMBERS: Final = 4096
"""Most members or frames of a body. bgzip's have 64 KiB each. Empty ones would take 3 us each."""

WINDOW_LOG: Final = 23
"""Largest window of a zstd frame, as a power of two: 8 MiB, the limit for HTTP (RFC 9659). The
frame's head alone makes a decompressor reserve it."""


class Decompressor(Protocol):
    """Decodes one member, as `zstd.ZstdDecompressor` does."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether all input is decoded and the member has not ended."""

    @property
    def unused_data(self) -> bytes:
        """The input behind the member's end."""

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        """Decode up to `max_length` bytes."""


class _Inflate:
    """zlib's decompressor with this interface. `wbits`: zlib's code of the format."""

    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = len(piece) < max_length and not self.eof
        return piece


Member = tuple[Decompressor, type[Exception]]
"""What decodes a member, and the error that it raises for corrupt input."""


def _gzip() -> Member:
    return _Inflate(wbits=31), zlib.error


def _deflate() -> Member:
    return _Inflate(wbits=15), zlib.error


def _zstd() -> Member:
    # Few clients send it, and the import takes 4 ms.
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        from backports import zstd  # noqa: PLC0415
    limit: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
    return zstd.ZstdDecompressor(options=limit), zstd.ZstdError


CODINGS: Final[dict[bytes, Callable[[], Member]]] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": _deflate,
    b"zstd": _zstd,
}

ACCEPTED: Final = b"gzip, deflate, zstd"

MAX_NAME: Final = 64
"""Most bytes of an unknown coding's name in an error."""


def check_coding(coding: bytes) -> None:
    """Raise UnsupportedBody for a coding other than these, or none."""
    if coding and coding not in CODINGS:
        name = coding[:MAX_NAME].decode(errors="replace")
        text = f"The content coding {name} is not supported: send gzip, deflate, zstd, or none."
        raise UnsupportedBody(text, ACCEPTED)


class BodyDecoder:
    """Decodes a body that came in `pieces`, to up to `max_bytes`."""

    def __init__(self, coding: bytes, pieces: list[bytes], max_bytes: int) -> None:
        self.input_size = sum(map(len, pieces))
        self.size = 0
        """Bytes that have been decoded."""
        self._coding = coding
        self._max_bytes = max_bytes
        self._max_by_ratio = max(FREE_BYTES, MAX_RATIO * self.input_size)
        self._input = (
            memoryview(piece)[start : start + INPUT_BYTES]
            for piece in pieces
            for start in range(0, len(piece), INPUT_BYTES)
        )
        self._members = 0
        self._begin_member()

    def read(self, most: int) -> bytes:
        """The next bytes: `most`, or fewer at the end. Raises BadRequest or BodyTooLarge."""
        pieces, end = [], self.size + most
        while self.size < end:
            try:
                piece = self._read(end - self.size)
            except self._error:
                raise self._invalid("it is corrupt") from None
            if not piece:
                break
            pieces.append(piece)
            self.size += len(piece)
        if self.size > self._max_bytes:
            raise BodyTooLarge(f"The decoded body is larger than {self._max_bytes} bytes.")
        if self.size > self._max_by_ratio:
            raise BodyTooLarge(f"The decoded body is more than {MAX_RATIO} times as large.")
        return b"".join(pieces)

    def _read(self, most: int) -> bytes:
        """Some bytes; none at the end."""
        data: bytes | memoryview = b""
        while True:
            if self._decompressor.eof:
                data = self._decompressor.unused_data or next(self._input, b"")
                if not data:
                    return b""
                self._begin_member()
            elif self._decompressor.needs_input:
                data = next(self._input, b"")
                if not data:
                    raise self._invalid("it ends early")
            piece = self._decompressor.decompress(data, most)
            if piece:
                return piece
            data = b""

    def _begin_member(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise self._invalid("it has too many parts")
        self._decompressor, self._error = CODINGS[self._coding]()

    def _invalid(self, reason: str) -> BadRequest:
        return BadRequest(f"The body is not valid {self._coding.decode()}: {reason}.", "body")


async def decode(
    coding: bytes, pieces: list[bytes], max_bytes: int, charges: Charges
) -> list[bytes]:
    """Decode a body that came in `pieces`, to up to `max_bytes`, which are charged. Small bodies
    are decoded on the event loop, others in a thread. Raises BadRequest, BodyTooLarge or
    Overloaded."""
    decoder = BodyDecoder(coding, pieces, max_bytes)
    is_small = decoder.input_size <= SMALL_BYTES
    decoded: list[bytes] = []
    while True:
        if is_small and decoder.size < SMALL_BYTES:
            piece = decoder.read(SMALL_BYTES)
        else:
            piece = await asyncio.to_thread(decoder.read, STEP_BYTES)
        if not piece:
            charges.hold_body(decoder.size)
            return decoded
        decoded.append(piece)
        charges.hold_body(decoder.input_size + decoder.size)
