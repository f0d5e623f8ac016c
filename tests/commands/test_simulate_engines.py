"""pd-router simulate-engines: engines that listen, and commands that work as they are printed."""

import asyncio
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest

from benchmarks.gate import options
from router.cli import main
from router.commands.simulate_engines import next_steps
from router.settings import Settings, flag, load
from router.simulator import EngineConfig
from router.simulator.__main__ import main as module
from tests import forked


@asynccontextmanager
async def started(*flags: str) -> AsyncIterator[tuple[forked.Process, list[str]]]:
    """The process, and its output up to the last command."""
    async with forked.running(
        *("pd-router", "simulate-engines", "--port", "0", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not any("pd-bench" in line for line in lines):
            line = await process.stdout.readline()
            assert line, await process.communicate()
            lines.append(line.decode().rstrip("\n"))
        yield process, lines


async def ran(line: str) -> tuple[int, str]:
    """A printed command's status and output."""
    program, *arguments = shlex.split(line)
    assert program == "pd-router"
    status, out, _ = await forked.ended(program, *arguments)
    return status, out


@pytest.mark.parametrize("connector", ["nixl", "mooncake", "moriio"])
async def test_engines_listen_and_the_printed_check_finds_them_sound(connector: str) -> None:
    flags = (*COUNTS, "--model", "org/m", "--connector", connector)
    async with started(*flags) as (process, lines):
        urls = {role: [e.split()[2] for e in lines if f"ready {role}" in e] for role in ROLES}
        assert [len(urls[role]) for role in ROLES] == [1, 2, 1]
        async with aiohttp.ClientSession() as session:
            for role in ROLES:
                for url in urls[role]:
                    async with session.get(f"{url}/sim/state") as reply:
                        state = await reply.json()
                    assert (state["role"], state["model"]) == (role, "org/m")
        [check] = [line for line in lines if "pd-router check" in line]
        status, out = await ran(check)
        assert status == 0, out
        assert "2 of 2 trial requests went well." in out
        process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")


ROLES = ("prefill", "decode", "encode")
COUNTS = ("--prefill", "1", "--decode", "2", "--encode", "1")
P, D = ["http://127.0.0.1:9000"], ["http://127.0.0.1:9001", "http://127.0.0.1:9002"]
E = ["http://127.0.0.1:9003"]


def test_printed_output_matches_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    check, serve, curl, bench = next_steps(
        {"prefill": P, "decode": D, "encode": E}, EngineConfig(model="m", api_key="a b")
    )
    assert shlex.split(check)[:3] == ["pd-router", "check", "--try"]
    names = {flag(name): name for name in Settings.model_fields}
    words = shlex.split(serve)[2:]
    given = {names[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert given.pop("engine_api_key") == "a b"
    settings = load(given)
    assert [list(getattr(settings, role)) for role in ROLES] == [P, D, E]
    assert settings.routing_threshold == 256
    assert shlex.split(curl)[-1].startswith('{"model": "m", ')
    plan = options.read(shlex.split(bench)[2:], datetime(2026, 1, 1, tzinfo=UTC))
    assert (plan.address.url, plan.model, plan.gpus) == ("http://127.0.0.1:8000", "m", 2)


def test_a_plain_pool_needs_no_threshold() -> None:
    _, serve, *_ = next_steps({"prefill": [], "decode": D, "encode": []}, EngineConfig())
    assert serve == f"pd-router serve --decode {','.join(D)}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--decode", "0"), "--decode 0: must be at least 1"),
        (("--prefill", "-1"), "--prefill -1: must not be below 0"),
        (("--encode", "-1"), "--encode -1: must not be below 0"),
        (("--port", "65535"), "--port 65535: there are no such ports for all engines"),
        (("--total-blocks", "1"), "total_blocks: "),
        (("--modle", "x"), "--modle: no such argument, did you mean --model?"),
        (("--host", "192.0.2.1"), "--port: cannot listen on 192.0.2.1:"),
    ],
)
def test_invalid_input_is_one_line(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate-engines", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pd-router: {said}")


@pytest.mark.parametrize("command", ["simulate-engines", "module"])
def test_help_has_defaults_and_units(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"]) if command != "module" else module(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "None" not in said
    step = 10 if command == "simulate-engines" else 0
    assert f"--step-ms MS time of a step; 0: as fast as the machine goes (default {step})" in said
    assert "--max-model-len TOKENS of prompt and answer together (default 32768)" in said
