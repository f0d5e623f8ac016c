import argparse
import json
from pathlib import Path

import pytest

from benchmarks.gate.load_options import NAMES, Basis, InvalidLoad, add_load_options, load_of
from benchmarks.gate.profiles import Profile
from benchmarks.gate.traffic.arrivals import Arrivals, Pattern
from benchmarks.gate.traffic.cancellations import Cancellations
from benchmarks.gate.traffic.offer import Offer
from benchmarks.gate.traffic.pace import UNLIMITED, Pace

PROFILE = Profile("test", input_tokens=5, output_tokens=9, seed=7)


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_load_options(parser)
    return parser.parse_args(argv)


def found(*argv: str, requests: int | None = None) -> Offer:
    offer = load_of(parsed(*argv), Basis(PROFILE, "m", 40, requests, distinct=6))
    assert offer is not None
    return offer


def test_without_options_there_is_nothing_beyond_the_closed_loop() -> None:
    assert load_of(parsed(), Basis(PROFILE, "m", 40)) is None


def test_every_option_is_known_by_its_name() -> None:
    assert set(vars(parsed())) == set(NAMES)


def test_a_rate_is_poisson_by_default() -> None:
    assert found("--rate", "5").pace == Pace(Arrivals(5, Pattern.POISSON), seed=7, cancel=SEEDED)
    gamma = found("--rate", "5", "--arrival", "gamma", "--burstiness", "0.5", "--ramp", "3")
    assert gamma.pace.arrivals == Arrivals(5, Pattern.GAMMA, 0.5, 3)
    assert gamma.pace.ramp == 0
    capped = found("--rate", "5", "--arrival", "constant", "--max-in-flight", "8")
    assert capped.pace.cap == 8


SEEDED = Cancellations(seed=7)


def test_a_closed_loop_may_ramp_and_end_by_the_clock() -> None:
    offer = found("--ramp", "2", "--duration", "9")
    assert (offer.pace.ramp, offer.pace.duration, offer.conversations) == (2, 9, UNLIMITED)
    assert found("--ramp", "2").conversations == 40
    assert found("--duration", "9", requests=5).conversations == 5


def test_given_options_override_the_profiles_conversations() -> None:
    offer = found("--turns", "3", "--think", "2", "--prefixes", "2", "--prefix-tokens", "4")
    talks = offer.template.dataset.conversations
    assert len(talks) == 6
    assert [len(turn.text.split(" ")) for turn in talks[0].turns] == [9, 5, 5]
    assert [turn.think for turn in talks[0].turns] == [0, 2, 2]
    assert {turn.output_tokens for turn in talks[0].turns} == {9}
    assert offer.conversations == 13
    varied = found(
        *("--turns", "2", "--think", "2", "--think-varies"),
        *("--prompt-tokens-deviation", "2", "--output-tokens-deviation", "3"),
    )
    turns = [turn for each in varied.template.dataset.conversations for turn in each.turns]
    assert len({turn.think for turn in turns}) == 7
    assert len({turn.output_tokens for turn in turns}) > 1


def test_requests_may_be_given_up() -> None:
    assert found("--cancel-share", "0.1").pace.cancel == Cancellations(0.1, 0.5, 7)
    assert found("--cancel-share", "1", "--cancel-after", "2").pace.cancel.after == 2


def test_answers_are_kept_to_be_counted_and_bodies_may_have_more() -> None:
    offer = found("--count-answers", "--extra-inputs", "ignore_eos:true", "--extra-inputs", "n:1")
    assert offer.pace.keep
    assert offer.template.extra == {"ignore_eos": True, "n": 1}


def test_a_traces_own_times_or_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": at, "input_length": 4, "output_length": 3, "hash_ids": [1, at]}
        for at in (5, 9, 11)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    offer = found("--mooncake", str(path), "--block", "2", "--replay")
    assert offer.pace.replay == 1
    assert offer.template.dataset.stamps == (0.005, 0.009, 0.011)
    assert offer.conversations == 3
    assert found("--mooncake", str(path), "--block", "2", "--replay", "4").pace.replay == 4
    assert found("--mooncake", str(path), "--block", "2", requests=2).conversations == 2
    assert found("--mooncake", str(path), "--block", "2", "--rate", "1").conversations == 40
    with pytest.raises(InvalidLoad, match=r"trace.jsonl:1: hash_ids: 2, but"):
        found("--mooncake", str(path))


def test_conversations_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    said = [{"from": who, "value": "the"} for who in ("human", "gpt") * 2]
    path.write_text(json.dumps([{"conversations": said}] * 3))
    offer = found("--sharegpt", str(path), "--think", "2")
    assert [turn.output_tokens for turn in offer.template.dataset.conversations[0].turns] == [1, 1]
    assert offer.conversations == 20
    assert found("--sharegpt", str(path), "--turns", "1").template.dataset.longest == 1
    assert len(found("--sharegpt", str(path), requests=2).template.dataset.conversations) == 2
    with pytest.raises(InvalidLoad, match="No such file"):
        found("--sharegpt", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ("--arrival gamma", "--arrival: needs --rate"),
        ("--rate 1 --burstiness 2", "--burstiness: needs --arrival gamma"),
        ("--max-in-flight 3", "--max-in-flight: needs --rate or --replay"),
        ("--replay", "--replay: needs --mooncake"),
        ("--mooncake x --replay --rate 1", "--rate: not together with --replay"),
        ("--mooncake x --replay --ramp 1", "--ramp: not together with --replay"),
        ("--mooncake x --sharegpt x", "--sharegpt: not together with --mooncake"),
        ("--mooncake x --turns 2", "--turns: not together with --mooncake"),
        ("--sharegpt x --prefixes 1 --prefix-tokens 1", "--prefixes: not together"),
        ("--prefixes 1", "--prefixes: needs --prefix-tokens"),
        ("--prefix-tokens 1", "--prefix-tokens: needs --prefixes"),
        ("--think 1", "--think: needs --turns or --sharegpt"),
        ("--cancel-after 1", "--cancel-after: needs --cancel-share"),
        ("--cancel-share 1.5", "cancel share must be from 0 to 1"),
        ("--extra-inputs a", "--extra-inputs a: not NAME:JSON"),
        ("--extra-inputs a:b", "--extra-inputs a:b: not NAME:JSON"),
    ],
)
def test_impossible_values_are_refused_before_any_traffic(argv: str, reason: str) -> None:
    with pytest.raises(InvalidLoad, match=reason):
        found(*argv.split())


@pytest.mark.parametrize("argv", ["--rate 0", "--rate nan", "--ramp -1", "--turns 0", "--rate x"])
def test_numbers_are_above_zero(argv: str) -> None:
    with pytest.raises(argparse.ArgumentError):
        parsed(*argv.split())
