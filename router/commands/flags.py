"""The flags of the commands, a parser whose errors take one line, and the error for wrong use."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from router.commands.settings_table import default_text
from router.core.values import Role
from router.settings import Settings, flag

__all__ = [
    "Parser",
    "UsageError",
    "add_admin_key",
    "add_engine",
    "add_engines",
    "add_pool",
    "add_settings",
    "add_simulation",
    "add_wait",
    "one_line",
]


class UsageError(Exception):
    """Wrong use of a command; the message names the argument in one line."""


def one_line(text: str) -> str:
    """`text` with all characters escaped that would break the line or control the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors take one line."""

    @property
    def flags(self) -> Iterable[str]:
        """All known flags, including those added later."""
        return self._option_string_actions.keys()

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the name of the wrong argument."""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add flags that identify an engine of a running router."""
    parser.add_argument("url", metavar="URL", help="the engine's")
    _add_role(parser, "needed if the URL has both roles")


def add_pool(parser: argparse.ArgumentParser) -> None:
    """Add flags that identify all engines of a running router."""
    _add_role(parser, "only engines of this role (default: both)")


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the flag for waiting until requests have ended."""
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait up to SECONDS for the requests there to end; exit status 1 if some have not",
    )


def _add_role(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--role", choices=[*Role], help=text)
    parser.add_argument(
        "--admin",
        dest="admins",
        action="append",
        default=[],
        metavar="URL",
        help="the router's admin listener (default: this host and PD_ROUTER_ADMIN_PORT); with "
        "several replicas name each, as an order is its receiver's only",
    )
    add_admin_key(parser)


def add_admin_key(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the admin key of a running router."""
    parser.add_argument(
        "--admin-key-file",
        dest="key_file",
        type=Path,
        metavar="FILE",
        help="as the router's: its first key is sent (default: PD_ROUTER_ADMIN_KEY_FILE)",
    )


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Add flags for number, address and properties of simulated engines."""
    from router.simulator.command_line import add_options  # noqa: PLC0415 - the simulator, for itself only

    for name, default, metavar, text in (
        ("--prefill", 1, "N", "prefill engines; 0: a plain pool"),
        ("--decode", 2, "N", "decode engines"),
        ("--encode", 0, "N", "encode engines"),
        ("--port", 9000, "PORT", "the first one's; the others' follow; 0: free ones"),
    ):
        parser.add_argument(
            name, type=int, default=default, metavar=metavar, help=f"{text} (default %(default)s)"
        )
    # The order of magnitude of a real engine, so that streaming is visible.
    add_options(parser.add_argument_group("each engine"), step_ms=10.0)


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add flags for what is simulated, its size, and where the results go."""
    for name, text in (
        ("--scenario", "what goes wrong, or how the load is; may be repeated (default: all)"),
        ("--policy", "what chooses the engines; may be repeated (default: all)"),
    ):
        parser.add_argument(name, action="append", metavar="NAME", help=text)
    for name, default, text in (
        ("--engines", 8, "modelled engines (default %(default)s)"),
        ("--streams", None, "requests in flight (default: the scenario's)"),
        ("--requests", None, "requests in all (default: the scenario's)"),
        ("--replicas", None, "routers side by side (default: the scenario's)"),
        ("--seed", 1, "the same seed gives the same figures (default %(default)s)"),
    ):
        parser.add_argument(name, type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--peers",
        action="store_true",
        help="routers report their requests and prompts to each other, as with serve --peers",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="replay a trace in Mooncake's format (JSONL, perhaps .gz) in place of the scenarios",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="factor on the times of the trace: 0.5 is twice the load (default %(default)s)",
    )
    parser.add_argument(
        "--routing-threshold",
        action="append",
        metavar="N|auto",
        help="prompt tokens from which prompts are prefilled remotely; may be repeated (default: "
        "the scenario's)",
    )
    parser.add_argument(
        "--max-itl-impact",
        type=float,
        metavar="SHARE",
        help="as the router's setting, for the threshold auto (default: its)",
    )
    parser.add_argument(
        "--stream-continuation",
        action="append",
        choices=("off", "on"),
        help="as the router's setting; may be repeated, to compare (default off)",
    )
    parser.add_argument(
        "--slo-ttft",
        type=float,
        metavar="SECONDS",
        help="compare how many first tokens come within them, without and with --request-deadlines",
    )
    parser.add_argument("--plot", type=Path, metavar="DIR", help="a PNG per scenario goes there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures go there")
    parser.add_argument(
        "--per-engine", action="store_true", help="one more table, with a row for each engine"
    )
    parser.add_argument(
        "--selection-cost", action="store_true", help="measure what a choice costs, and no more"
    )


def add_settings(parser: argparse.ArgumentParser, *, has_file: bool = False) -> None:
    """Add a flag for each setting; pydantic validates all values. `has_file`: the parser already
    has a flag for the configuration file."""
    if not has_file:
        parser.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="YAML file with settings, keyed like routing_threshold",
        )
    group = parser.add_argument_group("settings", "Each is also PD_ROUTER_* in the environment.")
    for name, field in Settings.model_fields.items():
        is_list = isinstance(field.default, tuple)
        default = default_text(field) and f" (default {default_text(field)})"
        group.add_argument(
            flag(name),
            action="append" if is_list else "store",
            default=argparse.SUPPRESS,
            metavar=_metavar(name, field),
            help=f"{field.description}{default}".replace("%", "%%"),
        )


METAVARS = {
    "selector": "LABELS",
    "namespace": "NAME",
    "k8s_port": "PORT|NAME",
    "dns_prefill": "HOST:PORT|SRV",
    "dns_decode": "HOST:PORT|SRV",
    "dns_encode": "HOST:PORT|SRV",
    "host": "HOST",
    "port": "PORT",
    "workers": "N|auto",
    "threshold": "N|auto",
    "impact": "SHARE",
    "budget": "SHARE",
    "prefill": "URL",
    "decode": "URL",
    "encode": "URL",
    "percent": "PERCENT",
    "seqs": "N|JSON|@FILE",
    "registry": "JSON|@FILE",
    "events": "auto|JSON|@FILE",
    "bind": "tcp://HOST:PORT",
    "key": "KEY",
    "file": "FILE",
    "takeover": "PATH",
    "origin": "ORIGIN",
    "networks": "CIDR",
    "aliases": "NAME=MODEL",
    "bytes": "BYTES",
    "sample": "SHARE",
    "endpoint": "URL",
}
"""The kind of a setting's value, by its name or the last word of the name. All other fractional
numbers are seconds."""


def _metavar(name: str, field: FieldInfo) -> str:
    """The kind of a setting's value; for a choice, its values."""
    for key in (name, name.rpartition("_")[2]):
        if key in METAVARS:
            return METAVARS[key]
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not None]
    choices = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
    if choices:
        return "|".join(choices[0])
    return {int: "N", float: "SECONDS"}.get(kinds[0], "VALUE")
