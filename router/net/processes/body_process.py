"""The process that parses large bodies: `python -m router.net.processes.body_process`.

It is started by the router. It reads bodies from standard input and writes answers to standard
output until its input ends. A message is a head of lengths, a JSON document, and byte strings of
these lengths.
"""

import os
import struct
import sys
import traceback
from typing import Any, BinaryIO, Final

import orjson

from router.core.errors import BadRequest
from router.core.request_facts import ImageRule
from router.core.routes import ROUTES
from router.core.routing.large_body import digest
from router.core.wire.media import MediaParts

__all__ = ["ABSENT", "ANSWER", "QUESTION", "main"]

QUESTION: Final = struct.Struct("!QQ")
"""Lengths of the JSON document and of the body."""

ANSWER: Final = struct.Struct("!QQQQ")
"""Lengths of the JSON document, of the client's body without forbidden keys, of the prefill
request's body, and of the prompt's token ids; `ABSENT` for missing ones. The document has the
lengths of the images and the like that follow."""

ABSENT: Final = (1 << 64) - 1

FAILED: Final = (ANSWER.pack(4, ABSENT, ABSENT, ABSENT), b"null")
"""The answer to a body that could not be read because of a bug."""

NICENESS: Final = 10
"""Added to the process's niceness, so that the router itself has precedence on a busy machine."""


def main(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer bodies until standard input ends."""
    while head := questions.read(QUESTION.size):
        length, size = QUESTION.unpack(head)
        asked = orjson.loads(questions.read(length))
        body = questions.read(size)
        try:
            answer = _answer(asked, body)
        except Exception:  # noqa: BLE001 - a client's body must not end the process
            traceback.print_exc()
            answer = FAILED
        answers.writelines(answer)
        answers.flush()


def _answer(asked: dict[str, Any], body: bytes) -> tuple[bytes, ...]:
    raw = prefill = ids = None
    media: MediaParts = {}
    try:
        summary, raw, prefill, ids, media = digest(
            ROUTES[str(asked["route"])],
            str(asked["content_type"]).encode("latin-1"),
            body,
            asked["prefill_from"],
            wants_ids=asked["wants_ids"] is True,
            wants_media=asked["wants_media"] is True,
            image_rules={name: ImageRule(*rule) for name, rule in asked["image_rules"].items()},
        )
    except BadRequest as error:
        summary = {"error": error.message, "param": error.param}
    text = orjson.dumps(summary)
    sizes = (ABSENT if each is None else len(each) for each in (raw, prefill, ids))
    head = ANSWER.pack(len(text), *sizes)
    return head, text, raw or b"", prefill or b"", ids or b"", *media.values()


if __name__ == "__main__":
    os.nice(NICENESS)
    main(sys.stdin.buffer, sys.stdout.buffer)
