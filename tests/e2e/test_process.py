"""The router's process: what it makes of the limits that it is started with."""

import asyncio
import resource
import sys

import orjson

SERVE = (
    "-m router.cli serve --host 127.0.0.1 --port 0 --decode http://127.0.0.1:9 --log-format json"
)


async def test_the_soft_limit_on_open_files_is_raised_to_the_hard_one() -> None:
    command = f"ulimit -Sn 64; ulimit -Hn 4000; exec {sys.executable} {SERVE}"
    process = await asyncio.create_subprocess_shell(command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        said = [orjson.loads(await process.stderr.readline())["message"] for _ in range(2)]
        assert said == ["starting", "listening"]
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (4000, 4000)
    finally:
        process.terminate()
        await process.stderr.read()
    assert await process.wait() == 0
