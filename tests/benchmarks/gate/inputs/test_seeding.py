import statistics

from benchmarks.gate.inputs.seeding import child, draw, numbers


def test_a_name_has_its_own_sequence() -> None:
    assert child(100, "a") != child(100, "b") != child(101, "b")
    assert numbers(1, "a").random() == numbers(1, "a").random() != numbers(1, "b").random()


def test_a_seed_is_stable() -> None:
    # The first 8 bytes of SHA-256 of "100:dataset.prompt", as AIPerf's.
    assert child(100, "dataset.prompt") == 0xAFD52BDD4B4AD686
    assert draw(100, "x") == 0.31057502698450223


def test_draws_are_even() -> None:
    found = [draw(7, f"n.{number}") for number in range(5000)]
    assert all(0 <= each < 1 for each in found)
    assert abs(statistics.mean(found) - 0.5) < 0.02
    assert abs(statistics.pstdev(found) - 12**-0.5) < 0.01
