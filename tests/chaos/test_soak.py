"""What a soak calls wrong."""

import pytest

from router.simulator import EngineConfig, serve_engine
from tests.chaos.outages import Outages
from tests.chaos.soak import PATH, Sample, answer_to, judge_growth
from tests.net.client import Client

D0, D1 = "http://d0", "http://d1"


def line(prefill: str | None, decode: str | None) -> dict[str, str | None]:
    return {"id": "a", "prefill": prefill, "decode": decode}


@pytest.mark.parametrize(
    ("gone", "is_wrong"),
    [((10, 20), False), ((0, 4), True), ((0, 5), False), ((12, 13), False), ((16, 20), True)],
)
def test_a_stream_may_fail_while_its_engine_is_gone(
    gone: tuple[float, float], *, is_wrong: bool
) -> None:
    outages = Outages()
    outages.gone(D0, gone[0])
    outages.back(D0, gone[1])
    outages.failed("a", 5, 15)
    outages.explain([{**line(None, D0), "id": "b"}])
    assert outages.open == {"a"}
    outages.explain([line(D1, D0)])
    assert outages.open == set()
    assert len(outages.wrong) == is_wrong


def test_others_engines_and_a_missing_line_excuse_nothing() -> None:
    for lines in ([line(None, D1)], [line(None, None)], []):
        outages = Outages()
        outages.gone(D0, 10)
        outages.failed("a", 5, 15)
        outages.explain(lines)
        assert len(outages.wrong) == 1


def sample(ttft: float, slowest: float) -> Sample:
    return Sample(1 << 20, 100, [ttft] * 95 + [slowest] * 5, 100, 0, [])


def test_the_slowest_first_tokens_are_judged_too() -> None:
    usual = [sample(0.1, 0.5)] * 3
    assert judge_growth([*usual, sample(0.1, 3.4)]) == []
    assert judge_growth([*usual, sample(0.1, 3.6)]) == [
        "their 99th percentile grew from 0.5 to 3.6"
    ]
    assert len(judge_growth([*usual, sample(0.2, 0.5)])) == 1


async def test_the_answer_is_that_of_an_engine() -> None:
    async with serve_engine(EngineConfig(eos_one_in=0)) as engine:
        client = await Client.open(int(engine.url.rpartition(":")[2]))
        for number in range(60):
            body = {"model": "sim", "prompt": f"0.{number} why? ", "max_tokens": 20 + number}
            answer = await client.ask(PATH, body)
            told = answer_to(str(body["prompt"]), 20 + number)
            assert answer.json["choices"][0]["text"] == told
        client.leave()
