"""--routing-threshold auto from end to end: both ways are measured, and then they are compared."""

import re

import aiohttp

from router.simulator import EngineConfig, serve_engine
from tests.e2e.connectors import ask, router_process, urls

MODEL = "m"
PATH = "/v1/completions"
SHORT, LONG = "a few words, " * 80, "a great many words, " * 500
"""About 250 and 2,500 estimated tokens: below and above the constant of the beginning."""

MOST = 400
"""Requests until both ways must have been measured."""


async def test_measured_prompt_costs_decide() -> None:
    async with (
        serve_engine(EngineConfig(model=MODEL, role="prefill")) as prefill,
        serve_engine(EngineConfig(model=MODEL, role="decode")) as decode,
        router_process(
            *("--prefill", urls([prefill]), "--decode", urls([decode])),
            *("--routing-threshold", "auto", "--prefix-cache", "off"),
        ) as router,
        aiohttp.ClientSession() as session,
    ):

        async def metrics() -> str:
            async with session.get(f"{router}/metrics") as response:
                return await response.text()

        reasons: set[str] = set()
        for number in range(MOST):
            body = {
                "model": MODEL,
                "prompt": f"{number} {LONG if number % 2 else SHORT}",
                "max_tokens": 2,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            outcome = await ask(session, router, PATH, body)
            assert outcome.status == 200
            reasons = set(re.findall(r'reason="(\w+)"', await metrics()))
            if reasons & {"cheaper_direct", "cheaper_remote"}:
                break
        assert reasons & {"cheaper_direct", "cheaper_remote"}
        assert "cold_default" in reasons
        assert decode.state["tokens"]["external_kv_transfer"] > 0
        async with session.get(f"{router}/endpoints") as response:
            told = {entry["role"]: entry for entry in await response.json()}
        assert told["prefill"]["prompt_cost"]["computing"]["per_token"] >= 0
        assert told["prefill"]["prompt_cost"]["loading"] is None
        assert told["decode"]["prompt_cost"]["computing"]["base"] >= 0
        assert told["decode"]["prompt_cost"]["loading"]["base"] >= 0
        ratio = told["decode"]["tokens_per_byte"][MODEL]
        exposition = await metrics()
        assert f'pd_router_tokens_per_byte{{model="{MODEL}"}} {ratio}' in exposition
        found = re.search(r"^pd_router_routing_threshold_tokens (\S+)$", exposition, re.MULTILINE)
        assert found is not None
        assert 64 <= float(found[1]) <= 32_768
