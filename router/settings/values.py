"""The kinds of values that settings have: how their text is read, and what is refused.

Nothing here knows a setting's name. What is refused says so without quoting a secret.
"""

import os
import re
import ssl
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)
from pydantic_settings import NoDecode

from router.core import engines_file
from router.core.api_keys import ApiKeys
from router.core.discovery_names import DnsName, dns_name, label_selector, pod_port
from router.core.urls import normalise, origin
from router.settings.files import once, read_json, read_text

__all__ = [
    "ALL",
    "Bind",
    "Certificates",
    "DnsNames",
    "EnginesFile",
    "ExistingFile",
    "HeaderName",
    "Impact",
    "KVEventSource",
    "KVEventSources",
    "Key",
    "Keys",
    "LimitByEngine",
    "Namespace",
    "Networks",
    "Origins",
    "PodPorts",
    "Port",
    "Ports",
    "Receiver",
    "Registry",
    "Seconds",
    "SecondsOrZero",
    "Selector",
    "Share",
    "SocketPath",
    "Strategy",
    "Text",
    "Threshold",
    "TracesUrl",
    "Urls",
    "Whole",
    "Workers",
]


def _split(value: object) -> object:
    """A comma list, or a repeated flag whose values may be comma lists themselves."""
    if isinstance(value, str | int):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    parts: list[object] = []
    for item in value:
        parts += [p.strip() for p in item.split(",")] if isinstance(item, str) else [item]
    return [part for part in parts if part != ""]


def _url(url: str) -> str:
    if "@" in url:  # what stands before it is a secret
        raise ValueError(f"the URL of {url.rpartition('@')[2]!r} must hold no credentials")
    return normalise(url)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    once((value, None) for value in values)
    return values


def _normalised(registry: object) -> object:
    """URLs compare by their normalised spelling, so two spellings of one are a duplicate."""
    if not isinstance(registry, dict):
        return registry
    return once((_url(str(url)), entry) for url, entry in registry.items())


def _number(value: object) -> object:
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
    place = origin(_url(url))
    return place.url if place.prefix else f"{place.url}/v1/traces"


def _engines_file(path: Path) -> Path:
    """A mistake in it is told at the start; later the last good set stays."""
    try:
        engines_file.read(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return path


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise ValueError(f"must be a Kubernetes namespace, got {text!r}")
    return text


def _dns_name(value: object) -> DnsName:
    return dns_name(str(value))


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
    return path


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8: {error}") from None


def _web_origin(text: str) -> str:
    """As browsers send it: scheme, host and a port that is not the scheme's own."""
    if text == ALL:
        return text
    try:
        place = origin(text)
    except ValueError:
        place = None
    if place is None or place.prefix:
        raise ValueError(f"must be an origin such as https://app.example.com, or *, got {text!r}")
    return place.url


def _header_name(name: str) -> str:
    if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None:
        raise ValueError("must be a header's name")
    return name.lower()


Text = Annotated[str, Field(min_length=1)]
TracesUrl = Annotated[str, AfterValidator(_traces_url)]
Selector = Annotated[str, AfterValidator(label_selector)]
Namespace = Annotated[str, AfterValidator(_namespace)]
ExistingFile = Annotated[Path, AfterValidator(_existing)]
Key = Annotated[str, AfterValidator(_key)]
Keys = Annotated[Path, AfterValidator(_keys)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
SocketPath = Annotated[Path, AfterValidator(_socket_path)]
Networks = Annotated[
    tuple[Annotated[str, AfterValidator(_network)], ...],
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(_unique),
]
Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_web_origin)], ...],
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(_unique),
]
Bind = Annotated[str, AfterValidator(_bind)]
Certificates = Annotated[Path, AfterValidator(_certificates)]
EnginesFile = Annotated[Path, AfterValidator(_engines_file)]
Urls = Annotated[
    tuple[Annotated[str, AfterValidator(_url)], ...],
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(_unique),
]
Whole = Annotated[int, BeforeValidator(_number)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
Ports = Annotated[tuple[Port, ...], NoDecode, BeforeValidator(_split)]
PodPorts = Annotated[
    tuple[Annotated[int | str, BeforeValidator(pod_port)], ...],
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(_unique),
    Field(min_length=1),
]
DnsNames = Annotated[
    # Plain: compiled, DnsName does not tell the types of its members.
    tuple[Annotated[DnsName, PlainValidator(_dns_name)], ...],
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(_unique),
]
# A day: what is longer is a typing error.
SecondsOrZero = Annotated[float, BeforeValidator(_number), Field(ge=0, le=86400)]
Seconds = Annotated[SecondsOrZero, Field(gt=0)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
# A hundred times: what is more is no limit.
Impact = Annotated[float, BeforeValidator(_number), Field(ge=0, le=100)]
Workers = Annotated[int, BeforeValidator(lambda value: _workers(value)), Field(ge=1, le=256)]
Strategy = Literal["round_robin", "least_loaded", "shortest_expected_delay"]
Threshold = Annotated[int | Literal["auto"], BeforeValidator(lambda value: _threshold(value))]


def _threshold(value: object) -> object:
    """Tokens, or "auto". A union's own errors would name each of its types."""
    value = _number(value)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if value == "auto" or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError(f"must be a number of tokens, 0 or more, or auto, got {value!r}")


def _workers(value: object) -> object:
    """A number, or "auto": one for each core that this process may use."""
    return cores() if value == "auto" else _number(value)


CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit (cgroup v2): microseconds of CPU, or "max", in each period of so many."""


def cores() -> int:
    """The processor cores that this process may use: a container's limit counts, too."""
    found = len(os.sched_getaffinity(0))
    try:
        limit, period = CPU_LIMIT.read_text().split()
    except (OSError, ValueError):
        return found
    return found if limit == "max" else max(1, min(found, int(limit) // int(period)))


class Receiver(BaseModel):
    """Where a decode engine's LMCache takes KV caches: a port of each kind per rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    receiver_host: Text
    receiver_init_port: Annotated[Ports, Field(min_length=1)]
    receiver_alloc_port: Annotated[Ports, Field(min_length=1)]

    @model_validator(mode="after")
    def _one_per_rank(self) -> Self:
        init, alloc = len(self.receiver_init_port), len(self.receiver_alloc_port)
        if init != alloc:
            raise ValueError(f"{init} init and {alloc} alloc ports: there is one of each per rank")
        return self


MAX_SOCKET_PATH = 90
"""Of the 107 bytes that a Unix socket's path may have; the rest is for a name beside it."""

ALL = "*"
"""In a mapping from URLs: all that are not named."""


def _by_engine(value: object) -> object:
    """One number for all engines, or a mapping from URL to number."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    value = read_json(_number(value))
    if isinstance(value, dict):
        return once((url if url == ALL else _url(str(url)), each) for url, each in value.items())
    return {ALL: value}


LimitByEngine = Annotated[
    dict[str, Annotated[Whole, Field(ge=1)]], NoDecode, BeforeValidator(_by_engine)
]

_EVENTS = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*@]+):([0-9]{1,5})")


def _events_endpoint(endpoint: str) -> str:
    found = _EVENTS.fullmatch(endpoint)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ValueError(f"must be like tcp://host:5557, got {endpoint!r}")
    return endpoint


class KVEventSource(BaseModel):
    """Where an engine, or one data-parallel rank of it, publishes its KV-cache events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Annotated[str, AfterValidator(_events_endpoint)]
    replay_endpoint: Annotated[str, AfterValidator(_events_endpoint)] | None = None
    topic: str = ""


AUTO = "auto"
"""In place of a mapping from URLs: engines are asked."""


def _sources(value: object) -> object:
    """A mapping from URL to a source or a list of them; none for `auto`."""
    if value == AUTO:
        return None
    registry = _normalised(read_json(value))
    if not isinstance(registry, dict):
        return registry
    return {url: each if isinstance(each, list) else [each] for url, each in registry.items()}


KVEventSources = Annotated[
    dict[str, tuple[KVEventSource, ...]] | None, NoDecode, BeforeValidator(_sources)
]

Registry = Annotated[
    dict[str, Receiver], NoDecode, BeforeValidator(_normalised), BeforeValidator(read_json)
]
