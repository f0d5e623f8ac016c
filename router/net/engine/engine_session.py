"""GETs to engines by aiohttp (probes, scrapes, surveys): their session, and why one has failed, in
sentences for `pd-router check` and the log."""

import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

import aiohttp

from router.net.exhaustion import is_exhaustion, remedy

__all__ = [
    "CRASHED",
    "ERRORS",
    "OWN",
    "REFUSED",
    "TIMEOUT",
    "Diagnosis",
    "Trouble",
    "engine_session",
    "read_bounded",
    "trouble_of",
]


def engine_session(
    api_key: str | None,
    tls: ssl.SSLContext,
    *,
    keep_alive_seconds: float | None = None,
    timeout_seconds: float | None = None,
) -> aiohttp.ClientSession:
    """Create a session with the engines' API key and certificates, without the environment's
    proxies. Without `keep_alive_seconds` each request opens a connection and resolves the name
    again; without `timeout_seconds` aiohttp's default applies. Needs a running event loop.

    Cookies are not stored and responses are not decompressed, since both could exhaust the memory.
    """
    if keep_alive_seconds is None:
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, force_close=True, use_dns_cache=False)
    else:
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, keepalive_timeout=keep_alive_seconds)
    timeout = aiohttp.ClientTimeout(total=timeout_seconds) if timeout_seconds is not None else None
    key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    return aiohttp.ClientSession(
        connector=connector,
        headers={"accept-encoding": "identity", **key},
        timeout=timeout or aiohttp.client.DEFAULT_TIMEOUT,
        trust_env=False,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


SHORTEN_BYTES: Final = 1 << 18
"""Bytes after which a body is shortened, on the event loop: a page of vLLM takes a millisecond."""


async def read_bounded(
    response: aiohttp.ClientResponse,
    limit: int,
    shortened: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Read the whole body of a response. Raises ValueError if it is larger than `limit` bytes.
    `shortened` drops what is not needed, each time that SHORTEN_BYTES more have arrived."""
    body, kept = bytearray(), 0
    async for part in response.content.iter_any():
        body += part
        if shortened is not None and len(body) > kept + SHORTEN_BYTES:
            body = bytearray(shortened(bytes(body)))
            kept = len(body)
        if len(body) > limit:
            raise ValueError(f"more than {limit} bytes")
    return bytes(body)


# Failed GETs.

ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
"""What a GET with aiohttp may raise; ValueError if the response is too large."""


OWN: Final = "exhausted"
"""`Trouble.health` if the cause is a limit of this process and not the engine."""

REFUSED: Final = "refused"
"""`Trouble.health` if nothing listens there."""

CRASHED: Final = "it crashed or was stopped: look at its log"
"""Advice if nothing listens any more where an engine was up."""

TIMEOUT: Final = "timeout"
"""`Trouble.health` if there was no answer in time."""


class Trouble(NamedTuple):
    """Why an engine cannot be used: a short name of the cause, and advice for the operator."""

    health: str
    advice: str | None


class Diagnosis:
    """Explains failed GETs. `timeout_seconds`: their time-out. `has_key`: whether they sent an API
    key."""

    def __init__(self, timeout_seconds: float, *, has_key: bool) -> None:
        self._seconds = timeout_seconds
        self._has_key = has_key

    def of_error(self, error: Exception, path: str) -> Trouble:
        """Explains an exception, one of `ERRORS`."""
        if isinstance(error, TimeoutError):
            return Trouble(
                TIMEOUT,
                f"no answer to {path} in {self._seconds:g} s: a busy or stuck engine, a firewall "
                "or a wrong address; --health-check-timeout sets the patience",
            )
        return trouble_of(error)

    def of_status(self, status: int, path: str) -> Trouble | None:
        """Explains a status other than 200. None for 200."""
        if status == 200:
            return None
        if status in (401, 403):
            key = "refuses the key in" if self._has_key else "wants a key: give it by"
            return Trouble(str(status), f"{path} {key} --engine-api-key (PD_ROUTER_ENGINE_API_KEY)")
        if status == 503:
            return Trouble("503", "it takes no requests: shutting down, or dead; see its log")
        return Trouble(str(status), f"{path} answers {status}: is this URL a vLLM server's base?")


def trouble_of(error: Exception) -> Trouble:
    """Explains an exception of aiohttp or the operating system. The classes derive from each other,
    so the most specific ones come first."""
    match error:
        case aiohttp.ClientConnectorDNSError() | socket.gaierror() | UnicodeError():
            return Trouble("unknown host", "the host's name does not resolve: check the URL")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            text = "its certificate is not trusted: give its CA by --engine-ca-file"
            return Trouble("certificate", text)
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return Trouble("no TLS", "it does not speak TLS there: try http://")
        case aiohttp.ClientConnectorError():
            return _no_connection(error.os_error)
        case aiohttp.ClientError() | ConnectionResetError() | ValueError():
            text = "it broke the connection off: is it HTTP there, or https://?"
            return Trouble("broken", text)
    return _no_connection(error)


def _no_connection(error: Exception) -> Trouble:
    if is_exhaustion(error):
        return Trouble(OWN, f"the router cannot open a connection: {remedy(error)}")
    if isinstance(error, ConnectionRefusedError):
        return Trouble(
            REFUSED,
            "nothing listens there: check host and port; vLLM listens once its model is loaded",
        )
    reason = getattr(error, "strerror", None) or "no route"
    return Trouble("unreachable", f"no connection: {reason}; check host and network")
