"""aiohttp sessions for what the router asks engines beside inference: probes, scrapes, surveys."""

import ssl
from pathlib import Path

import aiohttp

__all__ = ["engine_session"]


def engine_session(
    api_key: str | None,
    ca_file: Path | None,
    *,
    keep_alive_seconds: float | None = None,
    timeout_seconds: float | None = None,
) -> aiohttp.ClientSession:
    """A session with the engines' key and certificate authority; proxies of the environment are not
    used. Without `keep_alive_seconds` each request connects and resolves names anew; without
    `timeout_seconds` aiohttp's own limit holds. Needs a running event loop."""
    tls = ssl.create_default_context(cafile=ca_file)
    if keep_alive_seconds is None:
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, force_close=True, use_dns_cache=False)
    else:
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, keepalive_timeout=keep_alive_seconds)
    timeout = aiohttp.ClientTimeout(total=timeout_seconds) if timeout_seconds is not None else None
    return aiohttp.ClientSession(
        connector=connector,
        headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
        timeout=timeout or aiohttp.client.DEFAULT_TIMEOUT,
        trust_env=False,
    )
