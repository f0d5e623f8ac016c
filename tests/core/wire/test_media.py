"""Media: an image counts by its size, which is read from the first bytes of its formats."""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.request_facts import ImageRule
from router.core.wire.media import (
    AUDIO_TOKENS,
    IMAGE_TOKENS,
    MAX_IMAGE_TOKENS,
    MAX_MEDIA_TOKENS,
    VIDEO_TOKENS,
    media_tokens,
)

PIXELS = b"\0" * 3000
"""What follows a header."""


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG file: its signature and the IHDR chunk."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + size + PIXELS


def gif(width: int, height: int) -> bytes:
    """A GIF's screen descriptor."""
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + PIXELS


def jpeg(width: int, height: int, profile: int = 60_001) -> bytes:
    """A JPEG whose size follows a profile of so many bytes, as cameras write it."""
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    exif = b"\xff\xe1" + (profile + 2).to_bytes(2, "big") + b"\xc0" * profile
    return b"\xff\xd8" + exif + b"\xff\xc0\0\x11\x08" + size + PIXELS


def webp(kind: bytes, frame: bytes) -> bytes:
    """A WebP with one chunk."""
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + frame + PIXELS


def lossy(width: int, height: int) -> bytes:
    """A VP8 frame."""
    size = width.to_bytes(2, "little") + height.to_bytes(2, "little")
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + size)


def lossless(width: int, height: int) -> bytes:
    """A VP8L frame, of 14 bits for each side."""
    return webp(b"VP8L", b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"))


def extended(width: int, height: int) -> bytes:
    """A VP8X header, of 24 bits for each side."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", b"\0\0\0\0" + size)


def url(data: bytes, kind: str = "image/any") -> str:
    """A data URL."""
    return f"data:{kind};base64,{b64encode(data).decode()}"


def image(data: bytes) -> dict[str, Any]:
    """A chat's image."""
    return {"type": "image_url", "image_url": {"url": url(data)}}


ANYWHERE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize("part", [image(png(280, 560)), image(png(9, 9)), ANYWHERE])
def test_an_image_may_have_a_fixed_number_of_tokens(part: dict[str, Any]) -> None:
    assert media_tokens(part, ImageRule(256, 28 * 28)) == 256


def test_an_image_may_have_a_token_for_other_pixels() -> None:
    rule = ImageRule(0, 56 * 56)
    assert media_tokens(image(png(280, 560)), rule) == 5 * 10
    assert media_tokens(ANYWHERE, rule) == IMAGE_TOKENS // 4
    recording = {"type": "audio_url", "audio_url": {"url": "https://example.org/a.mp3"}}
    assert media_tokens(recording, ImageRule(256, 1)) == AUDIO_TOKENS


@pytest.mark.parametrize("written", [png, gif, jpeg, lossy, lossless, extended])
def test_an_image_counts_by_its_size(written: Callable[[int, int], bytes]) -> None:
    assert media_tokens(image(written(280, 560))) == 10 * 20
    assert media_tokens(image(written(9, 9))) == 4
    assert media_tokens(image(written(9000, 9000))) == MAX_IMAGE_TOKENS


@given(st.integers(0, 65_533))
def test_a_jpeg_counts_behind_any_profile(profile: int) -> None:
    assert media_tokens(image(jpeg(280, 560, profile))) == 10 * 20


def test_a_jpeg_of_endless_segments_has_no_known_size() -> None:
    segments = b"\xff\xe1\0\x08abcdef" * 100
    assert media_tokens(image(b"\xff\xd8" + segments)) == IMAGE_TOKENS


DATA = b64encode(png(280, 560)).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": url(png(280, 560))},
        {"type": "input_image", "image_url": url(png(280, 560))},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    ],
)
def test_it_does_in_every_api(part: dict[str, Any]) -> None:
    assert media_tokens(part) == 10 * 20


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}},
        {"type": "image_url", "image_url": {"url": "data:image/png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,\u00e9\u00e9\u00e9"}},
        {"type": "image_url", "image_url": {"url": 7}},
        {"type": "input_image", "file_id": "file-1"},
        image(b"\xff\xd8" + b"\xff\xe0\0\0" * 2000),
        image(b"\xff\xd8\xff\xc0"),
        image(png(0, 9)),
        image(b"\x89PNG"),
        image(b"BM" + PIXELS),
    ],
)
def test_an_image_of_unknown_size_counts_as_a_usual_one(part: dict[str, Any]) -> None:
    assert media_tokens(part) == IMAGE_TOKENS


@given(st.binary(max_size=64))
def test_any_bytes_count_as_some_image(data: bytes) -> None:
    for start in (b"", b"\xff\xd8", b"\xff\xd8\xff", b"RIFF1234WEBPVP8"):
        assert 4 <= media_tokens(image(start + data)) <= MAX_IMAGE_TOKENS


WAV = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0" + (16_000).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (WAV + (32_000).to_bytes(4, "little") + b"\0" * 320_000, 25 * 10 + 1),
        (WAV + b"\0" * 160_000, 25 * 10 + 1),
        (WAV + b"\1\0\0\0" + b"\0" * 16_000, 25 * 10 + 1),
        (WAV + b"\1\0\0\0" + b"\0" * 24_000_000, MAX_MEDIA_TOKENS),
        (b"ID3" + b"\0" * 160_000, 25 * 10 + 1),
    ],
)
def test_a_recording_counts_by_its_seconds(data: bytes, expected: int) -> None:
    encoded = b64encode(data).decode()
    part = {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}
    assert media_tokens(part) == expected
    part = {"type": "audio_url", "audio_url": {"url": url(data, "audio/wav")}}
    assert media_tokens(part) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "audio_url", "audio_url": {"url": "https://example.org/a"}}, AUDIO_TOKENS),
        ({"type": "video_url", "video_url": {"url": "https://example.org/a"}}, VIDEO_TOKENS),
        ({"type": "video_url", "video_url": {"url": url(PIXELS)}}, VIDEO_TOKENS),
        ({"type": "refusal", "refusal": "no"}, 0),
        ({"type": ["image_url"]}, 0),
        ({}, 0),
    ],
)
def test_other_parts_count_what_their_kind_does(part: dict[str, Any], expected: int) -> None:
    assert media_tokens(part) == expected
