"""A setting's names: its flag and its environment variable."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["ENV_PREFIX", "admin_key_file", "admin_url", "flag", "suggestion"]

ENV_PREFIX = "PD_ROUTER_"


def flag(name: str) -> str:
    """A field's flag on the command line."""
    return "--" + name.replace("_", "-")


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
