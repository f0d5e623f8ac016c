import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.analysis.constraints import (
    Constraints,
    InvalidConstraint,
    errors_allowed,
    scaled,
    throughput_threshold,
    ttft_threshold,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (">= 50000", 50_000),
        (">=50000", 50_000),
        ("  >=   50000  ", 50_000),
        (">= 50000 tokens/sec", 50_000),
        (">= 5e4", 50_000),
        (">= .5", 0.5),
    ],
)
def test_a_throughput_is_read_as_the_validator_reads_it(text: str, number: float) -> None:
    assert throughput_threshold(text) == number
    assert ttft_threshold(text.replace(">", "<")) == number


@pytest.mark.parametrize(
    "text",
    ["> 5000", "== 5000", "5000", "<= 5000", ">== 5000", ">= =5000", ">=   !5", "", ">=", ">= ",
     ">= x", ">= 5000tokens", ">= nan", ">= inf", ">= 1e999", ">= 5_000", ">=\t5000"],
)  # fmt: skip
def test_anything_else_is_no_constraint(text: str) -> None:
    with pytest.raises(InvalidConstraint, match="inference-throughput"):
        throughput_threshold(text)


@given(st.text(alphabet="<>=! 0123456789.eE+-nafi\t_x٣", max_size=12))
def test_whatever_is_written_is_a_finite_number_or_refused(text: str) -> None:
    try:
        number = ttft_threshold(text)
    except InvalidConstraint:
        return
    assert text.strip().startswith("<=")
    assert abs(number) < float("inf")


@given(st.floats(0, 1e12))
def test_every_number_that_is_written_comes_back(number: float) -> None:
    assert throughput_threshold(f">= {number!r}") == number


@pytest.mark.parametrize(
    ("benchmarked", "total", "asked"),
    [(4, 8, 25_000), (1, 8, 6250), (8, 8, 50_000), (9, 8, 50_000), (None, 8, 50_000),
     (4, None, 50_000), (0, 8, 50_000)],
)  # fmt: skip
def test_a_part_of_a_node_must_reach_its_part(
    benchmarked: int | None, total: int | None, asked: float
) -> None:
    assert scaled(50_000, benchmarked, total) == asked


@pytest.mark.parametrize(
    ("text", "allowed"), [("0", 0), ("3", 3), ("1%", 10), ("0.19%", 1), ("100%", 1000)]
)
def test_errors_are_allowed_by_count_or_by_share(text: str, allowed: int) -> None:
    assert errors_allowed(text, 1000) == allowed


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "-1%", "%", "few", "²", "nan%"])
def test_other_allowances_are_refused(text: str) -> None:
    with pytest.raises(InvalidConstraint, match="max errors"):
        errors_allowed(text, 1000)


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(throughput="50000"),
        Constraints(ttft_p99="< 5"),
        Constraints(max_errors="some"),
        Constraints(baseline=0.0),
        Constraints(baseline=float("nan")),
        Constraints(baseline_floor=1.5),
        Constraints(baseline_floor=0.0),
    ],
)
def test_bad_values_are_found_before_any_traffic(constraints: Constraints) -> None:
    with pytest.raises(InvalidConstraint):
        constraints.check()


def test_the_highest_floor_counts() -> None:
    assert Constraints(throughput=">= 50000").throughput_floor() == 45_000
    assert Constraints(throughput=">= 50000").throughput_floor(4, 8) == 22_500
    both = Constraints(throughput=">= 50000", baseline=100_000)
    assert both.throughput_floor() == 85_000
