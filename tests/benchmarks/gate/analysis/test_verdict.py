from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.distributions import Distribution
from benchmarks.gate.analysis.constraints import Constraints, InvalidConstraint
from benchmarks.gate.analysis.metrics import ErrorCount, Metrics
from benchmarks.gate.analysis.records import Client
from benchmarks.gate.analysis.verdict import SKIPPED, Exit, Verdict, judge, series
from benchmarks.gate.profiles import PLATFORMS


def figures(throughput: float | None, ttft_ms: float | None, **more: int) -> Metrics:
    spread = None if ttft_ms is None else Distribution(p99=ttft_ms)
    counts = {"requests": 16_384, **more}
    return Metrics(throughput, None, spread, **counts)  # type: ignore[arg-type]


# As thresholds were when the run was judged (1.13).
SMALL = Constraints(">= 5000", "<= 200")
JUNE = Constraints(">= 50000", "<= 1000")
NOW = Constraints(">= 50000", "<= 2000")
# No throughput was published.
TTFT = Constraints(ttft_p99="<= 1000")

PUBLISHED = [
    # Fix attempts
    ("dynamo102 r1", TTFT, None, 9200, "F"), ("dynamo102 r2", TTFT, None, 1030, "P"),
    ("dynamo102b r3", JUNE, 50_000, 1265, "F"), ("dynamo102c r4", JUNE, 122_000, 741, "P"),
    ("dynamo102d r5", TTFT, None, 708, "P"), ("dynamo102d r6", TTFT, None, 1358, "F"),
    ("dynamo102d r7", TTFT, None, 1670, "F"), ("dynamo102d r8", TTFT, None, 9020, "F"),
    ("dynamo102e k1", TTFT, None, 13_900, "F"), ("dynamo102e k2", JUNE, 114_000, 897, "P"),
    # 4.5
    ("stall1", JUNE, 127_036, 722, "P"), ("stall2", JUNE, 118_376, 939, "P"),
    ("stall3", JUNE, 108_739, 973, "P"), ("stall4", JUNE, 122_189, 765, "P"),
    ("stall5", JUNE, 116_678, 664, "P"), ("stall6", JUNE, 114_380, 943, "P"),
    # 4.6
    ("GKE 0.9.0", JUNE, 108_164, 586, "P"), ("GKE g1", JUNE, 137_105, 474, "P"),
    ("GKE g2", JUNE, 140_641, 227, "P"), ("GKE g3", JUNE, 138_700, 365, "P"),
    # 4.7
    ("s1", JUNE, 123_043, 729, "P"), ("s2", JUNE, 84_049, 4155, "F"),
    ("s3", JUNE, 122_151, 935, "P"),
    ("t1", NOW, 48_920, 30_743, "F"), ("t2", NOW, 111_472, 1183, "P"),
    ("t3", NOW, 92_865, 1056, "P"), ("t4", NOW, 124_479, 603, "P"),
    ("t5", NOW, 112_637, 910, "P"), ("t6", NOW, 92_590, 4844, "F"),
    ("t8", NOW, 110_847, 1274, "P"), ("t9", NOW, 77_537, 12_295, "F"),
    ("RTX panic fix", NOW, 73_993, 537, "P"), ("RTX 120 s probe", NOW, 74_833, 459, "P"),
    ("0.6B EKS", SMALL, 39_399, 138.27, "P"), ("0.6B GKE", SMALL, 33_982, 119.79, "P"),
    ("#1181 cold", NOW, 64_538, 16_328, "F"), ("#1181 warm", NOW, 108_455, 657, "P"),
    ("#1399 least-loaded", NOW, 136_054, 703, "P"),
    # Both sides of #1374 were fast enough for the gate.
    ("H100 kv", NOW, 104_282, 1068, "P"), ("H100 least-loaded", NOW, 120_975, 660, "P"),
    ("GB200 kv", NOW, 69_649, 1817, "P"), ("GB200 least-loaded", NOW, 94_929, 742, "P"),
    ("RTX kv", NOW, 64_357, 799, "P"), ("RTX least-loaded", NOW, 79_433, 379, "P"),
    # Why its check was deferred
    ("gb300", NOW, 21_100, 33_362, "F"),
    # The report says that t3 fails <= 1000; with the tolerance that was in the code it does not.
    ("t3 by the old ceiling", JUNE, 92_865, 1056, "P"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("constraints", "throughput", "ttft", "published"),
    [row[1:] for row in PUBLISHED],
    ids=[row[0] for row in PUBLISHED],
)
def test_a_published_run_gets_the_published_verdict(
    constraints: Constraints, throughput: float | None, ttft: float, published: str
) -> None:
    found = judge(figures(throughput, ttft), constraints)
    assert found.exit_code is (Exit.PASS if published == "P" else Exit.FAIL)
    assert found.validator is (published == "P")


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=str)
def test_every_platform_passes_as_it_was_calibrated(platform) -> None:
    measured = figures(platform.measured_tokens_per_second, platform.measured_ttft_p99_ms)
    assert judge(measured, platform.constraints, platform.gpus, platform.gpus).passed


@pytest.mark.parametrize(
    ("throughput", "ttft"), [(48_920, 30_743), (77_537, 12_295), (64_538, 16_328)]
)
def test_only_the_relative_floor_detects_stalls(throughput: float, ttft: float) -> None:
    stalled, absolute = figures(throughput, ttft), Constraints(throughput=">= 50000")
    assert judge(stalled, absolute).passed
    found = judge(stalled, replace(absolute, baseline=112_000))
    assert found.exit_code is Exit.FAIL
    assert "below 0.85 of the healthy median 112000.00" in found.message
    assert found.validator is True


def test_the_run_that_its_client_limited_is_void_where_the_validator_failed_it() -> None:
    client = Client(cpu=0.5, lag_p99_ms=2.0, reached=446)
    found = judge(figures(50_000, 1265), JUNE, client=client, in_flight=2048)
    assert found.exit_code is Exit.VOID
    assert found.message == "void: the client reached 446 of 2048 requests in flight"
    assert found.validator is False


@pytest.mark.parametrize(
    ("throughput", "ttft", "passes"),
    [
        (45_000, 2200, True),
        (44_999.99, 2200, False),
        (45_000, 2200.01, False),
        (float("nan"), 5, False),
        (50_000, float("nan"), False),
    ],
)
def test_ten_percent_are_tolerated_both_ways(throughput: float, ttft: float, passes: bool) -> None:
    assert judge(figures(throughput, ttft), NOW).passed is passes


def test_printed_lines_equal_the_validators() -> None:
    found = judge(figures(108_789.87, 687.5), NOW)
    assert found.lines[:4] == (
        "RESULT: Inference throughput: 108789.87 tokens/sec",
        "RESULT: Inference TTFT p99: 687.50 ms",
        "Throughput constraint: >= 50000 → PASS",
        "TTFT p99 constraint: <= 2000 → PASS",
    )


def test_throughput_is_judged_first_and_ends_it() -> None:
    found = judge(figures(123.45, 9000), NOW)
    assert found.failures == (
        "inference throughput 123.45 tokens/sec does not satisfy constraint "
        '">= 50000" (with 10% tolerance)',
    )
    assert not any("constraint:" in line for line in found.lines)


def test_ttft_is_judged_second() -> None:
    found = judge(figures(60_000, 9000), NOW)
    assert found.failures == (
        'inference TTFT p99 9000.00 ms does not satisfy constraint "<= 2000" (with 10% tolerance)',
    )


def test_throughput_is_scaled_to_the_gpus_benchmarked_and_ttft_is_not() -> None:
    found = judge(figures(22_500, 2200), NOW, 4, 8)
    assert found.passed
    assert (
        "Throughput gate scaled to 4 of 8 node GPUs benchmarked: 50000.00 -> 25000.00 tokens/sec"
        in found.lines
    )
    assert not judge(figures(22_499, 2200), NOW, 4, 8).passed
    assert not judge(figures(22_500, 2201), NOW, 4, 8).passed


def test_no_constraints_mean_skipped() -> None:
    found = judge(figures(1, 1, errors=5), Constraints())
    assert (found.exit_code, found.message, found.validator) == (Exit.SKIPPED, SKIPPED, None)


def test_a_bad_constraint_is_an_error_also_behind_one_that_fails() -> None:
    with pytest.raises(InvalidConstraint):
        judge(figures(1, 1), Constraints(">= 50000", "2000"))


def test_a_missing_ttft_fails_where_the_validator_would_pass_it() -> None:
    found = judge(figures(60_000, None), NOW)
    assert found.exit_code is Exit.FAIL
    assert "missing" in found.message
    assert found.validator is True


def test_a_missing_throughput_fails_in_both() -> None:
    found = judge(figures(None, 500), NOW)
    assert (found.exit_code, found.validator) == (Exit.FAIL, False)


def test_missing_unused_packages_do_not_matter() -> None:
    assert judge(figures(60_000, None), Constraints(throughput=">= 50000")).passed


def test_errors_fail_where_the_validator_does_not_look() -> None:
    broken = figures(108_000, 700, errors=4096, requests=12_288)
    found = judge(broken, NOW)
    assert (found.exit_code, found.validator) == (Exit.FAIL, True)
    assert "4096 of 16384 requests failed, 0 may" in found.message
    assert judge(broken, replace(NOW, max_errors="25%")).passed


def test_as_many_errors_as_are_allowed_pass_and_one_more_fails() -> None:
    asked = replace(NOW, max_errors="3")
    assert judge(figures(108_000, 700, errors=3), asked).passed
    assert not judge(figures(108_000, 700, errors=4), asked).passed
    assert not judge(figures(108_000, 700, errors=1), NOW).passed


def test_failed_requests_that_kept_the_load_low_are_not_the_clients_fault() -> None:
    dead = figures(None, None, errors=1000, requests=0)
    client = Client(cpu=0.1, lag_p99_ms=1.0, reached=12)
    assert judge(dead, NOW, client=client, in_flight=256).exit_code is Exit.FAIL


def test_a_client_without_lateness_figures_is_not_the_limit() -> None:
    client = Client(cpu=0.1, lag_p99_ms=None, reached=256)
    assert judge(figures(108_000, 700), NOW, client=client, in_flight=256).passed


def failing(message: str, errors: int) -> Metrics:
    kinds = (ErrorCount(None, message, errors),)
    return replace(figures(60_000, 700), requests=1000, errors=errors, error_summary=kinds)


def test_a_client_that_was_kept_busy_by_refusals_was_not_the_limit() -> None:
    client = Client(cpu=0.99, lag_p99_ms=900.0, reached=256)
    refused = failing("cannot connect: ConnectionRefusedError", 500)
    assert judge(refused, NOW, client=client, in_flight=256).exit_code is Exit.FAIL
    # A client without time to read makes time-outs, and a few failures do not keep it busy.
    for other in (failing("timed out after 120 s", 500), failing("connection lost", 2)):
        assert judge(other, NOW, client=client, in_flight=256).exit_code is Exit.VOID


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (Client(0.95, 2.0, 2048), "used 0.95 of a core"),
        (Client(0.5, 111.0, 2048), "late: p99 111 ms"),
        (Client(0.5, 2.0, 1900), "reached 1900 of 2048"),
    ],
)
def test_a_run_that_the_client_limited_is_void_passed_or_failed(client: Client, words: str) -> None:
    for metrics in (figures(108_000, 700), figures(1, 90_000)):
        found = judge(metrics, NOW, client=client, in_flight=2048)
        assert found.exit_code is Exit.VOID
        assert not found.passed
        assert words in found.message


@pytest.mark.parametrize(
    ("name", "words"),
    [("EMFILE", "open files (ulimit -n)"), ("ENFILE", "open files"), ("EADDRNOTAVAIL", "ports")],
)
def test_a_run_with_an_exhausted_client_is_void(name: str, words: str) -> None:
    summary = (ErrorCount(None, f"cannot connect: {name}", 40),)
    lacking = replace(figures(60_000, 500, errors=40, requests=60), error_summary=summary)
    found = judge(lacking, NOW, client=Client(0.1, 1.0, 256), in_flight=256)
    assert found.exit_code is Exit.VOID
    assert words in found.message
    assert "40 requests had no connection" in found.message
    refused = replace(
        lacking, error_summary=(ErrorCount(None, "cannot connect: ConnectionRefusedError", 40),)
    )
    assert judge(refused, NOW).exit_code is Exit.FAIL


def test_an_interrupted_run_is_void() -> None:
    assert judge(figures(108_000, 700), NOW, interrupted=True).message == "void: interrupted"


thresholds = st.floats(1, 1e6)
values = st.floats(0, 1e7)


@given(thresholds, thresholds, values, values, values, values)
def test_a_better_run_never_fails_if_a_worse_one_passes(
    floor: float, ceiling: float, throughput: float, ttft: float, more: float, less: float
) -> None:
    asked = Constraints(f">= {floor!r}", f"<= {ceiling!r}", baseline=floor)
    if judge(figures(throughput, ttft), asked).passed:
        better = figures(throughput + more, max(ttft - less, 0.0))
        assert judge(better, asked).passed


counts = st.integers(0, 300)


@given(st.sampled_from(["0", "5", "1%", "50%"]), counts, counts, st.integers(0, 256))
def test_more_errors_never_pass_if_fewer_failed(
    allowed: str, errors: int, more: int, reached: int
) -> None:
    def verdict(failed: int) -> Verdict:
        metrics = figures(60_000, 500, errors=failed, requests=1000 - failed)
        client = Client(0.1, 1.0, reached)
        asked = replace(NOW, max_errors=allowed)
        return judge(metrics, asked, client=client, in_flight=256)

    if not verdict(errors).passed:
        assert not verdict(errors + more).passed


@given(thresholds, st.integers(1, 16), st.integers(1, 16), values)
def test_fewer_gpus_never_need_a_higher_throughput(
    floor: float, fewer: int, total: int, throughput: float
) -> None:
    asked = Constraints(f">= {floor!r}")
    if judge(figures(throughput, 1), asked, total, total).passed:
        assert judge(figures(throughput, 1), asked, min(fewer, total), total).passed


GOOD, BAD = figures(110_000, 700), figures(110_000, 9000)


def several(*letters: str, required: int | None = None, broken: str | None = None):
    metrics = [GOOD if letter in "PV" else BAD for letter in letters]
    client = Client(0.1, 1.0, 256)
    verdicts = [
        judge(each, NOW, client=client, in_flight=2048 if letter == "V" else 256)
        for each, letter in zip(metrics, letters, strict=True)
    ]
    return series(verdicts, metrics, required, broken)


@pytest.mark.parametrize(
    ("letters", "required", "code"),
    [
        ("PPP", None, Exit.PASS),
        ("PPF", None, Exit.FAIL),
        ("PPF", 2, Exit.PASS),
        ("PFF", 2, Exit.FAIL),
        # The void one, repeated, could still decide it.
        ("PPV", None, Exit.VOID),
        ("PPV", 2, Exit.PASS),
        ("PFV", None, Exit.FAIL),
        ("VV", 1, Exit.VOID),
    ],
)
def test_several_runs_are_one_verdict(letters: str, required: int | None, code: Exit) -> None:
    assert several(*letters, required=required).exit_code is code


def test_several_runs_report_k_of_n_and_exclude_void_ones_from_medians() -> None:
    found = several("P", "F", "V", required=2)
    assert found.lines == (
        "1 of 3 passed, 1 void (2 required)",
        "throughput: median 110000.00 [110000.00–110000.00] tokens/sec",
        "TTFT p99: median 4850.00 [700.00–9000.00] ms",
    )


@pytest.mark.parametrize("letters", ["P", "F", "PP", "PF"])
def test_an_aborted_run_is_void_with_a_reason(letters: str) -> None:
    found = several(*letters, required=1, broken="interrupted")
    assert found.exit_code is Exit.VOID
    assert found.lines[1] == "void: interrupted"


def test_skipped_runs_are_skipped_together() -> None:
    skipped = judge(GOOD, Constraints())
    assert series([skipped, skipped], [GOOD, GOOD]).exit_code is Exit.SKIPPED


def test_no_runs_at_all_pass_nothing() -> None:
    assert series([], []).exit_code is not Exit.PASS
