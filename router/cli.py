"""pd-router's command line. What each command does, and its flags, is in router/commands."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from router import __version__
from router.commands.flags import (
    Parser,
    UsageError,
    add_admin_key,
    add_engine,
    add_engines,
    add_pool,
    add_settings,
    add_simulation,
    add_wait,
    one_line,
)
from router.commands.reexec import hide_secrets, keep_pipe, share_hash_seed
from router.settings import Settings, SettingsError, SettingsSource, load, suggestion
from router.telemetry import logs

__all__ = ["main"]

USAGE_ERROR = 2

EPP_PORT = 9002
"""Port of endpoint pickers in the manifests of the Gateway API Inference Extension."""

INTERRUPTED = 130
PIPE_CLOSED = 141
"""Exit statuses that shells report for processes killed by SIGINT and SIGPIPE."""

GLOBAL = ("-h", "--help", "--version")
"""Flags that need no command."""

Options = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the process's exit status."""
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
        if (config := options.get("config")) is not None:
            keep_pipe(config)
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
        # The reader of the output (such as head) has closed the pipe. Python flushes again at its
        # end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


# Commands. Each takes its options and returns the exit status.


def _serve(options: Options) -> int:
    file = options["config"]
    flags = {name: value for name, value in options.items() if name != "config"}
    settings = _settings(options)
    share_hash_seed(settings)  # may re-execute the process
    from router.commands import serve  # noqa: PLC0415 - most of a second to import, for itself only

    logs.configure(settings.log_level, settings.log_format)
    return serve.run(settings, SettingsSource(flags, file))


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


def _pause(options: Options) -> int:
    return _drain({"url": "*", **options})


def _resume(options: Options) -> int:
    return _undrain({"url": "*", **options})


def _migrate(options: Options) -> int:
    from router.commands import migrate  # noqa: PLC0415 - as above

    return migrate.run(**options)


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
    settings = load(options, options.pop("config"))
    hide_secrets()  # may re-execute the process; mistakes in flags have been reported by now
    return settings


# Flags.


def _parse(arguments: Sequence[str]) -> Options:
    parser = _parser(arguments)
    if arguments and arguments[0].startswith("-") and arguments[0] not in GLOBAL:
        wrong = arguments[0].partition("=")[0]
        raise UsageError(f"{wrong}: stands before the COMMAND; see {parser.prog} --help")
    own, words = _divided(arguments)
    known, unknown = parser.parse_known_args(own)
    options = vars(known)
    if words is not None:
        options["words"] = words
    name, flags = options.pop("name"), options.pop("flags", ())
    prog = parser.prog if name is None else f"{parser.prog} {name}"
    if unknown:
        # What follows it, or the = in it, may be a secret.
        wrong = unknown[0].partition("=")[0]
        near = suggestion(wrong, flags)
        raise UsageError(f"{wrong}: no such argument{near}; see {prog} --help")
    if name is None:
        names = (
            "serve, check, config, explain, migrate, top, drain, undrain, pause, resume, demo, "
            "simulate-engines, simulate or epp"
        )
        raise UsageError(f"COMMAND is missing: {names}; see {prog} --help")
    return options


def _divided(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """migrate's own arguments, and another router's command line behind the first --."""
    if list(arguments[:1]) != ["migrate"] or "--" not in arguments:
        return arguments, None
    end = list(arguments).index("--")
    return arguments[:end], arguments[end + 1 :]


def _parser(arguments: Sequence[str]) -> Parser:
    parser = Parser(
        prog="pd-router",
        description="A router in front of prefill and decode vLLM engines.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pd-router {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="name")

    def add(name: str, command: Callable[[Options], int], text: str) -> Parser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(command=command, flags=added.flags)
        return added

    add_settings(add("serve", _serve, "Run the router."))
    add_settings(add("epp", _epp, "Run the router, and an endpoint picker for Envoy beside it."))
    _add_check(add("check", _check, "Ask every engine whether it and the settings fit."))
    text = "Check a configuration file and list every problem. Needs no network."
    configuring = add("config", _config, text)
    configuring.add_argument("action", choices=("check",), help="what to do with the file")
    configuring.add_argument("config", type=Path, metavar="FILE", help="as for serve --config")
    add_settings(configuring, has_file=True)
    text = "Show how a request would be routed. Needs no network."
    _add_explain(add("explain", _explain, text))
    text = "Write a configuration of another router as one of this router. Needs no network."
    _add_migrate(add("migrate", _migrate, text))
    _add_top(add("top", _top, "Show a running router's engines, load and decisions, live."))
    draining = add("drain", _drain, "Drain an engine of a running router: no new requests.")
    draining.add_argument(
        "--move",
        action="store_true",
        help="let its streams go on with other engines (docs/continuation.md)",
    )
    add_wait(draining)
    add_engine(draining)
    add_engine(add("undrain", _undrain, "Return a drained engine to service."))
    pausing = add("pause", _pause, "Send no engine new requests: they get 503 until `resume`.")
    add_wait(pausing)
    add_pool(pausing)
    add_pool(add("resume", _resume, "Return all paused engines to service."))
    add("demo", _demo, "Route requests to simulated engines and check every answer.")
    text = "Start simulated engines, and say how to put a router in front of them."
    simulating = add("simulate-engines", _simulate_engines, text)
    if "simulate-engines" in arguments:  # its options import the simulator, so only if it is used
        add_engines(simulating)
    add_simulation(add("simulate", _simulate, "Compare policies on modelled engines."))
    return parser


def _add_check(parser: Parser) -> None:
    parser.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="also send a request over each pair of a prefill and a decode engine, and see whether "
        "its KV cache moves",
    )
    add_settings(parser)


def _add_explain(parser: Parser) -> None:
    parser.add_argument("body", metavar="BODY.json", help="the request's body; - reads stdin")
    parser.add_argument(
        "--route",
        metavar="PATH",
        help="the route it is sent to (default: by the body's messages, prompt or input)",
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="for machines")
    add_settings(parser)


def _add_migrate(parser: Parser) -> None:
    parser.usage = "%(prog)s [--from NAME] (FILE | -- FLAGS...)"
    parser.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", help="the other router's file, or its script"
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=("vllm-router", "smg", "production-stack", "llm-d", "litellm", "nginx"),
        help="the other router (default: what the file or the flags look like; docs/migrate.md)",
    )
    parser.set_defaults(words=())


def _add_top(parser: Parser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        default="http://127.0.0.1:8000",
        help="the router, with --admin-port that port (default %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="one sample, as where it is piped")
    add_admin_key(parser)


if __name__ == "__main__":  # an older name of `python -m router`
    sys.exit(main())
