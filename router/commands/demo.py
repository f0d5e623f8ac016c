"""pd-router demo: disaggregated requests on simulated engines, with each answer checked.

Two prefill and four decode engines run in this process, and the router in a process of its own,
started with the command that an operator uses. The mode of each request is read from the router's
log.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import aiohttp
import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from router.simulator import EngineConfig, serve_engine

__all__ = ["run"]

THRESHOLD = 256
"""Prompt tokens; small, so that a "long" prompt still fits on the screen."""

PREFILLS, DECODES = 2, 4

MODEL = "demo"
TOKENS = 24
"""Tokens of an answer."""

READY_SECONDS = 30.0
ANSWER_SECONDS = 30.0

SHORT = "Which engine will answer me?"
LONG = "The quick brown fox jumps over the lazy dog. " * 40


@dataclass(frozen=True)
class Case:
    """A request of the demo."""

    name: str
    route: str
    body: dict[str, Any]
    is_long: bool


@dataclass
class Received:
    """The response as the client received it."""

    text: str = ""
    tokens: int | None = None
    ttft_seconds: float | None = None
    status: int = 0


@dataclass
class Row:
    """A request, its answer, the expected answer, and the router's log record of it."""

    case: Case
    answer: Received
    expected: Received
    record: Mapping[str, Any]

    @property
    def is_right(self) -> bool:
        """Whether text, token count, status and mode are as expected."""
        mode = "remote_prefill" if self.case.is_long else "direct"
        return (
            self.answer.status == 200
            and bool(self.answer.text)
            and self.answer.text == self.expected.text
            and self.answer.tokens == self.expected.tokens
            and self.record.get("mode") == mode
            and not self.record.get("fallbacks")
        )


def run(_options: Mapping[str, Any]) -> int:
    """Run the demo. Returns 0 only if each answer was right."""
    return asyncio.run(_demo(Console()))


async def _demo(console: Console) -> int:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(serve_engine(_engine(role)))
            for role in ("prefill",) * PREFILLS + ("decode",) * DECODES
        ]
        # The same model on an engine that the router does not use gives the expected answers.
        reference = await stack.enter_async_context(serve_engine(_engine("both")))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        urls = [engine.url for engine in engines]
        router = await stack.enter_async_context(_router(urls[:PREFILLS], urls[PREFILLS:]))
        await _until_ready(session, router.url)
        rows = await _ask_all(session, console, router, reference.url)
    console.print(_table(rows, urls))
    return _summary(console, rows)


def _engine(role: Any) -> EngineConfig:
    return EngineConfig(
        model=MODEL,
        role=role,
        step_s=0.01,
        prefill_tokens_per_second=20_000,
        kv_tokens_per_second=200_000,
    )


def _cases() -> list[Case]:
    cases = []
    for stream, (is_long, text), number in product(
        (True, False), ((False, SHORT), (True, LONG)), (1, 2)
    ):
        prompt = f"{number}. {text}"
        name = f"{'long' if is_long else 'short'} {'stream' if stream else 'unary'}"
        common: dict[str, Any] = {"model": MODEL, "temperature": 0, "stream": stream}
        if stream:
            common["stream_options"] = {"include_usage": True}
        messages = [{"role": "user", "content": prompt}]
        chat = {"messages": messages, "max_completion_tokens": TOKENS, **common}
        completion = {"prompt": prompt, "max_tokens": TOKENS, **common}
        cases += [
            Case(f"{name} chat", "/v1/chat/completions", chat, is_long),
            Case(f"{name} text", "/v1/completions", completion, is_long),
        ]
    return cases


class _Router:
    """The router's process: its address, and its log record of each request."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.url = url
        self._process = process
        self._records: dict[str, Mapping[str, Any]] = {}

    async def record(self, request_id: str) -> Mapping[str, Any]:
        """The access log's record of a request. Reads the log up to it."""
        while request_id not in self._records:
            line = await _log_line(self._process)
            if line.get("message") == "request":
                self._records[line["id"]] = line
        return self._records[request_id]


@asynccontextmanager
async def _router(prefill: list[str], decode: list[str]) -> AsyncIterator[_Router]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "serve", "--host", "127.0.0.1", "--port", "0"),
        *("--prefill", ",".join(prefill), "--decode", ",".join(decode)),
        *("--routing-threshold", str(THRESHOLD), "--load-balancing-strategy", "least_loaded"),
        *("--log-format", "json"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        line: Mapping[str, Any] = {}
        while line.get("message") != "listening":
            line = await _log_line(process)
        yield _Router(process, line["url"])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _log_line(process: asyncio.subprocess.Process) -> Mapping[str, Any]:
    assert process.stderr is not None
    text = await process.stderr.readline()
    if not text:
        raise RuntimeError("the router ended; run `pd-router serve` by hand to see why")
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise RuntimeError(f"the router said: {text.decode(errors='replace')}") from None
    return line if isinstance(line, dict) else {}


async def _until_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            async with session.get(f"{url}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


async def _ask_all(
    session: aiohttp.ClientSession, console: Console, router: _Router, reference: str
) -> list[Row]:
    cases = _cases()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("requests", total=len(cases))

        async def ask(number: int, case: Case) -> Row:
            request_id = f"demo-{number}"
            answer = await _ask(session, router.url, case, request_id)
            expected = await _ask(session, reference, case, request_id)
            progress.advance(bar)
            return Row(case, answer, expected, {"id": request_id})

        rows = await asyncio.gather(*(ask(n, case) for n, case in enumerate(cases)))
    async with asyncio.timeout(ANSWER_SECONDS):
        for row in rows:
            row.record = await router.record(row.record["id"])
    return rows


async def _ask(session: aiohttp.ClientSession, url: str, case: Case, request_id: str) -> Received:
    answer = Received()
    clock = asyncio.get_running_loop().time
    started = clock()
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with session.post(
        url + case.route, json=case.body, headers={"x-request-id": request_id}, timeout=timeout
    ) as response:
        answer.status = response.status
        if not case.body["stream"]:
            _read(answer, orjson.loads(await response.read()))
            return answer
        async for line in response.content:
            if line.startswith(b"data: {"):
                _read(answer, orjson.loads(line[6:]))
                if answer.text and answer.ttft_seconds is None:
                    answer.ttft_seconds = clock() - started
    return answer


def _read(answer: Received, document: Mapping[str, Any]) -> None:
    """Add a chunk, or a whole unary answer."""
    for choice in document.get("choices", ()):
        part = choice.get("delta") or choice.get("message") or {}
        answer.text += part.get("content") or choice.get("text") or ""
    if document.get("usage"):
        answer.tokens = document["usage"]["completion_tokens"]


def _table(rows: list[Row], urls: list[str]) -> Table:
    names = {url: f"p{n}" for n, url in enumerate(urls[:PREFILLS])}
    names |= {url: f"d{n}" for n, url in enumerate(urls[PREFILLS:])}
    table = Table(title=f"Routing threshold: {THRESHOLD} tokens", box=None, pad_edge=False)
    for column in ("request", "estimate", "route", "prefill", "decode", "TTFT", "tokens", ""):
        table.add_column(column, justify="right" if column in _RIGHT else "left", no_wrap=True)
    for row in rows:
        seen, record = row.answer, row.record
        table.add_row(
            row.case.name,
            str(record.get("tokens")),
            "remote" if record.get("mode") == "remote_prefill" else str(record.get("mode")),
            names.get(record.get("prefill") or "", "-"),
            names.get(record.get("decode") or "", "-"),
            "-" if seen.ttft_seconds is None else f"{seen.ttft_seconds * 1000:.0f} ms",
            str(seen.tokens),
            "right" if row.is_right else f"WRONG (status {seen.status})",
        )
    return table


_RIGHT = frozenset({"estimate", "TTFT", "tokens"})

OWN_ENGINES = """
In front of your own engines:
  pd-router serve --prefill http://p0:8000 --decode http://d0:8000 \\
                  --routing-threshold 4096"""


def _summary(console: Console, rows: list[Row]) -> int:
    wrong = sum(not row.is_right for row in rows)
    remote = sum(row.record.get("mode") == "remote_prefill" for row in rows)
    console.print(
        f"{len(rows)} requests, {remote} prefilled remotely, {len(rows) - remote} direct: "
        f"{len(rows) - wrong} right, {wrong} wrong (right is what one engine alone answers).",
        highlight=False,
        soft_wrap=True,
    )
    console.print(OWN_ENGINES, highlight=False, soft_wrap=True)
    return 1 if wrong else 0
