"""Finds the images, recordings and videos of a prompt, and estimates their tokens without decoding
them.

Models differ: one token per 28 x 28 pixels (Qwen2.5-VL, Mistral), a fixed number per image
(Gemma 3, LLaVA 1.5) or per tile (InternVL). The first is the estimate, unless an operator states
another `ImageRule`; `TokenRatios` corrects it by the usage that engines report for each model. An
image's size is in the first bytes of a data URL. Media behind other URLs are not read, and count
`TOKENS`.
"""

import binascii
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from router.core.request_facts import DEFAULT_IMAGE_RULE, Facts, ImageRule
from router.core.values import CHAT

__all__ = [
    "AUDIO_TOKENS",
    "IMAGE_TOKENS",
    "MAX_IMAGE_TOKENS",
    "MAX_MEDIA_TOKENS",
    "SHAPING",
    "VIDEO_TOKENS",
    "MediaParts",
    "is_fetched",
    "media_parts",
    "media_tokens",
]

MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 4, 4096
"""Bounds of one image: Qwen2.5-VL's least, and Pixtral's most. Models scale larger images down."""

IMAGE_TOKENS: Final = 1024
"""Of an image of unknown size: about 900 x 900 pixels."""

AUDIO_TOKENS: Final = 750
"""Of a recording of unknown length: 30 s."""

AUDIO_TOKENS_PER_SECOND: Final = 25
"""Of Qwen2-Audio; Voxtral has half as many."""

AUDIO_BYTES_PER_SECOND: Final = 16_000
"""Of compressed recordings: 128 kbit/s."""

MIN_WAV_BYTES_PER_SECOND: Final = 1_600
"""Of GSM 06.10, the densest WAV in use. A file can state any rate, and fewer bytes count as more
tokens."""

VIDEO_TOKENS: Final = 4096
"""Of any video: vLLM takes 32 frames, of which Qwen2.5-VL merges 2, and about 256 tokens each."""

MAX_MEDIA_TOKENS: Final = 1 << 18
"""Of a recording, and of all media of a request: the context of Qwen3-VL, which few models exceed.
A client can state any sizes in a few bytes, and what counts as more would keep requests away from
its engine, or drop what is known of the engine's prefix cache."""

MAX_PARTS: Final = 64
"""Most parts of a request that are encoded for it; the next engine encodes the others."""

SHAPING: Final = ("media_io_kwargs", "mm_processor_kwargs")
"""Members of a body that change what is made of its media, and the hash of that."""

MediaParts = dict[int, bytes]
"""Content parts as JSON, by a hash of what is encoded, in the order of the prompt."""

TOKENS: Final = {
    "image_url": IMAGE_TOKENS,
    "input_image": IMAGE_TOKENS,
    "image": IMAGE_TOKENS,
    "input_audio": AUDIO_TOKENS,
    "audio_url": AUDIO_TOKENS,
    "video_url": VIDEO_TOKENS,
}
"""Tokens without a known size, by the type of the part."""

MESSAGES: Final = ("messages", "input", "previous_input_messages")
"""Members of a body with messages."""

URL_MEMBERS: Final = ("image_url", "audio_url", "video_url")
"""Members of a part that hold its URL, and types of parts."""

HEAD: Final = 32
"""Bytes that hold the size of all formats but JPEG, and a WAV's byte rate."""

MAX_SEGMENTS: Final = 64
"""Of a JPEG before its size: profiles and previews take segments of 64 kB."""

FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segment with the size (SOF0 to SOF15)."""


def media_tokens(part: Mapping[str, Any], rule: ImageRule = DEFAULT_IMAGE_RULE) -> int:
    """Estimate the tokens of a content part of any API; 0 for other parts than media."""
    kind = part.get("type")
    otherwise = TOKENS.get(kind, 0) if isinstance(kind, str) else 0
    if otherwise in (0, VIDEO_TOKENS):
        return otherwise
    if otherwise == IMAGE_TOKENS:
        if rule.each:
            return rule.each
        otherwise = IMAGE_TOKENS * DEFAULT_IMAGE_RULE.pixels // rule.pixels or 1
    data = _base64(part)
    if data is None:
        return otherwise
    head = _bytes_at(data, 0, HEAD)
    if otherwise == AUDIO_TOKENS:
        is_wav = head.startswith(b"RIFF") and head[12:16] == b"fmt "
        rate = int.from_bytes(head[28:32], "little") if is_wav else 0
        rate = max(rate, MIN_WAV_BYTES_PER_SECOND) if rate else AUDIO_BYTES_PER_SECOND
        seconds = len(data) * 3 // 4 / rate
        return min(MAX_MEDIA_TOKENS, int(seconds * AUDIO_TOKENS_PER_SECOND) + 1)
    width, height = _jpeg_size(data) if head.startswith(b"\xff\xd8") else _size(head)
    if not width or not height:
        return otherwise
    tokens = width * height // rule.pixels
    return min(MAX_IMAGE_TOKENS, max(MIN_IMAGE_TOKENS, tokens))


def is_fetched(body: Mapping[str, Any]) -> bool:
    """Whether engines fetch media of a prompt: any URL but a data URL, in any API's form.

    A prefill and a decode engine may fetch different things. With a smaller second image the answer
    is wrong, and with a larger one vLLM's decode engine ends (`assert num_decode_blocks <=
    len(prefill_group)`, nixl/base_worker.py).
    """
    rest: list[Any] = [body.get("system"), body.get("content_parts")]
    for name in MESSAGES:
        given = body.get(name)
        if isinstance(given, list):
            rest += [each for each in given if not _is_text(each)]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest.extend([each for each in value if isinstance(each, (dict, list))])
        elif isinstance(value, dict):
            if _has_url(value):
                return True
            rest += (value.get("content"), value.get("output"))
    return False


def _is_text(message: object) -> bool:
    if not isinstance(message, dict) or "output" in message:
        return False
    return isinstance(message.get("content"), str)


def _has_url(part: Mapping[str, Any]) -> bool:
    """Whether a content part has a URL to fetch, as chats, /v1/responses (also tools' outputs),
    /v1/messages (`source`) and /inference/v1/generate (beside the type) write it. A part may have
    several, of which vLLM takes one by the type."""
    held: list[Any] = [part.get(name) for name in URL_MEMBERS]
    if isinstance(source := part.get("source"), dict):
        held.append(source)
    if part.get("type") in URL_MEMBERS:
        held.append(part)
    urls = [each.get("url") if isinstance(each, dict) else each for each in held]
    return any(isinstance(url, str) and url and url[:5].lower() != "data:" for url in urls)


def _base64(part: Mapping[str, Any]) -> str | None:
    """The encoded content of a part, if the request contains it: a data URL, or the `data` of
    /v1/messages and of recordings."""
    for name in ("image_url", "input_audio", "audio_url", "source"):
        held = part.get(name)
        if isinstance(held, dict):
            held = held.get("data") or held.get("url")
            if isinstance(held, str) and not held.startswith(("http:", "https:", "data:")):
                return held
        if isinstance(held, str) and held.startswith("data:"):
            return held.partition(",")[2]
    return None


def _bytes_at(data: str, start: int, count: int) -> bytes:
    """`count` bytes of base64 text from `start` on, of which no others are decoded; fewer at its
    end, none if it is malformed."""
    first = start // 3
    groups = (start + count + 2) // 3 - first
    try:
        decoded = binascii.a2b_base64(data[4 * first : 4 * (first + groups)])
    except ValueError:
        return b""
    skipped = start - 3 * first
    return decoded[skipped : skipped + count] if len(decoded) > skipped else b""


def _size(head: bytes) -> tuple[int, int]:
    """Width and height in pixels of a PNG, GIF or WebP; 0 if unknown."""
    if len(head) < HEAD:
        return 0, 0
    if head.startswith(b"\x89PNG"):
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith(b"GIF8"):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if not head.startswith(b"RIFF") or head[8:12] != b"WEBP":
        return 0, 0
    if head[12:16] == b"VP8 ":
        width, height = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
        return width & 0x3FFF, height & 0x3FFF
    if head[12:16] == b"VP8L":
        packed = int.from_bytes(head[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")


def _jpeg_size(data: str) -> tuple[int, int]:
    """Width and height in pixels of a JPEG: its segments are skipped up to the one with the size. 0
    if unknown."""
    place = 2
    for _ in range(MAX_SEGMENTS):
        segment = _bytes_at(data, place, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            break
        if segment[1] in FRAMES:
            return int.from_bytes(segment[7:9], "big"), int.from_bytes(segment[5:7], "big")
        place += 2 + int.from_bytes(segment[2:4], "big")
    return 0, 0


def media_parts(facts: Facts) -> MediaParts:
    """The images, recordings and videos of a chat, up to `MAX_PARTS`. None of other APIs, and of
    bodies that orjson cannot write."""
    if facts.route.kind is not CHAT:
        return {}
    found: MediaParts = {}
    try:
        shaping = orjson.dumps([facts.body.get(key) for key in SHAPING])
        for part in islice(_media(facts.body.get("messages")), MAX_PARTS):
            given = orjson.dumps(part)
            found[hash((given, shaping))] = given
    except orjson.JSONEncodeError:
        return {}
    return found


def _media(messages: Any) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            # A client's uuid is vLLM's name for the embedding, and could be that of another image.
            if isinstance(part, dict) and part.get("uuid") is None and media_tokens(part):
                yield part
