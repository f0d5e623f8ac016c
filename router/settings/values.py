"""The kinds of values that settings have: how their text is read, and what is refused.

Nothing here knows a setting's name. What is refused says so without quoting a secret.
"""

import os
import re
import ssl
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from router.core.limits.api_keys import ApiKeys
from router.core.model_alias import check_aliases, parse
from router.core.policies import POLICIES
from router.core.urls import normalise, origin
from router.settings.files import once, read_json, read_text

__all__ = [
    "ALL",
    "Bind",
    "Certificates",
    "ExistingFile",
    "HeaderName",
    "ImageTokens",
    "Impact",
    "Key",
    "Keys",
    "ListeningPort",
    "ModelAliases",
    "Networks",
    "Origins",
    "PathPrefix",
    "Port",
    "Ports",
    "Seconds",
    "SecondsOrZero",
    "Share",
    "SocketPath",
    "Strategy",
    "Text",
    "Threshold",
    "TracesUrl",
    "UniqueList",
    "Whole",
    "Workers",
    "number",
    "plain_url",
]


MAX_SOCKET_PATH = 90
"""Of the 107 bytes that a Unix socket's path may have; the rest is for a name beside it."""

MAX_IMAGE_TOKENS = 65_536
"""Of one image: more is a typing error."""

ALL = "*"
"""In a mapping from URLs: all that are not named."""


def _comma_list(value: object) -> object:
    """A comma list, or a repeated flag whose values may be comma lists themselves."""
    if isinstance(value, str | int):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    parts: list[object] = []
    for item in value:
        parts += [p.strip() for p in item.split(",")] if isinstance(item, str) else [item]
    return [part for part in parts if part != ""]


def plain_url(url: str) -> str:
    """The normal form of a URL; one with credentials is refused, and not quoted."""
    if "@" in url:  # what stands before it is a secret
        raise ValueError(f"the URL of {url.rpartition('@')[2]!r} must hold no credentials")
    return normalise(url)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    once((value, None) for value in values)
    return values


def number(value: object) -> object:
    """YAML's `yes` and `on` are true, which Python takes for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not yes or no")  # noqa: TRY004 - pydantic wants it
    return value


def _key(key: str) -> str:
    """A key that goes into a header. Files of secrets tend to end in a newline."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("must be one word of visible ASCII characters")
    return key


def _bind(address: str) -> str:
    found = re.fullmatch(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*]+):([0-9]{1,5})", address)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ValueError(f"must be like tcp://0.0.0.0:7500, got {address!r}")
    return address


def _certificates(path: Path) -> Path:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ValueError(f"{path} holds no PEM certificates") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return path


def _traces_url(url: str) -> str:
    """With the path that OTLP has for traces, where the URL has none."""
    place = origin(plain_url(url))
    return place.url if place.prefix else f"{place.url}/v1/traces"


def _existing(path: Path) -> Path:
    read_text(path)
    return path


def _keys(path: Path) -> Path:
    try:
        ApiKeys(read_text(path))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(path) in text else f"{path}: {text}") from None
    return path


def _socket_path(path: Path) -> Path:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"a socket's path has at most {MAX_SOCKET_PATH} bytes: {path}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    if path.exists() and not path.is_socket():
        raise ValueError(f"{path} is there and is no socket: it would be replaced")
    return path


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8: {error}") from None


def _web_origin(text: str) -> str:
    """An origin as browsers send it: scheme, host and a port that is not the scheme's default."""
    if text == ALL:
        return text
    try:
        place = origin(text)
    except ValueError:
        place = None
    if place is None or place.prefix:
        raise ValueError(f"must be an origin such as https://app.example.com, or *, got {text!r}")
    return place.url


def _alias_list(value: object) -> object:
    """Aliases as texts; also from a mapping of names."""
    return [f"{name}={text}" for name, text in value.items()] if isinstance(value, dict) else value


def _aliases(texts: tuple[str, ...]) -> tuple[str, ...]:
    check_aliases(map(parse, texts))
    return texts


def _path_prefix(path: str) -> str:
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", path) is None:
        raise ValueError("must be a path such as /llm")
    return path.rstrip("/")


def _header_name(name: str) -> str:
    if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None:
        raise ValueError("must be a header's name")
    return name.lower()


def _image_tokens(value: object) -> object:
    """Tokens, or the pixels of one. A union's own errors would name each of its types."""
    value = number(value)
    if isinstance(value, int) and 1 <= value <= MAX_IMAGE_TOKENS:
        return value
    if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,2}x[1-9]\d{0,2}", value):
        return value
    raise ValueError(
        f"must be an image's tokens, 1 to {MAX_IMAGE_TOKENS}, or a token's pixels as 32x32, "
        f"got {value!r}"
    )


T = TypeVar("T")
UniqueList = Annotated[
    tuple[T, ...], NoDecode, BeforeValidator(_comma_list), AfterValidator(_unique)
]
Text = Annotated[str, Field(min_length=1)]
TracesUrl = Annotated[str, AfterValidator(_traces_url)]
ExistingFile = Annotated[Path, AfterValidator(_existing)]
Key = Annotated[str, AfterValidator(_key)]
ModelAliases = Annotated[UniqueList[str], BeforeValidator(_alias_list), AfterValidator(_aliases)]
ImageTokens = Annotated[
    dict[Text, Annotated[int | str, BeforeValidator(_image_tokens)]],
    NoDecode,
    BeforeValidator(read_json),
]
Keys = Annotated[Path, AfterValidator(_keys)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
PathPrefix = Annotated[str, AfterValidator(_path_prefix)]
SocketPath = Annotated[Path, AfterValidator(_socket_path)]
Networks = UniqueList[Annotated[str, AfterValidator(_network)]]
Origins = UniqueList[Annotated[str, AfterValidator(_web_origin)]]
Bind = Annotated[str, AfterValidator(_bind)]
Certificates = Annotated[Path, AfterValidator(_certificates)]
Whole = Annotated[int, BeforeValidator(number)]
ListeningPort = Annotated[Whole, Field(ge=0, le=65535)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
Ports = Annotated[tuple[Port, ...], NoDecode, BeforeValidator(_comma_list)]
# A day: what is longer is a typing error.
SecondsOrZero = Annotated[float, BeforeValidator(number), Field(ge=0, le=86400)]
Seconds = Annotated[SecondsOrZero, Field(gt=0)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1)]
# A hundred times: what is more is no limit.
Impact = Annotated[float, BeforeValidator(number), Field(ge=0, le=100)]
Workers = Annotated[int, BeforeValidator(lambda value: _workers(value)), Field(ge=1, le=256)]
if TYPE_CHECKING:
    Strategy = str
else:  # the name of a policy; its error lists them
    Strategy = Literal[tuple(POLICIES)]
Threshold = Annotated[int | Literal["auto"], BeforeValidator(lambda value: _threshold(value))]


def _threshold(value: object) -> object:
    """Tokens, or "auto". A union's own errors would name each of its types."""
    value = number(value)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if value == "auto" or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError(f"must be a number of tokens, 0 or more, or auto, got {value!r}")


def _workers(value: object) -> object:
    """A number, or "auto": one for each core that this process may use."""
    return CORES_AT_START if value == "auto" else number(value)


CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit (cgroup v2): microseconds of CPU, or "max", and the period's microseconds."""


def cores() -> int:
    """The processor cores that this process may use: a container's limit counts, too."""
    found = len(os.sched_getaffinity(0))
    try:
        limit, period = CPU_LIMIT.read_text().split()
    except (OSError, ValueError):
        return found
    return found if limit == "max" else max(1, min(found, int(limit) // int(period)))


CORES_AT_START: Final = cores()
"""Counted once: another number of workers needs a restart, which a reload must not cause."""
