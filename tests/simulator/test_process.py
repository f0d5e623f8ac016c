"""`python -m router.simulator` as a process."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.simulator.__main__ import main


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "router.simulator"),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def test_it_logs_its_address_serves_and_ends_cleanly_on_sigterm(client):
    flags = ["--count", "2", "--model", "m", "--role", "prefill", "--faults", '{"status":503}']
    async with process(*flags, "--step-ms", "1") as running:
        assert running.stdout is not None
        urls = []
        for _ in range(2):
            word, url = (await running.stdout.readline()).decode().split()
            assert word == "ready"
            urls.append(url)
        for url in urls:
            async with client.get(url + "/v1/models") as reply:
                assert reply.status == 503
            async with client.get(url + "/sim/state") as reply:
                state = await reply.json()
            assert (state["model"], state["role"]) == ("m", "prefill")
        running.send_signal(signal.SIGTERM)
        out, err = await running.communicate()
        assert (running.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--faults", '{"stalled":1}'], "stalled"),
        (["--total-blocks", "1"], "total_blocks"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
    ],
)
def test_invalid_input_is_refused_with_status_2(capsys, flags, word):
    assert main(flags) == 2
    assert word in capsys.readouterr().err


def test_a_flag_that_does_not_exist_is_refused_with_status_2(capsys):
    with pytest.raises(SystemExit) as refused:
        main(["--nonsense"])
    assert refused.value.code == 2
    assert "nonsense" in capsys.readouterr().err
