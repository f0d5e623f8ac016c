"""Reads the settings: from the command line, the environment (`PD_ROUTER_*`) and a file."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from router.settings import checks
from router.settings.fields import ENV_PREFIX, Settings, flag
from router.settings.files import read_yaml

__all__ = [
    "SettingsError",
    "SettingsSource",
    "admin_key_file",
    "admin_url",
    "examine",
    "load",
    "suggestion",
]

# Kubernetes puts the address of every Service into the environment of every pod: those of
# Services named pd-router or pd-router-metrics look like settings.
_SERVICE_LINK = re.compile(
    r"PD_ROUTER_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")

TEXTS = {"tuple_type": "must be one value or a list", "dict_type": "must be a mapping"}
"""What pydantic says in words of Python, by its error's type."""

MAX_SHOWN = 80
"""Characters of a wrong value in an error's line: enough for a URL; a registry would fill pages."""


class SettingsError(Exception):
    """A configuration that cannot be used; the text names the setting in one line."""


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """Where a router's settings are read, again and again: the flags of its command line, its
    environment, and `file`, if there is one."""

    flags: Mapping[str, Any]
    file: Path | None = None

    def read(self) -> Settings:
        """Read the settings. Raises SettingsError."""
        return load(self.flags, self.file)

    def __str__(self) -> str:
        """The sources in use, strongest first: "flags, environment, router.yaml"."""
        used = {
            "flags": self.flags,
            "environment": _environment(),
            str(self.file): self.file is not None,
        }
        return ", ".join(name for name, is_used in used.items() if is_used) or "defaults"


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Read the settings. Raises SettingsError, in one line that names the culprit."""
    settings, problems = examine(flags, config)
    if settings is None or problems:
        raise SettingsError(problems[0])
    return settings


def examine(
    flags: Mapping[str, Any], config: Path | None = None
) -> tuple[Settings | None, list[str]]:
    """The settings, None where some cannot be used, and a line for each problem: the one to mend
    first is the first."""
    problems = list(_unknown_environment(os.environ))
    content: dict[str, Any] = {}
    if config is not None:
        try:
            content = _file(config)
        except SettingsError as error:
            return None, [*problems, str(error)]
        problems += _unknown_keys(config, content)
    from_file = {key: value for key, value in content.items() if key in Settings.model_fields}
    from_environment = _environment()

    def source(name: str) -> str:
        if name in flags:
            return flag(name)
        if name in from_environment:
            return ENV_PREFIX + name.upper()
        return f"--config {config}: {name}"

    try:
        settings = Settings(**{**from_file, **from_environment, **flags})
    except ValidationError as error:
        return None, [*problems, *_lines(error, source)]
    misfits = list(checks.problems(settings))
    return None if misfits else settings, [*problems, *misfits]


def admin_url() -> str | None:
    """The admin listener of a router that is configured by this environment, on this host."""
    port = os.environ.get(ENV_PREFIX + "ADMIN_PORT")
    return f"http://127.0.0.1:{port}" if port else None


def admin_key_file() -> Path | None:
    """The file of the keys that it wants."""
    path = os.environ.get(ENV_PREFIX + "ADMIN_KEY_FILE")
    return Path(path) if path else None


def suggestion(wrong: str, names: Iterable[str]) -> str:
    """ ", did you mean ...?" for a misspelt name, or nothing."""
    near = difflib.get_close_matches(wrong, list(names), 1)
    return f", did you mean {near[0]}?" if near else ""


def _environment() -> dict[str, Any]:
    """The settings in the environment; their values are not checked yet."""
    if not any(name.upper().startswith(ENV_PREFIX) for name in os.environ):
        return {}  # pydantic-settings would examine the types of all settings, which takes 3 ms
    return EnvSettingsSource(Settings)()


def _file(config: Path) -> dict[str, Any]:
    """The settings in a file; their values are not checked yet."""
    try:
        content = read_yaml(config)
    except ValueError as error:
        raise SettingsError(f"--config: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config: {config} must hold keys and values")
    return content


def _unknown_keys(config: Path, content: Mapping[str, Any]) -> Iterator[str]:
    for key in content:
        if key not in Settings.model_fields:
            near = suggestion(str(key), Settings.model_fields)
            yield f"--config {config}: {key}: no such setting{near}"


def _unknown_environment(environment: Mapping[str, str]) -> Iterator[str]:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    for name, value in environment.items():
        is_ours = name.upper().startswith(ENV_PREFIX)
        if not is_ours or _SERVICE_LINK.fullmatch(name):
            continue
        is_url = name.endswith("_PORT") and _SERVICE_URL.match(value)
        if name == ENV_PREFIX + "PORT" and is_url:
            yield (
                f"{name}={value} was set by Kubernetes for a Service of that name; "
                "set enableServiceLinks: false in the pod"
            )
        elif name.upper() == ENV_PREFIX + "CONFIG":
            yield f"{name}: no such setting; name the file with --config FILE"
        elif name.upper() not in known and not is_url:
            yield f"{name}: no such setting{suggestion(name, known)}"


def _lines(error: ValidationError, source: Callable[[str], str]) -> Iterator[str]:
    """A line for each problem; pydantic's own text spans lines and names classes."""
    # A misspelt key is a missing one too, and its name is the better hint.
    found = error.errors(include_url=False)
    for problem in sorted(found, key=lambda problem: problem["type"] != "extra_forbidden"):
        yield _line(problem, source)


def _line(problem: Any, source: Callable[[str], str]) -> str:
    text = TEXTS.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return text
    name, *path = problem["loc"]
    places = [source(str(name)), *(place for place in path if isinstance(place, str))]
    if problem["type"] == "extra_forbidden":
        text = "no such key"
    elif problem["type"] == "missing":
        text = "is missing"
    elif problem["type"] != "value_error" and Settings.model_fields[str(name)].repr:
        text += f", got {_shown(problem['input'])}"
    return ": ".join([*places, text])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
