"""Claim: the gate's smoke profile passes on real vLLM engines behind the router.

Prompts have exactly as many tokens as were asked for by the engine's own tokenizer, answers are
counted by the engine, and every worker was watched.
"""

import asyncio
import gzip
import sys
from pathlib import Path

import orjson

from tests.engines.conftest import Engines
from tests.engines.fleet import MODEL
from tests.engines.service import Service

PASSED = 0
SECONDS = 120.0


async def test_the_smoke_profile_passes(router: Service, engines: Engines, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    gate = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", "validate", "--url", router.url, "--model", MODEL),
        *("--gpus", "2", "--profile", "smoke", "--throughput", ">= 1", "--ttft-p99", "<= 60000"),
        *("--no-live", "--out", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await gate.communicate()
    finally:
        if gate.returncode is None:
            gate.kill()
            await gate.wait()
    assert gate.returncode == PASSED, output.decode()
    run = orjson.loads(gzip.decompress((folder / "run.json.gz").read_bytes()))
    requests = run["requests"]
    assert requests
    assert all(each["error"] is None and each["output_tokens"] for each in requests)
    assert len({each["input_tokens"] for each in requests}) == 1
    watched = {sample["worker"] for sample in run["samples"]}
    assert {decode.url for decode in engines.decodes} <= watched
