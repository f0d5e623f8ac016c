from dataclasses import replace

import pytest

from benchmarks.distributions import Distribution
from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.diagnosis import classify
from benchmarks.gate.analysis.metrics import Metrics, summarise
from benchmarks.gate.analysis.records import Client, Diagnosis, Kind, Run, WorkerSample
from benchmarks.gate.analysis.verdict import judge
from tests.benchmarks.gate.runs import (
    Stall,
    least_loaded,
    loop,
    request,
    rescued,
    round_robin,
    run,
    sampled,
)

ASKED = Constraints(ttft_p99="<= 300")


def diagnosis(seen: Run, asked: Constraints = ASKED) -> Diagnosis:
    return classify(seen, summarise(seen), asked)


@pytest.mark.parametrize("witness", [lambda seen: seen, sampled], ids=["requests", "router"])
@pytest.mark.parametrize("worker", [0, 3])
@pytest.mark.parametrize("since", [0.1, 0.5, 1.0])
def test_stalled_worker_is_named_by_round_robin(worker: int, since: float, witness) -> None:
    stall = Stall(worker, since, since + 2)
    seen = witness(loop(round_robin, count=1280, stall=stall))
    found = diagnosis(seen)
    assert not judge(summarise(seen), ASKED).passed
    assert (found.kind, found.worker) == (Kind.BACKUP, f"w{worker}")
    assert found.since is not None
    assert found.until is not None
    # From the last token before the stall, which is a step of 20 ms old, or from the first sample
    # of a load that rises.
    assert since - 0.021 < found.since < since + 0.3
    assert stall.until - 0.2 < found.until < stall.until + 1.0


@pytest.mark.parametrize("worker", [0, 3])
def test_the_same_stall_passes_least_loaded_and_is_still_named(worker: int) -> None:
    seen = loop(least_loaded, count=1280, slots=16, stall=Stall(worker, 0.5, 2.5))
    found = diagnosis(seen)
    # 16 of 1280 stood in the stalled worker, but with their first token.
    assert judge(summarise(seen), ASKED).passed
    assert (found.kind, found.worker) == (Kind.HEALTHY, f"w{worker}")
    assert "The load went elsewhere" in found.text


def test_the_text_has_the_timeline_in_figures() -> None:
    text = diagnosis(loop(round_robin, stall=Stall(2, 0.5, 2.5))).text
    assert "w2 held up to 61 requests" in text
    assert "a fair share is 16" in text
    assert "backed up since 0.6 s, for 2." in text
    assert "100% of the slowest 1%" in text


def test_waiting_is_put_down_to_where_it_was_spent_also_of_requests_that_moved() -> None:
    stall = Stall(2, 0.5, 3.5)
    seen = rescued(loop(round_robin, count=1280, stall=stall), stall)
    moved = [each for each in seen.requests if each.left]
    assert len(moved) > 20
    assert {each.waited_for for each in moved} == {"w2"}
    found = diagnosis(seen)
    assert (found.kind, found.worker) == (Kind.BACKUP, "w2")
    assert found.since is not None
    assert stall.since - 0.021 < found.since < stall.since + 0.3
    assert "100% of the slowest 1% of first tokens waited there" in found.text
    assert "until the router moved them to another worker." in found.text
    assert "It sent nothing from 0.5 s on, for 3.0 s." in found.text


def test_first_tokens_behind_one_worker_are_its_fault_also_without_a_backup() -> None:
    # One stream at a time and worker: no worker ever holds more than its share.
    seen = loop(least_loaded, concurrency=4, count=200, stall=Stall(1, 2.0, 9.0))
    requests = [
        replace(each, first=each.sent + 7.0) if each.last and each.last - each.sent > 5 else each
        for each in seen.requests
    ]
    assert sum((each.first or 0) - each.sent > 5 for each in requests) == 1
    found = diagnosis(replace(seen, requests=tuple(requests[:80])))
    assert (found.kind, found.worker) == (Kind.BACKUP, "w1")


@pytest.mark.parametrize("policy", [round_robin, least_loaded])
def test_healthy_runs_are_healthy(policy) -> None:
    for seen in (loop(policy), sampled(loop(policy))):
        found = diagnosis(seen)
        assert (found.kind, found.worker) == (Kind.HEALTHY, None)


def test_all_slow_alike_is_jitter_or_degradation_by_how_much() -> None:
    assert diagnosis(loop(round_robin, prefill_all=0.01)).kind is Kind.JITTER
    found = diagnosis(loop(round_robin, prefill_all=0.05))
    assert (found.kind, found.worker) == (Kind.DEGRADED, None)
    assert "None of the 4 workers stood out" in found.text


def test_workers_without_samples_are_not_judged() -> None:
    seen = loop(round_robin, prefill_all=0.05)
    samples = tuple(WorkerSample(at, "p0", 1.0, 0.0, None, 1, None, None) for at in range(9))
    found = diagnosis(replace(seen, samples=samples))
    assert (found.kind, found.worker) == (Kind.DEGRADED, None)
    assert "Nothing is known of single workers." in found.text


def test_too_few_tokens_from_all_is_degradation() -> None:
    asked = replace(ASKED, baseline=10_000)
    assert diagnosis(loop(round_robin), asked).kind is Kind.DEGRADED


def test_a_slow_start_of_all_is_cold() -> None:
    found = diagnosis(loop(round_robin, ready=(2, 2, 2, 2)))
    assert (found.kind, found.since) == (Kind.COLD, 0.0)
    assert found.until == pytest.approx(2.0, abs=0.2)


def test_an_engine_that_was_not_ready_is_reported_as_such() -> None:
    found = diagnosis(loop(round_robin, ready=(2, 0, 0, 0)))
    assert (found.kind, found.worker) == (Kind.BACKUP, "w0")
    assert "it may not have been ready" in found.text


def test_fewer_workers_than_gpus_are_under_provisioned_where_it_hurts() -> None:
    slow, fast = loop(round_robin, prefill_all=0.05), loop(round_robin)
    found = diagnosis(replace(slow, gpus=8))
    assert found.kind is Kind.UNDER_PROVISIONED
    assert "4 of 8 workers served" in found.text
    assert diagnosis(replace(fast, gpus=8)).kind is Kind.HEALTHY
    assert diagnosis(replace(slow, gpus=8, workers=4)).kind is Kind.DEGRADED


def test_a_worker_that_served_nothing_is_named() -> None:
    slow = loop(round_robin, prefill_all=0.05)
    idle = WorkerSample(0.0, "w9", 0.0, 0.0, 0.0, 0, "503", None)
    found = diagnosis(replace(slow, samples=(idle,)))
    assert (found.kind, found.worker) == (Kind.UNDER_PROVISIONED, "w9")
    assert "set w9 aside at 0.0 s: 503" in found.text


def with_prefill_engines(seen: Run) -> Run:
    """Two more workers that hold next to nothing and serve nothing in their own name."""
    told = sampled(seen, interval=0.05)
    extra = [
        replace(each, worker=f"p{index}", in_flight=number % 2, running=0.0)
        for index in range(2)
        for number, each in enumerate(each for each in told.samples if each.worker == "w0")
    ]
    return replace(seen, samples=(*told.samples, *extra), gpus=seen.gpus + 2)


def test_prefill_engines_are_no_measure_for_decode_engines() -> None:
    for workers in (1, 2, 4):
        seen = with_prefill_engines(loop(round_robin, workers=workers))
        assert diagnosis(seen).kind is Kind.HEALTHY
    slow = with_prefill_engines(loop(round_robin, prefill_all=0.05))
    assert diagnosis(slow).kind is Kind.DEGRADED
    found = diagnosis(with_prefill_engines(loop(round_robin, stall=Stall(2, 0.5, 2.5))))
    assert (found.kind, found.worker) == (Kind.BACKUP, "w2")


def failing(worker: str | None, share: int) -> Run:
    seen = loop(round_robin)
    bad = {"status": 503, "first": None, "last": None, "output_tokens": None, "gaps": ()}
    requests = [
        replace(each, worker=worker, **bad) if each.number % share == 0 else each  # type: ignore[arg-type]
        for each in seen.requests
    ]
    return replace(seen, requests=tuple(requests))


def test_a_worker_that_fails_its_requests_is_named() -> None:
    found = diagnosis(failing("w1", 4))
    assert (found.kind, found.worker) == (Kind.ERRORS, "w1")
    assert "160 of 640 requests failed (160 x status 503)" in found.text
    assert diagnosis(failing(None, 4)) == replace(
        diagnosis(failing(None, 4)), kind=Kind.ERRORS, worker=None
    )


def test_one_failure_is_the_diagnosis_of_an_otherwise_healthy_run() -> None:
    assert diagnosis(failing("w1", 640)).kind is Kind.ERRORS


def test_few_failures_do_not_explain_slow_answers() -> None:
    seen = failing("w1", 640)
    slow = loop(round_robin, prefill_all=0.05)
    mixed = replace(slow, requests=(seen.requests[0], *slow.requests[1:]))
    assert diagnosis(mixed).kind is Kind.DEGRADED


def test_a_frozen_worker_whose_requests_time_out_is_a_backup() -> None:
    """The stall outlasts the phase: what it holds fails by the time-out."""
    seen = loop(round_robin, count=300, stall=Stall(2, 0.2, 1000.0))
    requests = [
        replace(each, first=None, last=None, ended=each.sent + 10, status=None, error="timeout")
        if (each.first or 0) > 500 or (each.last or 0) > 500
        else each
        for each in seen.requests
        if each.sent < 500
    ]
    found = diagnosis(replace(seen, requests=tuple(requests)))
    assert (found.kind, found.worker) == (Kind.BACKUP, "w2")


@pytest.mark.parametrize(("error", "worker"), [("timed out after 8 s", "w1"), ("reset", None)])
def test_the_routers_view_names_the_worker_of_timed_out_requests(
    error: str, worker: str | None
) -> None:
    """No answer names its worker; all requests were sent before the fault showed."""
    fine = [request(number, worker=None) for number in range(12)]
    lost = [
        request(number, worker=None, first=None, last=None, ended=8.0, error=error, gaps=())
        for number in range(12, 16)
    ]
    samples = [
        WorkerSample(at / 2, f"w{each}", None, None, None, held, None, None)
        for at in range(20)
        for each, held in enumerate((0, 4 if at < 17 else 0, 0, 0))
    ]
    found = diagnosis(run([*fine, *lost], samples=tuple(samples)))
    assert (found.kind, found.worker) == (Kind.ERRORS, worker)
    assert ("w1 held 4 of the 4 requests in flight then" in found.text) is (worker is not None)


def test_nothing_answered_is_errors_in_every_way_it_happens() -> None:
    dead = [request(n, worker=None, status=None, error="refused", first=None) for n in range(9)]
    assert diagnosis(run(dead)).kind is Kind.ERRORS
    assert diagnosis(run()).kind is Kind.ERRORS
    low = Client(cpu=0.1, lag_p99_ms=1.0, reached=2)
    assert diagnosis(run(dead, client=low)).kind is Kind.ERRORS


def test_the_clients_fault_comes_before_all_others() -> None:
    seen = loop(round_robin, stall=Stall(2, 0.5, 2.5))
    found = diagnosis(replace(seen, client=Client(cpu=0.99, lag_p99_ms=1.0, reached=64)))
    assert (found.kind, found.worker) == (Kind.CLIENT, None)


def test_a_client_without_files_for_its_connections_is_to_blame_for_these_failures() -> None:
    lacking = [
        request(n, worker=None, error="cannot connect: EMFILE", first=None) for n in range(9)
    ]
    assert diagnosis(run([*lacking, request(9)])).kind is Kind.CLIENT


def test_part_of_a_node_is_measured_by_its_part() -> None:
    seen, asked = loop(round_robin), Constraints(">= 6000", "<= 300")
    assert classify(seen, summarise(seen), asked).kind is Kind.DEGRADED
    assert classify(seen, summarise(seen), asked, gpus_total=8).kind is Kind.HEALTHY


PUBLISHED = [
    ("stall6", 114_380, 943, Kind.HEALTHY),
    ("t2", 111_472, 1183, Kind.JITTER),
    ("t1", 48_920, 30_743, Kind.DEGRADED),
    ("t6", 92_590, 4844, Kind.DEGRADED),
]


@pytest.mark.parametrize(
    ("throughput", "ttft", "kind"), [row[1:] for row in PUBLISHED], ids=[r[0] for r in PUBLISHED]
)
def test_published_figures_without_workers(throughput: float, ttft: float, kind: Kind) -> None:
    metrics = Metrics(throughput, None, Distribution(p99=ttft), requests=16_384)
    found = classify(None, metrics, Constraints(">= 50000", "<= 2000"))
    assert (found.kind, found.worker) == (kind, None)
