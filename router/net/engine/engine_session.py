"""aiohttp sessions for what the router asks engines beside inference: probes, scrapes, surveys."""

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
    """A session with the engines' key and certificates; proxies of the environment are not
    used. Without `keep_alive_seconds` each request connects and resolves names again; without
    `timeout_seconds` aiohttp's own limit holds. Needs a running event loop.

    Engines' cookies are not kept, and what they compress is not decompressed: both could fill the
    memory."""
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
    """The whole body of an answer. Raises ValueError for one of more than `limit` bytes."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            raise ValueError(f"more than {limit} bytes")
    return bytes(body)
