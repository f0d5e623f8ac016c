"""The clients: they know the right answer to each request, and the acceptable failures."""

import asyncio
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from router.simulator import EngineConfig, serve_engine
from tests.chaos.both_sides import Ended
from tests.forked import SECONDS
from tests.leaks import leaks_params
from tests.net.client import Answer, Client, Truncated, request
from tests.net.payloads import error_in

__all__ = ["Load", "Question", "questions"]

USERS = 16
CLEAN_ERRORS = frozenset({500, 502, 503, 504})
"""The router's own, and an engine's 500 if no other engine was left."""

PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class Question:
    """A request, and the text that every sound engine answers."""

    path: str
    body: dict[str, Any]
    text: str

    @property
    def is_stream(self) -> bool:
        return bool(self.body["stream"])


async def questions(count: int) -> list[Question]:
    """Requests of all kinds: long and short, streamed and unary. A lone engine gives the right
    answers."""
    found = []
    async with serve_engine(EngineConfig(eos_one_in=0)) as engine:
        client = await Client.open(int(engine.url.rpartition(":")[2]))
        for number in range(count):
            path, is_long = PATHS[number % 2], number // 2 % 2 == 0
            text = f"question {number}: " + "why is that so? " * (40 if is_long else 1)
            body: dict[str, Any] = {"model": "sim", "max_tokens": 4 + number % 17}
            if path == PATHS[0]:
                body["prompt"] = text
            else:
                body["messages"] = [{"role": "user", "content": text}]
            answer = await client.ask(path, body)
            assert answer.status == 200, answer
            choice = answer.json["choices"][0]
            told = choice["text"] if path == PATHS[0] else choice["message"]["content"]
            found.append(Question(path, {**body, "stream": number // 4 % 2 == 0}, told))
        client.leave()
    return found


class Load:
    """Users without pauses between requests; results are counted."""

    def __init__(self, port: int, asked: list[Question], chance: Random) -> None:
        self._port = port
        self._questions = asked
        self._chance = chance
        self._is_over = False
        self.ended: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Errors, by status and message."""
        self.wrong: list[str] = []
        self.first_tokens: dict[str, float] = {}
        """Seconds to the first token of streams that ended right, by request id."""
        self.requests: dict[str, Ended] = {}
        """How each ended, by request id."""
        self._asked = 0
        self._under_way: set[int] = set()
        self._unlogged: set[int] = set()
        self._is_logged = True
        self.may_cut = False
        """Whether connections may end without an answer: a worker is killed, or has no files."""

    @property
    def total(self) -> int:
        """Requests that have ended."""
        return self.ended.total()

    async def run(self) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as users:
            for _ in range(USERS):
                users.create_task(self._user())

    def stop(self) -> None:
        """No new requests."""
        self._is_over = True

    async def more(self, count: int) -> None:
        """Wait until so many more have ended."""
        wanted = self.total + count
        async with asyncio.timeout(SECONDS + count):
            while self.total < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def what_is_under_way(self) -> None:
        """Wait until the requests of now have ended."""
        before = frozenset(self._under_way)
        async with asyncio.timeout(SECONDS):
            while before & self._under_way:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def log_is_lost(self) -> None:
        """The router may write no line of the requests that are under way, nor of further ones."""
        self._is_logged = False
        self._unlogged |= self._under_way

    def log_is_kept(self) -> None:
        """Further requests have their lines."""
        self._is_logged = True

    async def _user(self) -> None:
        client: Client | None = None
        while not self._is_over:
            question = self._chance.choice(self._questions)
            self._asked += 1
            number = self._asked
            self._under_way.add(number)
            if not self._is_logged:
                self._unlogged.add(number)
            status, may_cut = 0, self.may_cut
            try:
                client = client or await Client.open(self._port)
                end, status = await self._ask(client, question, f"chaos-{number}")
            except (Truncated, OSError) as error:
                end = "cut" if self.may_cut else f"wrong: {type(error).__name__} {error}"
            except (ValueError, KeyError, TypeError) as error:  # not in OpenAI's shape
                end = f"wrong: {error!r}"
            self._under_way.discard(number)
            if end.startswith("wrong"):
                self.wrong.append(f"{question.path} {question.body} {end}")
                end = "wrong"
            self.ended[end] += 1
            # If connections are cut, the router may never have read their bytes.
            is_seen = not ((may_cut or self.may_cut) and end in ("cut", "left"))
            is_logged = is_seen and number not in self._unlogged
            self.requests[f"chaos-{number}"] = Ended(end, status, is_logged)
            if end not in ("right", "error", "error event", "broken") and client is not None:
                client.leave()
                client = None
        if client is not None:
            client.leave()

    async def _ask(self, client: Client, question: Question, request_id: str) -> tuple[str, int]:
        """How it ended, and its status: of the answer, or of the error at a stream's end, or 0."""
        start = time.monotonic()
        header = (b"x-request-id", request_id.encode())
        await client.send(request(question.path, question.body, header))
        if self._chance.random() < 0.05:
            return "left", 0
        answer = await client.begin()
        if self._chance.random() < 0.05:
            with suppress(Truncated):
                await answer.more()
            return "left", 0
        while not answer.is_over and b"data:" not in answer.body:  # comments are no token
            await answer.more()
        seconds = time.monotonic() - start
        await answer.rest()
        if answer.status in CLEAN_ERRORS:
            message = _without_numbers(answer.json["error"]["message"])
            self.errors[f"{answer.status} {message}"] += 1
        end = judge(question, answer)
        status = answer.status
        if end in ("error event", "broken"):
            error = error_in(answer.body)
            status = error["code"]
            self.errors[f"{status} {_without_numbers(error['message'])} (a stream)"] += 1
        if answer.values(b"connection") == [b"close"]:
            client.leave()
            return f"{end} and closed", status
        if end == "right" and question.is_stream:
            self.first_tokens[request_id] = seconds
        return end, status


def _without_numbers(message: str) -> str:
    """Without what differs from request to request."""
    return re.sub(r"\d+", "N", message)


def judge(question: Question, answer: Answer) -> str:
    """How a request ended: right, an error, an error event in place of the first token, broken
    behind it, or wrong."""
    if answer.status != 200:
        is_clean = answer.status in CLEAN_ERRORS and answer.json["error"]["code"] == answer.status
        return "error" if is_clean else f"wrong: {answer}"
    if leaks_params(answer.body):
        return f"wrong: KV parameters in {answer}"
    is_stream = question.is_stream or b"text/event-stream" in answer.values(b"content-type")
    if not is_stream:  # an engine may answer with an unrequested stream, and break it off
        choice = answer.json["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return "right" if text == question.text else f"wrong: {text!r} for {question.text!r}"
    return _judge_stream(question, answer.body)


def _judge_stream(question: Question, body: bytes) -> str:
    *events, last, rest = body.split(b"\n\n")
    if (last, rest) != (b"data: [DONE]", b""):
        return f"wrong: the stream ends with {body[-200:]!r}"
    text, error = "", None
    for event in events:
        if event.startswith(b":"):
            continue
        document = orjson.loads(event.removeprefix(b"data: "))
        if error is not None:
            return f"wrong: an event behind an error: {event!r}"
        error = document.get("error")
        for choice in document.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    if error is not None:
        is_start = question.text.startswith(text)
        if not is_start:
            return f"wrong: {text!r} before an error"
        return "broken" if text else "error event"
    return "right" if text == question.text else f"wrong: {text!r} for {question.text!r}"
