"""aiohttp sessions for all engine requests other than inference: probes, scrapes, surveys."""

import ssl

import aiohttp

__all__ = ["engine_session", "read_bounded"]


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


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the whole body of a response. Raises ValueError if it is larger than `limit` bytes."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            raise ValueError(f"more than {limit} bytes")
    return bytes(body)
