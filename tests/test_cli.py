"""The command line: mistakes end with status 2 and one line that names them."""

import asyncio
import gc
import os
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import aiohttp
import orjson
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import router.commands
from router import __version__
from router.cli import main
from router.commands.flags import one_line
from router.settings import Settings, flag
from router.web.server import Server

PD_ROUTER = str(Path(sys.executable).with_name("pd-router"))
DECODE = ("--decode", "http://d0")

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def refused(capsys):
    """Runs a command that must be refused; returns its message."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return said(err)

    return run


def said(err: str) -> str:
    """The one line that an operator sees, without the program's name."""
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("pd-router: ")
    return err.removeprefix("pd-router: ").rstrip("\n")


# As processes.


def test_commands_that_serve_nothing_load_neither_a_web_framework_nor_the_simulator():
    """It takes them a third longer."""
    commands = ", ".join(f"router.commands.{name}" for name in ("check", "drain", "explain", "top"))
    loads = "any(word in name for name in sys.modules for word in ('fastapi', 'simulator'))"
    program = f"import sys, router.cli, {commands}; sys.exit({loads})"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "program",
    [(sys.executable, "-m", "router"), (sys.executable, "-m", "router.cli"), (PD_ROUTER,)],
    ids=["module", "its older name", "script"],
)
def test_it_runs_as_a_script_and_as_a_module(program):
    done = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"pd-router {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "environment", "line"),
    [
        (["serve", "--port", "x", *DECODE], {}, r"--port: .*'x'"),
        (["serve"], {"PD_ROUTER_DECOD": "x"}, r"PD_ROUTER_DECOD: no such setting.*"),
    ],
)
def test_a_process_that_is_misused_ends_with_2_and_one_line(arguments, environment, line):
    done = subprocess.run(
        [PD_ROUTER, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(line, said(done.stderr)), done.stderr


def test_a_closed_output_pipe_causes_no_traceback():
    body = orjson.dumps({"messages": [{"role": "user", "content": "x" * 1_000_000}]})
    with subprocess.Popen(
        [PD_ROUTER, "explain", "-", "--json", "--prefill", "http://p0", *DECODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(body)
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("place", ["stdin", "fd"])
def test_a_configuration_from_a_pipe_outlives_the_move_of_secrets_from_the_title(tmp_path, place):
    """The process re-executes itself then; a pipe can be read only once."""
    body = tmp_path / "body.json"
    body.write_bytes(b'{"prompt": "a"}')
    out, into = os.pipe()
    os.write(into, b"decode: [http://d0]\n")
    os.close(into)
    with open(out, "rb") as pipe:
        path = "/dev/stdin" if place == "stdin" else f"/dev/fd/{out}"
        done = subprocess.run(
            [PD_ROUTER, "explain", str(body), "--config", path, "--engine-api-key", "secret"],
            stdin=pipe if place == "stdin" else subprocess.DEVNULL,
            pass_fds=(out,) if place == "fd" else (),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "http://d0" in done.stdout


async def test_serve_ends_with_0_after_a_signal():
    process = await asyncio.create_subprocess_exec(
        *(PD_ROUTER, "serve", "--host", "127.0.0.1", "--port", "0", "--log-format", "json"),
        *("--decode", "http://127.0.0.1:1", "--shutdown-grace", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line: dict[str, str] = {}
        while line.get("message") != "listening":
            line = orjson.loads(await process.stderr.readline())
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{line['url']}/version") as response,
        ):
            assert await response.json() == {"version": __version__, "server": "pd-router"}
    finally:
        process.terminate()
        _, err = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in err


# In this process.


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--port"], "--port: expected one argument; see pd-router {} --help"),
        (["--decode", "--port", "1"], "--decode: expected one argument; see pd-router {} --help"),
        (["--config"], "--config: expected one argument; see pd-router {} --help"),
        (["--config", "/no/such.yaml"], "--config: cannot read /no/such.yaml: "),
        (["--prefil", "http://p0"], "--prefil: no such argument, did you mean --prefill?; see "),
        (["--routing", "1"], "--routing: no such argument"),
        (["-x"], "-x: no such argument"),
        ([*DECODE, "extra"], "extra: no such argument"),
        ([*DECODE, "a\nb\x1b[31m\u2028"], r"a\nb\x1b[31m\u2028: no such argument"),
        ([*DECODE, *DECODE], "--decode: http://d0 is given twice"),
        ([], "--decode: at least one decode engine is needed"),
        (["--shutdown-grace", "-1"], "--shutdown-grace: "),
        (["--routing-threshold", "-1"], "--routing-threshold: "),
    ],
)
def test_a_wrong_flag_is_named(command, arguments, start, refused):
    assert refused(command, *arguments).startswith(start.format(command))


def test_a_variable_and_a_file_are_named(refused, monkeypatch):
    assert refused("explain", "/no/such.json", *DECODE).startswith(
        "/no/such.json: cannot be read: No such "
    )
    monkeypatch.setenv("PD_ROUTER_DECODE", "http://d0,http://D0/")
    assert re.match("PD_ROUTER_DECODE: .* twice", refused("serve"))


def test_a_flag_before_the_command_is_named(refused):
    assert refused("--decode", "http://d0", "serve").startswith("--decode: stands before the COM")
    assert refused("--vers").startswith("--vers: ")


def test_a_missing_or_unknown_command_is_named(refused):
    assert refused().startswith(
        "COMMAND is missing: serve, check, config, explain, migrate, top, drain, undrain, pause"
    )
    assert refused().endswith("; see pd-router --help")
    assert refused("evaluate").startswith("COMMAND: invalid choice: 'evaluate' (choose from ")
    assert refused("explain").startswith("the following arguments are required: BODY.json; see ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine-api-key", "sk-secret", "serve"),
        ("--engine-api-key=sk-secret", "serve"),
        ("serve", "--engine-api-ky", "sk-secret"),
        ("serve", "--engine-api-ky=sk-secret"),
        ("serve", "--engine-api-key", "sk-secret"),
        ("serve", "--engine-api-key", "sk-secret", "--port", "x"),
        ("serve", "--engine-api-key", "sk-secret é", *DECODE),
    ],
)
def test_no_error_prints_the_key(arguments, refused):
    assert "secret" not in refused(*arguments)


@pytest.mark.parametrize("content", ["port: \x00", "a\nb: 1", '"x\\ny": 1', "log_level: 'a\n\n b'"])
def test_a_file_cannot_break_the_line(content, refused, tmp_path):
    path = tmp_path / "router.yaml"
    path.write_text(content)
    assert str(path) in refused("serve", *DECODE, "--config", str(path))


@examples(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    words=st.lists(
        st.sampled_from(sorted(map(flag, Settings.model_fields))) | st.text(max_size=8), max_size=4
    ),
    command=st.sampled_from(["serve", "check", "explain"]),
)
def test_whatever_comes_with_a_flag_that_does_not_exist_is_refused(words, command, refused):
    if not {"-h", "--help"} & set(words):
        refused(command, "--no-such-flag", *words)


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["explain", "-h"]])
def test_help_is_no_error(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage: pd-router" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "check", "explain"])
def test_the_help_of_a_command_describes_every_setting(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = " ".join(capsys.readouterr().out.replace("-\n", "-").split())
    for name, field in Settings.model_fields.items():
        assert flag(name) in words
        assert "".join((field.description or "").split()) in words.replace(" ", "")


def test_serve_runs_a_server_with_the_settings(monkeypatch):
    served = []
    levels = []
    monkeypatch.setattr(Server, "run", lambda server, sockets: served.append((server, sockets)))
    monkeypatch.setattr("router.telemetry.logs.configure", lambda *words: levels.append(words))
    for name in ("freeze", "set_threshold"):  # this process continues
        monkeypatch.setattr(gc, name, lambda *_: None)
    monkeypatch.setenv("PD_ROUTER_PORT", "0")
    assert main(["serve", "--host", "::1", *DECODE, "--log-level", "error"]) == 0
    ((server, (listening,)),) = served
    with listening:
        assert (server.config.host, listening.getsockname()[0]) == ("::1", "::1")
    assert levels == [("error", "text")]


def test_unusable_address_names_the_option_to_change(refused, monkeypatch, tmp_path):
    monkeypatch.setattr("router.telemetry.logs.configure", lambda *_: None)  # it would stay so
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        place = ("--host", "127.0.0.1", "--port", port)
        said = refused("serve", *place, *DECODE)
        nobody = refused("serve", *place, *DECODE, "--takeover", str(tmp_path / "none"))
    assert said == f"--port: 127.0.0.1:{port} is taken by another process; 0 takes a free port"
    assert nobody.startswith(
        f"--port: 127.0.0.1:{port} is taken, and nobody hands it over at {tmp_path}/none: "
    )
    # TEST-NET-1 (RFC 5737) is for documentation only.
    said = refused("serve", "--host", "192.0.2.1", "--port", port, *DECODE)
    assert said.startswith("--host: 192.0.2.1 is no address of this machine: ")


def test_a_value_is_named_for_its_unit(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        is_time = re.search(r"\bseconds\b", field.description or "", re.IGNORECASE) is not None
        is_time &= field.annotation is float
        assert is_time == (f"{flag(name)} SECONDS" in words), name
    for shown in (
        "--decision-log-sample SHARE",
        "--max-excluded-percent PERCENT",
        "--max-body-bytes BYTES",
        "--engine-ca-file FILE",
        "--decode URL",
        "--port PORT",
        "--workers N|auto",
    ):
        assert shown in words


def test_the_arguments_are_the_processs_own_by_default(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pd-router", "--vers"])
    assert main() == 2
    assert "--vers" in capsys.readouterr().err


def test_an_interrupted_command_ends_without_a_traceback(monkeypatch):
    def interrupt(_: object, *, tries: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("router.commands.check.run", interrupt)
    assert main(["check", *DECODE]) == 130


def test_a_closed_output_ends_the_command(monkeypatch, tmp_path):
    def nobody_reads(_: object, *, tries: bool) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("router.commands.check.run", nobody_reads)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["check", *DECODE]) == 141
        print("lost", file=out, flush=True)
    assert (tmp_path / "out").read_text() == ""


def test_the_demo_is_imported_only_for_its_command(monkeypatch):
    asked = []

    def run(options: object) -> int:
        asked.append(options)
        return 7

    demo = types.SimpleNamespace(run=run)
    monkeypatch.setitem(sys.modules, "router.commands.demo", demo)
    monkeypatch.setattr(router.commands, "demo", demo, raising=False)
    assert main(["demo"]) == 7
    assert asked == [{}]


@given(st.text())
def test_one_line_is_one_printable_line(text):
    assert one_line(text).isprintable()
    assert len(one_line(text).splitlines()) <= 1


def test_one_line_leaves_printable_text_alone():
    assert one_line("Größe: 7 日本") == "Größe: 7 日本"
    assert one_line("a\n\x1b\u2028\udc80") == r"a\n\x1b\u2028\udc80"
