"""Reads the options of commands that are not run, with the commands' own parsers."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from benchmarks import __main__ as bench
from benchmarks.gate import judge, options
from benchmarks.gate.ab import options as ab_options
from benchmarks.gate.cluster import command as cluster
from benchmarks.h100 import command as h100
from benchmarks.instructions import command as instructions
from benchmarks.prefix import __main__ as prefix
from benchmarks.replicas import __main__ as replicas
from router import cli
from router.commands.flags import UsageError
from router.settings import SettingsError
from tests.deploy.places import project
from tests.docs.blocks import ROOT, Block, Command, commands
from tests.docs.running import BIN

__all__ = ["UNPARSED", "Wrong", "check"]

AT = datetime(2026, 1, 1, tzinfo=UTC)

Words = Sequence[str]


class Wrong(AssertionError):
    """A command that its own parser refuses; the text has the reason."""


REFUSALS = (
    *(AssertionError, SettingsError, SystemExit, UsageError, ValueError),
    *(bench.Unfit, *options.WRONG),
)
"""Exceptions of parsers for invalid options."""

UNPARSED = frozenset(
    {
        *("aiperf", "apt-get", "cd", "cp", "curl", "docker", "dpkg", "envoy", "guidellm", "helm"),
        *("export", "mkdir", "python3", "source", "."),
    }
)
"""Other people's commands of which only the shell's syntax is checked. What helm is given is
rendered by tests/deploy/test_chart.py."""


def check(block: Block) -> None:
    """Check every command of the block. Raises Wrong."""
    done = subprocess.run(
        ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Wrong(f"{block.place}: {done.stderr}")
    for command in commands(block):
        for words in _split(command):
            _check(words, block.place)


def _split(command: Command) -> list[list[str]]:
    """The commands that && joins."""
    found: list[list[str]] = [[]]
    for word in command.words:
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return found


def _check(words: Words, place: str) -> None:
    program, *arguments = words
    if program in ("python", "python3") and arguments[:1] == ["-m"]:
        program, arguments = f"python -m {arguments[1]}", arguments[2:]
    reader = READERS.get(program)
    if reader is None:
        if program not in UNPARSED:
            raise Wrong(f"{place}: nothing here reads the options of {program}")
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            reader(arguments)
    except REFUSALS as error:
        raise Wrong(f"{place}: {shlex.join(words)}: {error} {said.getvalue()}") from None


def _pd_router(words: Words) -> None:
    parsed = cli._parse(words)
    if "config" in parsed:
        cli._settings({name: value for name, value in parsed.items() if name not in EXPLAINED})


EXPLAINED = frozenset({"command", "body", "route", "as_json"})
"""Options of commands that are no settings."""


def _pd_bench(words: Words) -> None:
    command, *arguments = words
    match command:
        case "validate":
            parsed = options.parser().parse_args(arguments)
            if parsed.generator != options.AIPERF:  # which must be installed to be planned with
                options.plan(parsed, AT)
        case "ab":
            ab_options.read(arguments, AT)
        case "judge" | "report" | "plot":
            parser = judge._parser(command, "")
            parser.add_argument("--out")
            parser.parse_args(arguments)
        case "instructions" | "cluster" | "h100":
            PARSERS[command]().parse_args(arguments)
        case "aiperf":
            if arguments != ["install"]:
                raise Wrong(f"aiperf {arguments}")
        case _:
            parsed = bench.parser().parse_args(words)
            if command == "compare":
                bench.scenario_of(parsed)


PARSERS = {
    "instructions": instructions.parser,
    "cluster": cluster.parser,
    "h100": h100.parser,
}


def _prefix(words: Words) -> None:
    prefix.parser().parse_args(words)


def _replicas(words: Words) -> None:
    replicas.parser().parse_args(words)


def _make(words: Words) -> None:
    _run(["make", "-n", "-C", str(ROOT), *words])


def _pip(words: Words) -> None:
    """The extras exist."""
    for found in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        if unknown := set(found.split(",")) - set(project()["optional-dependencies"]):
            raise Wrong(f"no such extra: {unknown}")


def _vllm(words: Words) -> None:
    """vLLM's JSON options are valid JSON; its parser needs vLLM."""
    for flag in ("--kv-transfer-config", "--kv-events-config"):
        if flag in words:
            json.loads(words[words.index(flag) + 1])


def _kubectl(words: Words) -> None:
    own = shutil.which("kubectl", path=f"{BIN}") or "kubectl"
    # Its parser reads all flags before it prints the help; behind -- is another command.
    end = words.index("--") if "--" in words else len(words)
    _run([own, *words[:end], "--help"])


def _run(command: Words) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(done.stderr)


READERS: dict[str, Callable[[Words], None]] = {
    "pd-router": _pd_router,
    "pd-bench": _pd_bench,
    "python -m benchmarks": _pd_bench,
    "python -m benchmarks.prefix": _prefix,
    "python -m benchmarks.replicas": _replicas,
    "make": _make,
    "pip": _pip,
    "vllm": _vllm,
    "kubectl": _kubectl,
}
