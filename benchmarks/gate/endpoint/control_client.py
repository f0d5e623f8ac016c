"""Control requests beside the load: one request, one small response or why there is none.

For readiness, token counts and evidence, which are not the hot path. Nothing here waits without a
limit, and a key that is sent is never in a message.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

# Limit of a response's size; /metrics of vLLM has about 200 KiB.
LIMIT = 4 * 2**20


class Unanswered(Exception):
    """No response, or an unusable one; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None if it is not."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class ControlClient:
    """A session for one base URL; requests to workers use full URLs, without the key."""

    def __init__(
        self, session: aiohttp.ClientSession, base: str, headers: Mapping[str, str]
    ) -> None:
        self._session, self._base, self._headers = session, base, headers

    async def endpoint(
        self, path: str, body: object = None, *, timeout: float, limit: int = LIMIT
    ) -> Answer:
        """Send a request to the endpoint, a POST if it has a body. Raises Unanswered."""
        data = None if body is None else orjson.dumps(body)
        return await self._ask(self._base + path, data, self._headers, timeout, limit)

    async def worker(self, url: str, *, timeout: float) -> Answer:
        """GET from another server. Raises Unanswered."""
        return await self._ask(url, None, {}, timeout, LIMIT)

    async def _ask(
        self, url: str, data: bytes | None, headers: Mapping[str, str], timeout: float, limit: int
    ) -> Answer:
        sent = {**headers, "content-type": "application/json"} if data else headers
        method = "GET" if data is None else "POST"
        try:
            async with asyncio.timeout(timeout):
                async with self._session.request(method, url, data=data, headers=sent) as reply:
                    return Answer(reply.status, await _body(reply, limit))
        except TimeoutError:
            raise Unanswered(f"no answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(_reason(error)) from None


async def _body(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    parts, size = [], 0
    async for part in reply.content.iter_any():
        size += len(part)
        if size > limit:
            reply.close()
            raise Unanswered(f"the answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _reason(error: Exception) -> str:
    """The reason without the URL, which the user knows."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {_system(error.os_error)}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"no HTTP: {error.message.splitlines()[0]}" if error.message else "no HTTP"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _system(error: OSError) -> str:
    """Errors of name resolution have numbers of their own, below zero."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


@asynccontextmanager
async def control_client(
    base: str, headers: Mapping[str, str], *, verify: bool = True
) -> AsyncIterator[ControlClient]:
    """The session, closed in the end."""
    connector = aiohttp.TCPConnector(ssl=verify, limit=0)
    # Total time-outs are given with each question.
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield ControlClient(session, base, headers)
