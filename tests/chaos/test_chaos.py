"""One seed of `make chaos`."""

from tests.chaos.run import run


async def test_whatever_breaks_every_request_ends_in_a_right_answer_or_a_clean_error() -> None:
    verdict = await run(1, singles=4, pairs=1)
    print(verdict)  # shown by pytest -s
    assert verdict.faults == []
