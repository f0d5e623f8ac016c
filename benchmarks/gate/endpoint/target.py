"""The bytes that go to the endpoint: the validator's request (reference 1.2), ready to be sent.

Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

from benchmarks.gate.profiles import Profile
from benchmarks.gate.traffic.load import Target

# The validator's rule for names of models.
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
PORTS = {"http": 80, "https": 443}
PATH = "/v1/chat/completions"


class InvalidTarget(ValueError):
    """An invalid URL or model name; the text names it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed base URL. `prefix` is a path without a slash at its end."""

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


def address(url: str) -> Address:
    """Of a base URL; a /v1 at its end, which OpenAI's clients want, is taken off.

    Raises InvalidTarget.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise InvalidTarget(f"{url}: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise InvalidTarget(f"{url}: not http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidTarget("a URL has no user, query or fragment here (keys: --api-key-env)")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if not prefix.isascii() or not prefix.isprintable() or " " in prefix:
        raise InvalidTarget(f"{url}: the path needs percent-encoding")
    return Address(parts.hostname, port, parts.scheme == "https", parts.netloc, prefix)


def check_model(model: str) -> str:
    """Raises InvalidTarget."""
    if not MODEL.fullmatch(model):
        raise InvalidTarget(f"model {model!r}: must match {MODEL.pattern}")
    return model


def body(model: str, text: str, profile: Profile) -> bytes:
    """The validator's body: the answer may end early."""
    found = {
        "messages": [{"role": "user", "content": text}],
        "model": model,
        "stream": True,
        "max_completion_tokens": profile.output_tokens,
        # As AIPerf writes it: 0, not 0.0.
        "temperature": int(profile.temperature)
        if profile.temperature == int(profile.temperature)
        else profile.temperature,
        "stream_options": {"include_usage": True},
    }
    return orjson.dumps(found)


def head(to: Address, user_agent: str, key: str | None) -> bytes:
    """For `Target.head`: places for the request's ids and the body's length."""
    lines = [
        f"POST {to.prefix}{PATH} HTTP/1.1",
        f"Host: {to.authority}",
        f"User-Agent: {user_agent}",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        *([] if key is None else [f"Authorization: Bearer {key}"]),
    ]
    fixed = "\r\n".join(lines).replace("%", "%%")
    places = "X-Request-ID: %b\r\nX-Correlation-ID: %b\r\nX-Session-Affinity: %b"
    return f"{fixed}\r\n{places}\r\nContent-Length: %d\r\n\r\n".encode("latin-1")


def headers(user_agent: str, key: str | None) -> Mapping[str, str]:
    """For questions beside the load."""
    found = {"User-Agent": user_agent}
    return found if key is None else {**found, "Authorization": f"Bearer {key}"}


def target(
    to: Address,
    model: str,
    texts: Sequence[str],
    profile: Profile,
    *,
    user_agent: str,
    key: str | None = None,
    verify: bool = True,
) -> Target:
    """The parameters of the load generator's processes."""
    bodies = tuple(body(model, text, profile) for text in texts)
    begin = head(to, user_agent, key)
    return Target(to.host, to.port, to.tls, verify, begin, bodies, profile.timeout)
