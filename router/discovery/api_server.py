"""Lists and watches pods over HTTP, and parses the events of a watch.

The requests are made with aiohttp: objects are parsed as JSON instead of being built as classes,
and the ways in which a watch can fail are distinguished here. Authentication (certificates, tokens)
is done by the login.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import aiohttp
import orjson

from router.discovery.pods import MalformedObject, Pod, read_pod, version_of
from router.discovery.source import WrongConfiguration

__all__ = [
    "MAX_LINE_BYTES",
    "ApiFailure",
    "ApiServer",
    "Bookmark",
    "Change",
    "Credentials",
    "Expired",
    "Lines",
    "ListOfPods",
    "Refused",
    "WatchEvent",
    "read_event",
]

MAX_LINE_BYTES = 8 << 20
"""Longest line in bytes. An object has at most 1.5 MiB (etcd's limit), and JSON escapes make it
longer."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pod was added, changed or removed."""

    pod: Pod
    is_there: bool


@dataclass(frozen=True, slots=True)
class Bookmark:
    """There are no other events up to this resourceVersion than those already sent."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The watch cannot continue. `status` is an HTTP status, in a stream that began with 200."""

    status: int
    message: str


WatchEvent = Change | Bookmark | Refused


class Lines:
    """Splits data into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`, without empty ones. Raises MalformedObject if a line is too
        long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise MalformedObject(f"a line of a watch is longer than {MAX_LINE_BYTES} bytes")
        return [line for line in lines if line.strip()]


KINDS: dict[str, Literal["there", "gone"]] = {
    "ADDED": "there",
    "MODIFIED": "there",
    "DELETED": "gone",
}


def read_event(line: bytes) -> WatchEvent:
    """Parse a line. Raises MalformedObject."""
    try:
        event: dict[str, Any] = orjson.loads(line)
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            return Refused(int(item.get("code") or 500), str(item.get("message") or ""))
        if kind == "BOOKMARK":
            return Bookmark(version_of(item["metadata"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObject(f"a line of a watch is no event: {error!r}") from None
    if not isinstance(kind, str) or kind not in KINDS:
        raise MalformedObject(f"a watch has an event of an unknown type: {str(kind)[:40]!r}")
    return Change(read_pod(item), KINDS[kind] == "there")


ANSWER_SECONDS = 10.0
"""Time-out in seconds for a page of a list, and for the head of a watch."""

PAGE = 100
"""Pods per page of a list: about 1 MB, parsed in 5 ms, during which no token is relayed."""

MAX_BODY_BYTES = 64 << 20
"""Largest page in bytes; pods of 600 kB each would fit."""

MAX_MESSAGE = 300
"""Longest message of the API server in a log line, in characters."""

LATE_SECONDS = 10.0
"""Seconds by which a watch may exceed the requested duration. This detects a connection that was
cut silently (such as by a firewall)."""


class ApiFailure(Exception):
    """A request failed, perhaps temporarily. `kind` is from a fixed set, and each kind is logged
    once; the message says what to do."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Expired(Exception):
    """The API server has dropped the history since the requested version, so a new list is
    needed."""


Events = Sequence[Change | Bookmark]


@dataclass(frozen=True, slots=True)
class ListOfPods:
    """All pods at one time."""

    pods: tuple[Pod, ...]
    version: int


class Credentials(Protocol):
    """How the router authenticates to the API server, besides its session's certificates."""

    async def headers(self) -> Mapping[str, str]:
        """The headers of a request. Call it for each request, because tokens change. Raises
        ApiFailure."""

    async def renew(self) -> None:
        """Get new credentials, because the current ones were rejected. Raises ApiFailure."""


class ApiServer:
    """The pods of one namespace. `options`: aiohttp's options for each request."""

    def __init__(
        self,
        url: str,
        namespace: str,
        session: aiohttp.ClientSession,
        credentials: Credentials,
        options: Mapping[str, Any],
    ) -> None:
        self.url = f"{url.rstrip('/')}/api/v1/namespaces/{namespace}/pods"
        self.namespace = namespace
        self.credentials = credentials
        self._session = session
        self._options = options

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def list_pods(self, selector: str) -> ListOfPods:
        """List the pods that match a label selector. Raises ApiFailure, Expired (between two pages)
        or WrongConfiguration."""
        pods: list[Pod] = []
        query = {"labelSelector": selector, "limit": str(PAGE)}
        with _troubles():
            while True:
                async with asyncio.timeout(ANSWER_SECONDS), self._get(query) as answer:
                    items, metadata = _page(await _body(answer))
                pods += map(read_pod, items)
                if not metadata.get("continue"):
                    return ListOfPods(tuple(pods), version_of(metadata))
                query["continue"] = str(metadata["continue"])

    async def watch_pods(
        self, selector: str, version: int, seconds: int, on_events: Callable[[Events], None]
    ) -> None:
        """Pass on events after `version` for about `seconds`; events that arrive together are
        passed on together. Raises ApiFailure, Expired or WrongConfiguration."""
        query = {
            "labelSelector": selector,
            "resourceVersion": str(version),
            "timeoutSeconds": str(seconds),
            "watch": "true",
            "allowWatchBookmarks": "true",
        }
        lines = Lines()
        with _troubles():
            async with asyncio.timeout(seconds + LATE_SECONDS), self._get(query) as answer:
                async for data in answer.content.iter_any():
                    if events := [self._event(line) for line in lines.feed(data)]:
                        on_events(events)

    def _event(self, line: bytes) -> Change | Bookmark:
        event = read_event(line)
        if isinstance(event, Refused):
            raise self._refusal(event.status, event.message)
        return event

    @asynccontextmanager
    async def _get(self, query: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = await self.credentials.headers()
        async with self._session.get(
            self.url, params=query, headers=headers, **self._options
        ) as answer:
            if answer.status == 401:
                await self.credentials.renew()
            if answer.status != 200:
                raise self._refusal(answer.status, _message(await _body(answer)))
            yield answer

    def _refusal(self, status: int, message: str) -> Exception:
        """The error for an HTTP status, either of a response or of an event in a watch."""
        said = f"the API server answers {status}: {message[:MAX_MESSAGE]}"
        match status:
            case 410:
                return Expired(said)
            case 400 | 422:
                return WrongConfiguration(f"{said}; check the label selectors")
            case 401:
                return ApiFailure("unauthorized", f"{said}; check the ServiceAccount's token")
            case 403:
                return ApiFailure(
                    "forbidden",
                    f"{said}; allow the router's ServiceAccount to list and watch pods in the "
                    f"namespace {self.namespace} (deploy/kubernetes/overlays/discovery)",
                )
        return ApiFailure("server", said)


@contextmanager
def _troubles() -> Iterator[None]:
    """Converts network errors and invalid data to ApiFailure."""
    try:
        yield
    except TimeoutError:
        text = "the API server was silent for too long; check the network to it"
        raise ApiFailure("unreachable", text) from None
    except aiohttp.ClientSSLError as error:
        text = f"no TLS with the API server ({error}); check its CA certificate"
        raise ApiFailure("certificate", text) from None
    except (aiohttp.ClientError, OSError) as error:
        text = f"the API server cannot be reached ({error}); check the network to it"
        raise ApiFailure("unreachable", text) from None
    except MalformedObject as error:
        text = f"{error}; check that it is a Kubernetes API server"
        raise ApiFailure("malformed", text) from None


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The body of a response. Raises MalformedObject if it is too large."""
    body = bytearray()
    async for data in answer.content.iter_any():
        body += data
        if len(body) > MAX_BODY_BYTES:
            raise MalformedObject(f"an answer has more than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _page(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The items and the metadata of a page of a list. Raises MalformedObject."""
    try:
        page = orjson.loads(body)
        return list(page.get("items") or ()), dict(page["metadata"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObject(f"a list of pods is none: {error!r}") from None


def _message(body: bytes) -> str:
    """The message of a Status object; of anything else its beginning."""
    try:
        return str(orjson.loads(body)["message"])
    except (KeyError, TypeError, ValueError):
        return body[:MAX_MESSAGE].decode(errors="replace")
