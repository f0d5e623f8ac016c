"""pd-router's command line: each command's flags. What a command does is in router/commands."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from router import __version__
from router.commands.settings_table import default_text
from router.commands.usage import UsageError, one_line
from router.settings import Settings, SettingsError, flag, load, sources, suggestion
from router.telemetry import logs

__all__ = ["main"]

USAGE_ERROR = 2

EPP_PORT = 9002
"""The port of endpoint pickers in the Gateway API Inference Extension's own manifests."""

INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell reports of processes that SIGINT and SIGPIPE ended."""

GLOBAL = ("-h", "--help", "--version")
"""The flags that need no command."""

Options = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the process's exit status."""
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
        command: Callable[[Options], int] = options.pop("command")
        status = command(options)
        sys.stdout.flush()
        return status
    except (SettingsError, UsageError) as error:
        logs.flush()
        print(one_line(f"pd-router: {error}"), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads the output (head) has seen enough. Python flushes again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


# Commands. Each takes its options and returns the exit status.


def _serve(options: Options) -> int:
    from router.commands import serve  # noqa: PLC0415 - most of a second to import, for itself only

    file = options["config"]
    flags = {name: value for name, value in options.items() if name != "config"}
    settings = _settings(options)
    logs.configure(settings.log_level, settings.log_format)
    return serve.run(settings, sources(flags, file), partial(load, flags, file), file)


def _config(options: Options) -> int:
    from router.commands import config  # noqa: PLC0415 - as above

    del options["action"]  # there is one
    file = options.pop("config")
    return config.run(options, file)


def _epp(options: Options) -> int:
    if _settings(dict(options)).epp_port is None:
        options = {**options, "epp_port": str(EPP_PORT)}
    return _serve(options)


def _check(options: Options) -> int:
    from router.commands import check  # noqa: PLC0415 - as above

    tries = options.pop("tries")
    return check.run(_settings(options), tries=tries)


def _explain(options: Options) -> int:
    from router.commands import explain  # noqa: PLC0415 - as above

    body, route, as_json = (options.pop(name) for name in ("body", "route", "as_json"))
    return explain.run(_settings(options), body, route, as_json=as_json)


def _drain(options: Options) -> int:
    from router.commands import drain  # noqa: PLC0415 - as above

    return drain.run("drain", **options)


def _undrain(options: Options) -> int:
    from router.commands import drain  # noqa: PLC0415 - as above

    return drain.run("undrain", **options, wait=0.0)


def _demo(options: Options) -> int:
    from router.commands import demo  # noqa: PLC0415 - as above

    return demo.run(options)


def _simulate(options: Options) -> int:
    from router.commands import simulate  # noqa: PLC0415 - as above

    return simulate.run(options)


def _simulate_engines(options: Options) -> int:
    from router.commands import simulate_engines  # noqa: PLC0415 - as above

    return simulate_engines.run(options)


def _top(options: Options) -> int:
    from router.commands import top  # noqa: PLC0415 - as above

    return top.run(**options)


def _settings(options: Options) -> Settings:
    return load(options, options.pop("config"))


# Flags.


class _Parser(argparse.ArgumentParser):
    """argparse, but for errors of one line."""

    @property
    def flags(self) -> Iterable[str]:
        """All that it knows, those included that are added later."""
        return self._option_string_actions.keys()

    def error(self, message: str) -> NoReturn:
        """Name the culprit. Raises UsageError."""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def _parse(arguments: Sequence[str]) -> Options:
    parser = _parser(arguments)
    if arguments and arguments[0].startswith("-") and arguments[0] not in GLOBAL:
        wrong = arguments[0].partition("=")[0]
        raise UsageError(f"{wrong}: stands before the COMMAND; see {parser.prog} --help")
    known, unknown = parser.parse_known_args(arguments)
    options = vars(known)
    name, flags = options.pop("name"), options.pop("flags", ())
    prog = parser.prog if name is None else f"{parser.prog} {name}"
    if unknown:
        # What stands behind it, or behind its =, may be a secret.
        wrong = unknown[0].partition("=")[0]
        near = suggestion(wrong, flags)
        raise UsageError(f"{wrong}: no such argument{near}; see {prog} --help")
    if name is None:
        names = (
            "serve, check, config, explain, top, drain, undrain, demo, simulate-engines, simulate "
            "or epp"
        )
        raise UsageError(f"COMMAND is missing: {names}; see {prog} --help")
    return options


def _parser(arguments: Sequence[str]) -> _Parser:
    parser = _Parser(
        prog="pd-router",
        description="A router in front of prefill and decode vLLM engines.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pd-router {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="name")

    def add(name: str, command: Callable[[Options], int], text: str) -> _Parser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(command=command, flags=added.flags)
        return added

    _add_settings(add("serve", _serve, "Run the router."))
    _add_settings(add("epp", _epp, "Run the router, and an endpoint picker for Envoy beside it."))
    checking = add("check", _check, "Ask every engine whether it and the settings fit.")
    checking.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="also send a request over each pair of a prefill and a decode engine, and see whether "
        "its KV cache moves",
    )
    _add_settings(checking)
    text = "Name all that is wrong with a configuration file, without a network."
    configuring = add("config", _config, text)
    configuring.add_argument("action", choices=("check",), help="what to do with it")
    configuring.add_argument("config", type=Path, metavar="FILE", help="as for serve --config")
    _add_settings(configuring, has_file=True)
    explaining = add("explain", _explain, "Say what would happen to a request, without a network.")
    explaining.add_argument("body", metavar="BODY.json", help="the request's body; - reads stdin")
    explaining.add_argument(
        "--route",
        metavar="PATH",
        help="the route it is sent to (default: by the body's messages, prompt or input)",
    )
    explaining.add_argument("--json", dest="as_json", action="store_true", help="for machines")
    _add_settings(explaining)
    watching = add("top", _top, "Show a running router's engines, load and decisions, live.")
    watching.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        default="http://127.0.0.1:8000",
        help="the router, with --admin-port that port (default %(default)s)",
    )
    watching.add_argument("--once", action="store_true", help="one sample, as where it is piped")
    _add_admin_key(watching)
    draining = add("drain", _drain, "Have a running router give an engine no new requests.")
    draining.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait so long until its requests have ended; status 1 if some are left",
    )
    _add_engine(draining)
    _add_engine(add("undrain", _undrain, "Take that back."))
    add("demo", _demo, "Show the main job on simulated engines, every answer checked.")
    text = "Start simulated engines, and say how to put a router in front of them."
    simulating = add("simulate-engines", _simulate_engines, text)
    if "simulate-engines" in arguments:  # its options load the simulator: only where it is used
        _add_engines(simulating)
    _add_simulation(add("simulate", _simulate, "Compare policies on modelled engines."))
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    """An engine of a running router."""
    parser.add_argument("url", metavar="URL", help="the engine's")
    parser.add_argument(
        "--role", choices=("prefill", "decode"), help="needed if the URL has both roles"
    )
    parser.add_argument(
        "--admin",
        metavar="URL",
        help="the router's admin listener (default: this host and PD_ROUTER_ADMIN_PORT)",
    )
    _add_admin_key(parser)


def _add_admin_key(parser: argparse.ArgumentParser) -> None:
    """The key for a running router that wants one."""
    parser.add_argument(
        "--admin-key-file",
        dest="key_file",
        type=Path,
        metavar="FILE",
        help="as the router's: its first key is sent (default: PD_ROUTER_ADMIN_KEY_FILE)",
    )


def _add_engines(parser: argparse.ArgumentParser) -> None:
    """How many engines, where, and what each is like."""
    from router.simulator.command_line import add_options  # noqa: PLC0415 - as above

    for name, default, metavar, text in (
        ("--prefill", 1, "N", "prefill engines; 0: a plain pool"),
        ("--decode", 2, "N", "decode engines"),
        ("--port", 9000, "PORT", "the first one's; the others' follow; 0: free ones"),
    ):
        parser.add_argument(
            name, type=int, default=default, metavar=metavar, help=f"{text} (default %(default)s)"
        )
    # A real engine's order of magnitude, so that streams can be seen to stream.
    add_options(parser.add_argument_group("each engine"), step_ms=10.0)


def _add_simulation(parser: argparse.ArgumentParser) -> None:
    """What is compared, how large it is, and where it goes."""
    for name, text in (
        ("--scenario", "what goes wrong, or how the load is; may be repeated (default: all)"),
        ("--policy", "who chooses the engines; may be repeated (default: all)"),
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
    parser.add_argument("--plot", type=Path, metavar="DIR", help="a PNG per scenario goes there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures go there")
    parser.add_argument(
        "--per-engine", action="store_true", help="one more table, with a row for each engine"
    )
    parser.add_argument(
        "--selection-cost", action="store_true", help="measure what a choice costs, and no more"
    )


def _add_settings(parser: argparse.ArgumentParser, *, has_file: bool = False) -> None:
    """A flag for each setting; pydantic checks all values, wherever they come from. And one for
    their file, unless the parser has that already."""
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
    "host": "HOST",
    "port": "PORT",
    "workers": "N|auto",
    "threshold": "N|auto",
    "impact": "SHARE",
    "budget": "SHARE",
    "prefill": "URL",
    "decode": "URL",
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
    "bytes": "BYTES",
    "sample": "SHARE",
    "endpoint": "URL",
}
"""What a setting's value is, by its name or the last word of that; all other numbers that may be
fractions are seconds."""


def _metavar(name: str, field: FieldInfo) -> str:
    """What kind of value it is; of a choice, the choices."""
    for key in (name, name.rpartition("_")[2]):
        if key in METAVARS:
            return METAVARS[key]
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not None]
    choices = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
    if choices:
        return "|".join(choices[0])
    return {int: "N", float: "SECONDS"}.get(kinds[0], "VALUE")


if __name__ == "__main__":
    sys.exit(main())
