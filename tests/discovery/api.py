"""An API server for tests: pods in one namespace, listed in pages and watched with selectors, and
what goes wrong with such servers.

Its answers have the shapes of a real one (Kubernetes 1.30 to 1.36, by its API documentation). It is
no copy of one: a selector is equality only, and nothing checks what is put in.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.discovery.pods import Object, pod

PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True)
class Happened:
    """A change of a pod."""

    version: int
    before: Object | None
    after: Object | None


class Api:
    """Holds pods and their history. `url` is where it listens."""

    def __init__(self) -> None:
        self.url = ""
        self.version = 1000
        self.pods: dict[str, Object] = {}
        self.requests: list[web.Request] = []
        """All that came."""
        self.token: str | None = None
        """The bearer token that it wants."""
        self.refusals: list[int] = []
        """Statuses for the next requests, watches included."""
        self.watch_refusals: list[int] = []
        """Statuses for the next watches."""
        self.ends_in_stream = False
        """Whether refusals of watches come as ERROR events in a 200."""
        self.is_mute = False
        """Whether watches are silent and do not end."""
        self.page = 2
        """Pods in a page at most."""
        self.forgets_after_pages = 0
        """After how many pages that have a next one the history is forgotten."""
        self._history: list[Happened] = []
        self._forgotten = 0
        self._changed = asyncio.Event()
        self._watches: set[web.StreamResponse] = set()
        self._transports: set[Any] = set()

    # What happens in the cluster.

    def put(self, name: str, **given: Any) -> Object:
        """Create or change a pod."""
        self.version += 1
        now = pod(name, version=self.version, **given)
        uid = now["metadata"]["uid"]
        self._history.append(Happened(self.version, self.pods.get(uid), now))
        self.pods[uid] = now
        self._tell()
        return now

    def delete(self, name: str) -> None:
        """Delete a pod without an event, for watches that are cut before it."""
        [uid] = [uid for uid, each in self.pods.items() if each["metadata"]["name"] == name]
        self.version += 1
        self._history.append(Happened(self.version, self.pods.pop(uid), None))
        self._tell()

    def forget(self) -> None:
        """Compact the history: older versions cannot be watched from, nor listed on."""
        self.version += 1
        self._forgotten = self.version

    def bookmark(self) -> None:
        """A change elsewhere; watches get the new version."""
        self.version += 1
        self._history.append(Happened(self.version, None, None))
        self._tell()

    def cut(self) -> None:
        """Break all connections in the middle."""
        for transport in self._transports:
            transport.abort()

    @property
    def watches(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    def asked(self, *, watch: bool) -> list[web.Request]:
        """The requests of a kind."""
        return [each for each in self.requests if ("watch" in each.query) is watch]

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # What it answers.

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """List or watch."""
        self.requests.append(request)
        self._transports.add(request.transport)
        if (
            self.token is not None
            and request.headers.get("Authorization") != f"Bearer {self.token}"
        ):
            return _status(401, "Unauthorized")
        if self.refusals:
            return _status(self.refusals.pop(0), "refused by the test")
        return await self._watch(request) if "watch" in request.query else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        query = request.query
        start, version = 0, self.version
        if "continue" in query:
            start, version = map(int, query["continue"].split("-"))
            if version < self._forgotten:
                return _status(410, "The provided continue parameter is too old")
        found = [each for each in self.pods.values() if takes(query["labelSelector"], each)]
        end = start + min(int(query["limit"]), self.page)
        metadata: Object = {"resourceVersion": str(version)}
        if end < len(found):
            metadata |= {"continue": f"{end}-{version}", "remainingItemCount": len(found) - end}
            if self.forgets_after_pages:
                self.forgets_after_pages -= 1
                self.forget()
        items = [_item(each) for each in found[start:end]]
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        refusal = self.watch_refusals.pop(0) if self.watch_refusals else None
        if refusal is None and int(request.query["resourceVersion"]) < self._forgotten:
            refusal = 410
        if refusal is not None and not self.ends_in_stream:
            return _status(refusal, "too old resource version")
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        if refusal is not None:
            await _send(stream, "ERROR", _status_object(refusal, "too old resource version"))
            return stream
        self._watches.add(stream)
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                await self._follow(stream, request)
        except TimeoutError:
            if self.is_mute:
                await asyncio.Event().wait()
        finally:
            self._watches.discard(stream)
        return stream

    async def _follow(self, stream: web.StreamResponse, request: web.Request) -> None:
        told = int(request.query["resourceVersion"])
        while True:
            changed = self._changed
            if self.is_mute:
                await asyncio.Event().wait()
            for each in [each for each in self._history if each.version > told]:
                told = each.version
                await self._tell_one(stream, request.query["labelSelector"], each)
            await changed.wait()

    async def _tell_one(self, stream: web.StreamResponse, selector: str, each: Happened) -> None:
        """As a real one: a pod that a selector no longer matches is deleted for its watches; the
        event has its old state with the new version."""
        was = each.before is not None and takes(selector, each.before)
        is_ = each.after is not None and takes(selector, each.after)
        if is_:
            await _send(stream, "MODIFIED" if was else "ADDED", each.after)
        elif was:
            gone = copy.deepcopy(each.before)
            assert gone is not None
            gone["metadata"]["resourceVersion"] = str(each.version)
            await _send(stream, "DELETED", gone)
        elif each.before is None and each.after is None:
            metadata = {"resourceVersion": str(each.version), "creationTimestamp": None}
            await _send(
                stream, "BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}
            )


def takes(selector: str, each: Object) -> bool:
    """Whether a selector of equalities takes a pod."""
    wanted = dict(part.split("=") for part in selector.split(","))
    return bool(wanted.items() <= each["metadata"]["labels"].items())


def _item(each: Object) -> Object:
    """Objects in a list have no kind."""
    return {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}


def _status(code: int, message: str) -> web.Response:
    return web.json_response(_status_object(code, message), status=code)


def _status_object(code: int, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "code": code,
    }


async def _send(stream: web.StreamResponse, kind: str, item: Object | None) -> None:
    await stream.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")


@asynccontextmanager
async def serving(api: Api, port: int = 0) -> AsyncIterator[str]:
    """Listen on 127.0.0.1; yields the URL."""
    application = web.Application()
    application.router.add_get(PODS, api.answer)
    # Of 0 seconds aiohttp makes "for ever", which is how long a mute watch takes. A watch whose
    # connection is cut ends with it.
    runner = web.AppRunner(
        application, shutdown_timeout=0.1, access_log=None, handler_cancellation=True
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    try:
        await site.start()
        assert runner.addresses
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield api.url
    finally:
        api.cut()
        await runner.cleanup()
