"""pd-router's command line: serve."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from router import __version__
from router.settings import Settings, SettingsError, flag, load
from router.telemetry import logs
from router.web.app import Router
from router.web.server import Server

__all__ = ["main"]

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the process's exit status."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    try:
        return int(command(options))
    except SettingsError as error:
        print(f"pd-router: {error}", file=sys.stderr)
        return USAGE_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pd-router", description="A router in front of prefill and decode vLLM engines."
    )
    parser.add_argument("--version", action="version", version=f"pd-router {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = commands.add_parser("serve", help="run the router", allow_abbrev=False)
    serve.set_defaults(command=_serve)
    _add_settings(serve)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting; pydantic checks all values, wherever they come from."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    for name, field in Settings.model_fields.items():
        is_list = isinstance(field.default, tuple)
        default = "" if field.default in (None, ()) else f" (default {field.default})"
        parser.add_argument(
            flag(name),
            action="append" if is_list else "store",
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{field.description}{default}".replace("%", "%%"),
        )


def _settings(options: dict[str, Any]) -> Settings:
    config = options.pop("config")
    return load(options, config)


def _serve(options: dict[str, Any]) -> int:
    settings = _settings(options)
    logs.configure(settings.log_level, settings.log_format)
    Server(Router(settings)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
