"""Every setting, once: its flag, environment variable, file key, default, unit and reason.

Order of precedence: command line, environment (`PD_ROUTER_*`), the file given by `--config`,
default. The README's table is generated from this class. No other file reads the environment.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from router.core.urls import normalise

__all__ = ["ENV_PREFIX", "Settings", "SettingsError", "flag", "load"]

ENV_PREFIX = "PD_ROUTER_"

# Kubernetes puts the address of every Service into the environment of every pod; a Service named
# pd-router makes variables that look like settings.
_SERVICE_LINK = re.compile(r"PD_ROUTER_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP))")


class SettingsError(Exception):
    """A configuration that cannot be used; the text names the setting in one line."""


def _split(value: object) -> object:
    """A comma list, or a repeated flag whose values may be comma lists themselves."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    parts: list[object] = []
    for item in value:
        parts += item.split(",") if isinstance(item, str) else [item]
    return [part.strip() if isinstance(part, str) else part for part in parts if part != ""]


def _json(value: object) -> object:
    """JSON text, or the path of a file that holds it behind an @."""
    if not isinstance(value, str):
        return value
    text = value
    if value.startswith("@"):
        try:
            text = Path(value[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot read {value[1:]}: {error.strerror}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _unique(urls: tuple[str, ...]) -> tuple[str, ...]:
    for place, url in enumerate(urls):
        if url in urls[:place]:
            raise ValueError(f"{url} is given twice")
    return urls


Url = Annotated[str, AfterValidator(normalise)]
Urls = Annotated[tuple[Url, ...], NoDecode, BeforeValidator(_split), AfterValidator(_unique)]
Ports = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65535)], ...], NoDecode, BeforeValidator(_split)
]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Strategy = Literal["round_robin", "least_loaded"]


class Settings(BaseSettings):
    """The router's configuration, frozen once it is read."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    host: str = Field("0.0.0.0", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")

    prefill: Urls = Field(
        (),
        description="Prefill engine URL; repeat the flag or give a comma list. Without one every "
        "request goes straight to a decode engine: a plain pool of whole engines.",
    )
    decode: Urls = Field(
        (), description="Decode engine URL; repeat the flag or give a comma list. At least one."
    )
    routing_threshold: int = Field(
        0,
        ge=0,
        description="Requests of at least this many estimated input tokens are prefilled "
        "remotely; 0 means always. Below a few thousand tokens a KV transfer costs more than "
        "the prefill it saves.",
    )
    load_balancing_strategy: Strategy = Field(
        "round_robin", description="How engines are chosen: round_robin or least_loaded."
    )
    prefill_load_balancing_strategy: Strategy | None = Field(
        None, description="The strategy for prefill engines, if it differs."
    )
    decode_load_balancing_strategy: Strategy | None = Field(
        None, description="The strategy for decode engines, if it differs."
    )

    disagg_connector_type: Literal["nixl", "lmcache"] = Field(
        "nixl", description="The engines' KV connector: nixl (NixlConnector) or lmcache."
    )
    decoder_host: str | None = Field(
        None, description="LMCache, one decoder: the host on which it receives KV caches."
    )
    decoder_init_port: Ports = Field(
        (), description="LMCache, one decoder: its init ports, one per tensor-parallel rank."
    )
    decoder_alloc_port: Ports = Field(
        (), description="LMCache, one decoder: its alloc ports, one per tensor-parallel rank."
    )
    decoder_registry: Annotated[
        dict[str, dict[str, Any]] | None, NoDecode, BeforeValidator(_json)
    ] = Field(
        None,
        description="LMCache, several decoders: JSON (or @FILE) from decode URL to receiver_host, "
        "receiver_init_port and receiver_alloc_port. Every decode URL must be in it.",
    )
    lmcache_notify_bind: str | None = Field(
        None,
        description="LMCache: bind here (tcp://0.0.0.0:7500) for KV-ready notifications and "
        "decode only after them. Off by default: engines may run with "
        "pd_skip_proxy_notification.",
    )
    lmcache_notify_timeout: Seconds = Field(
        10.0,
        description="Seconds to wait for those notifications; then the decode engine computes "
        "the prompt itself.",
    )

    engine_stats_interval: Seconds = Field(
        1.0,
        description="Seconds between scrapes of each engine's /metrics. Own requests are counted "
        "exactly; scrapes only add what others put there.",
    )
    health_check_interval: Seconds = Field(
        5.0,
        description="Seconds between probes of each engine's /health; an engine that is not up is "
        "probed every second.",
    )
    health_check_timeout: Seconds = Field(
        2.0,
        description="Seconds that a probe or scrape may take; /health answers in "
        "milliseconds even under load.",
    )
    engine_api_key: str | None = Field(
        None,
        repr=False,
        description="Sent to engines as the bearer token, in place of the client's.",
    )
    engine_ca_file: Path | None = Field(
        None, description="CA certificates (PEM) for https engines; default: the system's."
    )

    connect_timeout: Seconds = Field(
        5.0,
        description="Seconds for a connection to an engine; a lost SYN is resent after 1 s "
        "and 3 s.",
    )
    prefill_timeout: Seconds = Field(
        120.0,
        description="Seconds for a prefill engine's whole reply; then another one is tried. Long "
        "prompts queue there.",
    )
    first_byte_timeout: Seconds = Field(
        600.0,
        description="Seconds to the first byte of an answer. A unary answer has none before all "
        "its tokens are made.",
    )
    stream_idle_timeout: Seconds = Field(
        120.0,
        description="Seconds of silence that end a stream with an error frame. A first CUDA graph "
        "capture takes up to a minute.",
    )
    body_timeout: Seconds = Field(
        60.0, description="Seconds for a request's body to arrive: 64 MiB at 10 Mbit/s."
    )
    client_stall_timeout: Seconds = Field(
        300.0,
        description="Seconds that a client may refuse to read before its connection is cut: it "
        "holds a slot of its engine.",
    )
    shutdown_grace: float = Field(
        30.0,
        ge=0,
        le=86400,
        description="Seconds that streams get to finish after SIGTERM; then they end with an "
        "error frame. Kubernetes kills after terminationGracePeriodSeconds: keep that longer.",
    )

    max_body_bytes: int = Field(
        64 << 20,
        ge=1024,
        description="Largest request body in bytes; it is held in memory while it is routed.",
    )
    max_idle_connections: int = Field(
        512,
        ge=0,
        description="Idle connections kept per engine. In use there may be any number: engines "
        "queue, the router does not.",
    )
    idle_connection_timeout: float = Field(
        4.0,
        gt=0,
        description="Seconds that an idle connection to an engine is kept; must stay below the "
        "engine's own limit, 5 s in vLLM (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).",
    )
    keep_alive_timeout: Seconds = Field(
        75.0,
        description="Seconds that an idle client connection is kept; longer than the 60 s of "
        "common load balancers, so that they close first.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is logged. info holds one line per request."
    )
    log_format: Literal["text", "json"] = Field("text", description="How it is logged.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.decode:
            raise ValueError("--decode: at least one decode engine is needed")
        if both := set(self.prefill) & set(self.decode):
            raise ValueError(f"--decode: {min(both)} is given as a prefill engine too")
        if self.disagg_connector_type == "lmcache" and self.prefill:
            self._check_receivers()
        return self

    def _check_receivers(self) -> None:
        if self.decoder_registry is None and self.decoder_host is None:
            raise ValueError("--decoder-registry (or --decoder-host): lmcache needs a receiver")
        if self.decoder_registry is None and len(self.decode) > 1:
            raise ValueError("--decoder-registry: several decode engines need one receiver each")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags come as arguments; then the environment; then the file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


def flag(name: str) -> str:
    """A field's flag on the command line."""
    return "--" + name.replace("_", "-")


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Read the settings. Raises SettingsError, in one line that names the culprit."""
    _refuse_unknown_environment(os.environ)
    if config is not None:
        _check_file(config)
    with_file = type("Settings", (Settings,), {"model_config": {"yaml_file": config}})
    try:
        return with_file(**flags)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None


def _check_file(config: Path) -> None:
    """pydantic-settings passes over a file that it cannot find."""
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: cannot read {config}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).replace("\n", " ")
        raise SettingsError(f"--config: {config} is not YAML: {reason}") from None
    if content is not None and not isinstance(content, dict):
        raise SettingsError(f"--config: {config} must hold keys and values")


def _refuse_unknown_environment(environment: Mapping[str, str]) -> None:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    for name, value in environment.items():
        if not name.startswith(ENV_PREFIX) or _SERVICE_LINK.match(name):
            continue
        if name not in known and name != ENV_PREFIX + "PORT":
            raise SettingsError(f"{name}: no such setting; see pd-router serve --help")
        if name == ENV_PREFIX + "PORT" and value.startswith("tcp://"):
            raise SettingsError(
                f"{name}={value} was set by Kubernetes for a Service of that name; "
                "set enableServiceLinks: false in the pod"
            )


def _one_line(error: ValidationError) -> str:
    """The first problem; pydantic's own text spans lines and names classes."""
    problem = error.errors(include_url=False)[0]
    text = problem["msg"].removeprefix("Value error, ").replace("\n", " ")
    if not problem["loc"]:
        return text
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return f"{name}: no such setting; see pd-router serve --help"
    return f"{flag(name)}: {text}, got {problem['input']!r}"
