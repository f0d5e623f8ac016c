"""Engine URLs: their normal form, and the parts that a connection needs."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Origin", "normalise", "origin", "split_rank", "with_rank"]

DEFAULT_PORTS = {"http": 80, "https": 443}

# Host and path are written into request heads unchanged.
_PRINTABLE = re.compile(r"[!-~]*")
# Python before 3.11.12 accepts text around the brackets of an IPv6 literal.
_NETLOC = re.compile(r"(?:[^@\[\]]*@)?(?:[^@\[\]]+|\[[^\[\]]+\](?::\d*)?)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens: `host` without brackets, `prefix` without a trailing slash."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self._scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The normalised URL."""
        return f"{self._scheme}://{self.authority}{self.prefix}"

    @property
    def _scheme(self) -> str:
        return "https" if self.tls else "http"


def origin(url: str) -> Origin:
    """Split an engine's base URL.

    Single-label hosts, IPv6 literals, https and a path prefix are accepted. Raises ValueError,
    naming the URL, for anything that is not an http(s) base URL.
    """
    text = url.strip()
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"{url!r} must start with http:// or https://")
    if not _PRINTABLE.fullmatch(text):
        raise ValueError(f"{url!r} must be printable ASCII without spaces")
    if not parts.hostname or not _NETLOC.fullmatch(parts.netloc):
        raise ValueError(f"{url!r} names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{url!r} must hold no credentials, query or fragment")
    if port == 0:
        raise ValueError(f"{url!r} has port 0")
    return Origin(
        host=parts.hostname,
        port=port or DEFAULT_PORTS[parts.scheme],
        tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/"),
    )


def normalise(url: str) -> str:
    """The normal form in which URLs are compared: `HTTP://D0:80/` becomes `http://d0`."""
    return origin(url).url


def with_rank(url: str, rank: int) -> str:
    """The name of a data-parallel rank of an engine: `http://d0:8000#3`."""
    return f"{url}#{rank}"


def split_rank(url: str) -> tuple[str, int | None]:
    """The URL of an endpoint's engine, and its data-parallel rank; None: the whole engine. Raises
    ValueError if the rank is invalid."""
    base, mark, rank = url.partition("#")
    if not mark:
        return url, None
    if not (rank.isascii() and rank.isdecimal() and len(rank) <= 4):
        raise ValueError(f"{url!r} has no rank behind its #")
    return base, int(rank)
