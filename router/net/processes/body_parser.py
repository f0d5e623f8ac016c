"""Has large bodies parsed by another process, one at a time.

The process is started for the first large body, and again if it has died. It ends with the router,
because its standard input is closed then.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from router.core.errors import BadRequest, InternalError, Overloaded, RouterError
from router.core.request_facts import Facts, ImageRules
from router.core.routing.large_body import facts_of
from router.core.values import Route
from router.net.exhaustion import check_descriptors, is_exhaustion, remedy
from router.net.processes.body_process import ABSENT, ANSWER, QUESTION

__all__ = ["BodyParser"]

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 << 10
"""Bytes of a body that are read from the process at a time, like the event loop's reads."""

SECONDS: Final = 60.0
"""Time-out for one body. The worst accepted bodies take a few seconds."""

DESCRIPTORS: Final = 16
"""Free file descriptors that are required before the process is started; that takes nine for a
moment. With fewer, uvloop may report errno -1 and leak those that it has opened."""


@dataclass(eq=False, slots=True)
class _Question:
    route: Route
    content_type: bytes
    query: bytes
    pieces: list[bytes]
    answer: asyncio.Future[Facts]


class BodyParser:
    """The parser process and the queue of bodies for it. `prefill_from`: estimated tokens from
    which on a request may be prefilled remotely; None without prefill engines. `wants_ids`: whether
    token ids are needed for KV-cache events. `wants_media`: whether encode engines may get the
    images now."""

    def __init__(
        self,
        prefill_from: int | None,
        *,
        wants_ids: bool = False,
        wants_media: Callable[[], bool] = lambda: False,
    ) -> None:
        self.prefill_from = prefill_from
        self.image_rules: ImageRules = {}
        """The tokens of images, by model, as operators state them."""
        self._wants_ids = wants_ids
        self._wants_media = wants_media
        self._questions: dict[_Question, None] = {}
        """Queued bodies, in the order of arrival."""
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None if the process is not running."""
        return None if self._process is None else self._process.pid

    async def read(
        self, route: Route, content_type: bytes, pieces: list[bytes], query: bytes = b""
    ) -> Facts:
        """Parse a body that came in `pieces`. Raises BadRequest, as `facts.read` does.

        If the caller is cancelled, its body is dropped, unless it is being parsed already.
        """
        loop = asyncio.get_running_loop()
        question = _Question(route, content_type, query, pieces, loop.create_future())
        del pieces  # a traceback would keep them alive
        self._questions[question] = None
        if self._task is None:
            self._task = loop.create_task(self._work())
        try:
            return await question.answer
        finally:
            self._questions.pop(question, None)
            question.pieces = []
            del question  # breaks the cycle of error, frame, question and answer

    async def close(self) -> None:
        """End the process and cancel all that wait for it."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end_process()

    async def _work(self) -> None:
        """Parse queued bodies until there are none."""
        try:
            while self._questions:
                question = next(iter(self._questions))
                del self._questions[question]
                if not question.answer.done():
                    await self._answer(question)
        finally:
            self._task = None
            for question in self._questions:
                question.answer.cancel()
            self._questions.clear()

    async def _answer(self, question: _Question) -> None:
        answer = question.answer
        try:
            async with asyncio.timeout(SECONDS):
                facts = await self._exchange(question)
        except (BadRequest, InternalError) as error:
            if not answer.done():
                # The traceback's frames hold the body, and the question, whose answer holds the
                # error.
                answer.set_exception(error.with_traceback(None))
        except (OSError, EOFError, TimeoutError) as error:
            failure = _failure_of(error)
            await self._end_process()
            if not answer.done():
                answer.set_exception(failure)
        except BaseException as error:
            await self._end_process()  # otherwise its next answer would be for this body
            if not isinstance(error, Exception):
                answer.cancel()
                raise
            log.exception("reading a large body failed inside the router")
            if not answer.done():
                answer.set_exception(InternalError(f"The router failed: {type(error).__name__}."))
        else:
            if not answer.done():
                answer.set_result(facts)

    async def _exchange(self, question: _Question) -> Facts:
        """Send a body and read the answer. Raises BadRequest; OSError or EOFError if the process
        has died."""
        if self._process is not None and _is_gone(self._process):
            await self._end_process()
        if self._process is None:
            check_descriptors(DESCRIPTORS)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router.net.processes.body_process"),
                stdin=PIPE,
                stdout=PIPE,
                env=_environment(os.environ),  # noqa: TID251 - passed on, not read
                start_new_session=True,  # Ctrl-C is for the router, which then ends it
            )
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None
        assert reader is not None
        asked = {
            "route": question.route.path,
            "content_type": question.content_type.decode("latin-1"),
            "prefill_from": self.prefill_from,
            "wants_ids": self._wants_ids,
            "wants_media": self._wants_media(),
            "image_rules": {name: [*rule] for name, rule in self.image_rules.items()},
        }
        text, pieces = orjson.dumps(asked), question.pieces
        lead = QUESTION.pack(len(text), sum(map(len, pieces))) + text
        for piece in (lead, *pieces):
            if writer.is_closing():
                raise BrokenPipeError("the process has ended")
            writer.write(piece)
            await writer.drain()
        head = await reader.readexactly(ANSWER.size)
        length, raw_size, prefill_size, ids_size = ANSWER.unpack(head)
        summary: dict[str, Any] | None = orjson.loads(await reader.readexactly(length))
        raw = pieces if raw_size == ABSENT else await _pieces(reader, raw_size)
        prefill = [] if prefill_size == ABSENT else await _pieces(reader, prefill_size)
        ids = None if ids_size == ABSENT else await reader.readexactly(ids_size)
        if summary is None:
            log.error("reading a large body failed; the traceback is on standard error")
            raise InternalError("The router could not read the body.")
        if "error" in summary:
            raise BadRequest(summary["error"], summary["param"])
        media = [await reader.readexactly(size) for _, size in summary["media"]]
        return facts_of(question.route, question.query, summary, raw, prefill, ids, media)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _is_gone(process: Process) -> bool:
    return process.returncode is not None or process.stdin is None or process.stdin.is_closing()


def _failure_of(error: OSError | EOFError) -> RouterError:
    """The error for the client if the process failed or could not be started; the cause is
    logged."""
    if is_exhaustion(error):
        log.error("cannot start the large-body parser: %s; %s", error.strerror, remedy(error))
        return Overloaded("The router cannot read a large body now.")
    log.error(
        "the process that reads large bodies failed (%s); it is started again with the next one. "
        "Look for an OOM kill, or lower --max-body-bytes",
        type(error).__name__,
    )
    return InternalError("The router could not read the body.")


async def _pieces(reader: asyncio.StreamReader, size: int) -> list[bytes]:
    """Read the next `size` bytes."""
    pieces = []
    while size:
        piece = await reader.read(min(size, PIECE_BYTES))
        if not piece:
            raise EOFError("the process ended in the middle of an answer")
        pieces.append(piece)
        size -= len(piece)
    return pieces


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment for the process. Its hash seed determines the keys of prefixes
    (`core/prefix/keys.py`), which all workers and parser processes of a host must share. It is
    derived from this process's secret seed, so that outsiders cannot know it."""
    seed = hash("body process") & 0xFFFF_FFFF
    passed_on = {key: value for key, value in own.items() if not key.startswith("PD_ROUTER_")}
    return {**passed_on, "PYTHONHASHSEED": str(seed)}
