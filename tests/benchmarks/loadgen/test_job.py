from dataclasses import replace
from typing import Any

from benchmarks.engines import frames
from benchmarks.loadgen import plan
from benchmarks.loadgen.job import Job
from benchmarks.loadgen.plan import Plan


def job(requests: int, prompts: int = 2) -> Job:
    given: dict[str, Any] = {"targets": [["127.0.0.1", 1]], "clients": 3, "tokens": 2}
    given |= {"stream": True, "prompt_bytes": 100, "ramp_s": 0.1, "window_s": 0.1, "drain_s": 1.0}
    return Job(Plan(requests=requests, prompts=prompts, **given))


async def test_a_job_hands_out_its_requests_and_no_more() -> None:
    load = job(3)
    given = [load.next_request() for _ in range(5)]
    assert [request is not None for request in given] == [True, True, True, False, False]
    sent = [taken[1] for taken in given if taken is not None]
    assert sent[0] == sent[2] != sent[1]
    assert not load.issuing


async def test_it_is_over_with_the_last_answer() -> None:
    load = job(1)
    load.next_request()
    assert load.active == 1
    load.idle(load.clients[0])
    assert not load.drained.is_set()
    load.active = 0
    load.idle(load.clients[0])
    assert load.drained.is_set()


async def test_clients_expect_whole_answers() -> None:
    load = job(1)
    assert load.plan.events_expected == frames.stream_events(2, True)
    assert len(load.clients) == 3


async def test_the_warm_up_uses_other_prompts_than_the_job() -> None:
    given = job(1).plan
    [warming, _] = plan.requests(replace(given, is_warm_up=True))
    [asking, _] = plan.requests(given)
    assert frames.WARM_UP_MARK in warming
    assert frames.JOB_MARK not in warming
    assert frames.JOB_MARK in asking
