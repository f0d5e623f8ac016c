"""Queries all engines once, concurrently: /health, /version and /v1/models.

Engines are those in the settings and those that discovery finds. Each problem comes with advice.
`check.py` judges whether the engines are compatible.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from router.core.fleet.status import IS_ROUTER, SERVER
from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import Target
from router.core.values import Endpoint, Reply, Role, TransferSource
from router.discovery.source import Source, WrongConfiguration
from router.net.background.bootstrap_servers import OTHER_RANKS, BootstrapServers
from router.net.engine.engine_session import (
    ERRORS,
    Diagnosis,
    Trouble,
    engine_session,
    read_bounded,
)
from router.settings import Settings, SettingsError
from router.settings.engine_values import Receiver
from router.web.discovery import admitted, discovery_sources, endpoints_of
from router.web.engine_side import bootstrap_servers, engine_tls_of

__all__ = ["Finding", "survey", "with_found_engines"]

MAX_ANSWER_BYTES = 16 << 20
"""Largest response in bytes that is read; a list of models has a few kB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one engine."""

    endpoint: Endpoint
    health: str
    version: str | None = None
    models: Mapping[str, int | None] | None = None
    """Its models with their max_model_len in tokens (None if not given); None if unknown."""
    advice: str | None = None
    """What is wrong and what to do; None if nothing is wrong."""
    transfer_source: TransferSource | None = None
    """Where decode engines find it (Mooncake); None if they need not, or cannot."""


_FINE = Trouble("ok", None)


async def survey(settings: Settings) -> list[Finding]:
    """Query all engines. The findings are in the order of the settings, prefill first."""
    tls = engine_tls_of(settings)
    bootstraps = bootstrap_servers(settings, tls)
    async with engine_session(
        settings.engine_api_key, tls.context, timeout_seconds=settings.health_check_timeout
    ) as session:
        surveys = [_EngineSurvey(session, settings, e, bootstraps) for e in endpoints_of(settings)]
        try:
            return await asyncio.gather(*(survey.ask() for survey in surveys))
        finally:
            if bootstraps is not None:
                await bootstraps.close()


class _EngineSurvey:
    """Queries one engine."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: Settings,
        endpoint: Endpoint,
        bootstraps: BootstrapServers | None,
    ) -> None:
        self._session = session
        self._bootstraps = bootstraps if endpoint.role is Role.PREFILL else None
        self._endpoint = endpoint
        self._diagnosis = Diagnosis(
            settings.health_check_timeout, has_key=settings.engine_api_key is not None
        )

    async def ask(self) -> Finding:
        """Perform all queries. If the first one fails the others are skipped."""
        health = await self._get("/health")
        if isinstance(health, Trouble):
            return Finding(self._endpoint, health.health, advice=health.advice)
        version, models = await asyncio.gather(self._get("/version"), self._get("/v1/models"))
        known = None if isinstance(models, Trouble) else _models(models)
        trouble = self._judge(health, models, known) or _FINE
        if not isinstance(version, Trouble) and _is_router(version):
            trouble = Trouble("a router", IS_ROUTER)
        source: TransferSource | None = None
        if self._bootstraps is not None and trouble is _FINE:
            url = self._endpoint.url
            answer = await self._bootstraps.find(url, [url])
            if not isinstance(answer, Trouble):
                source = answer
            elif answer.health != OTHER_RANKS:  # a rank is not asked by itself
                trouble = answer
        return Finding(
            self._endpoint,
            trouble.health,
            None if isinstance(version, Trouble) else _version(version),
            known,
            trouble.advice,
            source,
        )

    def _judge(
        self,
        health: Reply,
        models: Reply | Trouble,
        known: Mapping[str, int | None] | None,
    ) -> Trouble | None:
        """The first problem in the responses, if any. An engine may have no /health, but has
        models."""
        trouble = self._diagnosis.of_status(health.status, "/health")
        if trouble is not None and (health.status != 404 or not known):
            return trouble
        if isinstance(models, Trouble):
            return models
        if (trouble := self._diagnosis.of_status(models.status, "/v1/models")) is not None:
            return trouble
        if known is None:
            text = "/v1/models does not answer with a list of models: is this a vLLM server?"
            return Trouble("no model list", text)
        if not known:
            return Trouble("no models", "it serves no model: start it with one")
        return None

    async def _get(self, path: str) -> Reply | Trouble:
        try:
            async with self._session.get(
                self._endpoint.url + path, allow_redirects=False
            ) as response:
                return Reply(response.status, body=await read_bounded(response, MAX_ANSWER_BYTES))
        except ERRORS as error:
            return self._diagnosis.of_error(error, path)


def _version(answer: Reply) -> str | None:
    document = _json(answer)
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, str) else None


def _is_router(answer: Reply) -> bool:
    document = _json(answer)
    return isinstance(document, dict) and document.get("server") == SERVER


def _models(answer: Reply) -> dict[str, int | None] | None:
    document = _json(answer)
    cards = document.get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list):
        return None
    return {
        card["id"]: _length(card.get("max_model_len"))
        for card in cards
        if isinstance(card, dict) and isinstance(card.get("id"), str)
    }


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _json(answer: Reply) -> Any:
    try:
        return orjson.loads(answer.body) if answer.status == 200 else None
    except orjson.JSONDecodeError:
        return None


FIRST_SECONDS: Final = 10.0
"""Time-out in seconds for the first answer of a source."""


async def with_found_engines(settings: Settings) -> tuple[Settings, list[Target]]:
    """The engines currently found by Kubernetes or DNS, and the settings extended by these and
    their LMCache receivers, as a router would do. Raises SettingsError if a source does not answer
    or can never work."""
    answers = await asyncio.gather(*map(_first_targets, discovery_sources(settings)))
    networks = EngineNetworks(settings.engine_networks)
    found = [target for targets in answers for target in admitted(networks, targets)[0]]
    named = settings.model_copy(
        update={
            "prefill": _urls(settings.prefill, found, Role.PREFILL),
            "decode": _urls(settings.decode, found, Role.DECODE),
            "encode": _urls(settings.encode, found, Role.ENCODE),
            "decoder_registry": _receivers(found) | settings.receivers or None,
            "decoder_host": None,  # if given, it has been added to the registry
        }
    )
    return named, found


def _receivers(found: Iterable[Target]) -> dict[str, Receiver]:
    """Receivers by decode URL, as in a registry."""
    return {
        each.endpoint.url: Receiver(
            receiver_host=each.receiver.host,
            receiver_init_port=each.receiver.init_ports,
            receiver_alloc_port=each.receiver.alloc_ports,
        )
        for each in found
        if each.receiver is not None
    }


def _urls(named: Iterable[str], found: Iterable[Target], role: Role) -> tuple[str, ...]:
    """The URLs in order, without duplicates."""
    urls = (each.endpoint.url for each in found if each.endpoint.role is role)
    return tuple(dict.fromkeys((*named, *urls)))


async def _first_targets(source: Source) -> tuple[Target, ...]:
    first: asyncio.Future[tuple[Target, ...]] = asyncio.get_running_loop().create_future()

    def on_targets(targets: tuple[Target, ...]) -> None:
        if not first.done():
            first.set_result(targets)

    watching = asyncio.ensure_future(source.watch(on_targets))
    try:
        await asyncio.wait(
            (first, watching), timeout=FIRST_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if first.done():
            return first.result()
        if watching.done():
            watching.result()
        raise SettingsError(f"discovery by {source.name}: no answer in {FIRST_SECONDS:g} s")
    except WrongConfiguration as error:
        raise SettingsError(f"discovery by {source.name}: {error}") from None
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
