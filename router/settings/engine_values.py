"""The kinds of values that tell of engines: URLs, names, where they publish or receive KV caches.

Nothing here knows a setting's name, as in `values`.
"""

import re
from pathlib import Path
from typing import Annotated, Self

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

from router.core.membership import engines_file
from router.core.membership.engine_names import DnsName, dns_name, label_selector, pod_port
from router.settings.files import once, read_json
from router.settings.values import ALL, Port, Ports, Text, UniqueList, Whole, number, plain_url

__all__ = [
    "DnsNames",
    "EnginesFile",
    "KVEventSource",
    "KVEventSources",
    "LimitByEngine",
    "Namespace",
    "PodPorts",
    "PortByEngine",
    "Receiver",
    "Registry",
    "Selector",
    "Urls",
]


def _normalised(registry: object) -> object:
    """URLs compare by their normalised spelling, so two spellings of one are a duplicate."""
    if not isinstance(registry, dict):
        return registry
    return once((plain_url(str(url)), entry) for url, entry in registry.items())


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


Selector = Annotated[str, AfterValidator(label_selector)]
Namespace = Annotated[str, AfterValidator(_namespace)]
EnginesFile = Annotated[Path, AfterValidator(_engines_file)]
Urls = UniqueList[Annotated[str, AfterValidator(plain_url)]]
PodPorts = Annotated[
    UniqueList[Annotated[int | str, BeforeValidator(pod_port)]], Field(min_length=1)
]
# Plain: compiled, DnsName does not tell the types of its members.
DnsNames = UniqueList[Annotated[DnsName, PlainValidator(_dns_name)]]


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


def _by_engine(value: object) -> object:
    """One number for all engines, or a mapping from URL to number."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    value = read_json(number(value))
    if isinstance(value, dict):
        return once(
            (url if url == ALL else plain_url(str(url)), each) for url, each in value.items()
        )
    return {ALL: value}


LimitByEngine = Annotated[
    dict[str, Annotated[Whole, Field(ge=1)]], NoDecode, BeforeValidator(_by_engine)
]

PortByEngine = Annotated[dict[str, Port], NoDecode, BeforeValidator(_by_engine)]

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
