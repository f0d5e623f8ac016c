"""Asks every engine once, concurrently: /health, /version and /v1/models.

Each problem comes with advice. Whether engines are compatible is judged in `compatibility.py`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import orjson

from router.core.values import Endpoint
from router.net.engine_session import engine_session
from router.settings import Settings
from router.web.app import endpoints_of

__all__ = ["Finding", "Trouble", "survey", "trouble_of"]

MAX_ANSWER_BYTES = 16 << 20
"""Largest answer that is read; a list of models has a few kB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one engine said."""

    endpoint: Endpoint
    health: str
    version: str | None = None
    models: Mapping[str, int | None] | None = None
    """Its models and their max_model_len in tokens, if stated; None if not known."""
    advice: str | None = None
    """What is wrong and what to do; None if nothing is."""


class Trouble(NamedTuple):
    """Why an engine cannot be read, in a word, and advice."""

    health: str
    advice: str | None


_FINE = Trouble("ok", None)


class _Answer(NamedTuple):
    status: int
    body: bytes


async def survey(settings: Settings) -> list[Finding]:
    """Ask all engines; the findings stand in the order of the settings, prefill first."""
    async with engine_session(
        settings.engine_api_key,
        settings.engine_ca_file,
        timeout_seconds=settings.health_check_timeout,
    ) as session:
        questions = [_Questions(session, settings, e) for e in endpoints_of(settings)]
        return await asyncio.gather(*(question.ask() for question in questions))


class _Questions:
    """What is asked of one engine."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: Settings, endpoint: Endpoint
    ) -> None:
        self._session = session
        self._endpoint = endpoint
        self._has_key = settings.engine_api_key is not None
        self._seconds = settings.health_check_timeout

    async def ask(self) -> Finding:
        """All questions; when the first is not answered the others are not asked."""
        health = await self._get("/health")
        if isinstance(health, Trouble):
            return Finding(self._endpoint, health.health, advice=health.advice)
        version, models = await asyncio.gather(self._get("/version"), self._get("/v1/models"))
        known = None if isinstance(models, Trouble) else _models(models)
        trouble = self._judge(health, models, known) or _FINE
        return Finding(
            self._endpoint,
            trouble.health,
            None if isinstance(version, Trouble) else _version(version),
            known,
            trouble.advice,
        )

    def _judge(
        self,
        health: _Answer,
        models: _Answer | Trouble,
        known: Mapping[str, int | None] | None,
    ) -> Trouble | None:
        """The first thing that is wrong with what was answered."""
        if (trouble := self._of_status(health, "/health")) is not None:
            return trouble
        if isinstance(models, Trouble):
            return models
        if (trouble := self._of_status(models, "/v1/models")) is not None:
            return trouble
        if known is None:
            text = "/v1/models does not answer with a list of models: is this a vLLM server?"
            return Trouble("no model list", text)
        if not known:
            return Trouble("no models", "it serves no model: start it with one")
        return None

    def _of_status(self, answer: _Answer, path: str) -> Trouble | None:
        status = answer.status
        if status == 200:
            return None
        if status in (401, 403):
            key = "refuses the key in" if self._has_key else "wants a key: give it by"
            return Trouble(str(status), f"{path} {key} --engine-api-key (PD_ROUTER_ENGINE_API_KEY)")
        if status == 503:
            return Trouble("503", "it takes no requests: shutting down, or dead; see its log")
        return Trouble(str(status), f"{path} answers {status}: is this URL a vLLM server's base?")

    async def _get(self, path: str) -> _Answer | Trouble:
        try:
            async with self._session.get(
                self._endpoint.url + path, allow_redirects=False
            ) as response:
                return _Answer(response.status, await _bounded(response))
        except TimeoutError:
            return Trouble(
                "timeout",
                f"no answer to {path} in {self._seconds:g} s: a firewall, a wrong address or a "
                "stuck engine; --health-check-timeout sets the patience",
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return trouble_of(error)


def trouble_of(error: Exception) -> Trouble:
    """What a library's error means. The kinds derive from each other: narrow ones first."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return Trouble("unknown host", "the host's name does not resolve: check the URL")
        case aiohttp.ClientConnectorCertificateError():
            text = "its certificate is not trusted: give its CA by --engine-ca-file"
            return Trouble("certificate", text)
        case aiohttp.ClientConnectorSSLError():
            return Trouble("no TLS", "it does not speak TLS there: try http://")
        case aiohttp.ClientConnectorError() if isinstance(error.os_error, ConnectionRefusedError):
            return Trouble(
                "refused",
                "nothing listens there: check host and port; vLLM listens once its model is loaded",
            )
        case aiohttp.ClientConnectorError():
            reason = error.os_error.strerror or "no route"
            return Trouble("unreachable", f"no connection: {reason}; check host and network")
    text = "it broke the connection off: is it HTTP there, or https://?"
    return Trouble("broken", text)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _version(answer: _Answer) -> str | None:
    document = _json(answer)
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, str) else None


def _models(answer: _Answer) -> dict[str, int | None] | None:
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


def _json(answer: _Answer) -> Any:
    try:
        return orjson.loads(answer.body) if answer.status == 200 else None
    except orjson.JSONDecodeError:
        return None
