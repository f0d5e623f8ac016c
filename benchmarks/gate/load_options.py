"""The options for a load beyond the plain closed loop, and the offer that they come to.

All errors in them, or in a file that they name, are one kind of exception, before any traffic.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import orjson

from benchmarks.command_line import above_0, positive
from benchmarks.gate.inputs.datasets import Dataset, Shape, synthetic
from benchmarks.gate.inputs.mooncake import BLOCK, mooncake
from benchmarks.gate.inputs.sharegpt import sharegpt
from benchmarks.gate.inputs.tokenizer import bundled
from benchmarks.gate.profiles import Profile
from benchmarks.gate.traffic.arrivals import Arrivals, Pattern
from benchmarks.gate.traffic.cancellations import Cancellations
from benchmarks.gate.traffic.offer import Offer, conversations
from benchmarks.gate.traffic.pace import UNLIMITED, Pace, RequestTemplate


class InvalidLoad(ValueError):
    """A load that cannot be offered; the text names the option or the file."""


# Options that require another one.
NEEDS = {
    "arrival": ("rate",),
    "burstiness": ("rate",),
    "max_in_flight": ("rate", "replay"),
    "replay": ("mooncake",),
    "block": ("mooncake",),
    "cancel_after": ("cancel_share",),
    "prefixes": ("prefix_tokens",),
    "prefix_tokens": ("prefixes",),
    "think": ("turns", "sharegpt"),
    "think_varies": ("think",),
}
SYNTHETIC = ("prefixes", "think_varies", "prompt_tokens_deviation", "output_tokens_deviation")
EXCLUDE = (
    ("rate", "replay"),
    ("ramp", "replay"),
    ("sharegpt", "mooncake"),
    ("turns", "mooncake"),
    *((name, file) for name in SYNTHETIC for file in ("sharegpt", "mooncake")),
)


def add_load_options(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """All of them; unless one is given, the load is the plain closed loop."""
    add = parser.add_argument
    add("--rate", type=above_0, metavar="R", help="requests per second, whatever has ended")
    add("--arrival", choices=[*Pattern], help="how gaps vary at a --rate; default poisson")
    add("--burstiness", type=above_0, metavar="SHAPE", help="of --arrival gamma, as vLLM's")
    add("--max-in-flight", type=positive, metavar="N", help="at a --rate: what is due then waits")
    add("--ramp", type=above_0, metavar="S", help="seconds until all streams ask, or the full rate")
    add("--duration", type=above_0, metavar="S", help="begin nothing after; default: --requests")
    add("--sharegpt", type=Path, metavar="FILE", help="conversations, JSON or JSON lines")
    add("--mooncake", type=Path, metavar="FILE", help="a trace, JSON lines")
    add("--replay", type=above_0, nargs="?", const=1.0, metavar="SPEED", help="at its own times")
    add("--block", type=positive, metavar="TOKENS", help=f"of a trace's hash ids; default {BLOCK}")
    add("--turns", type=positive, metavar="N", help="of each conversation (at most, from a file)")
    add("--think", type=above_0, metavar="S", help="between an answer and the next turn")
    add("--think-varies", action="store_true", default=None, help="exponentially around --think")
    add("--prefixes", type=positive, metavar="P", help="different beginnings that prompts share")
    add("--prefix-tokens", type=positive, metavar="L", help="of each beginning")
    add("--prompt-tokens-deviation", type=above_0, metavar="SD", help="of made-up prompts")
    add("--output-tokens-deviation", type=above_0, metavar="SD", help="of what answers may have")
    add("--cancel-share", type=float, metavar="SHARE", help="of requests that are given up")
    add("--cancel-after", type=above_0, metavar="S", help="when; default 0.5")
    add("--count-answers", action="store_true", default=None, help=COUNT_HELP)
    add("--extra-inputs", action="append", metavar="NAME:JSON", help="a field of all bodies")


COUNT_HELP = "read answers, to count their tokens ourselves where the server sends no usage"
NAMES = (
    *("rate", "arrival", "burstiness", "max_in_flight", "ramp", "duration", "sharegpt", "mooncake"),
    *("replay", "block", "turns", "think", "think_varies", "prefixes", "prefix_tokens"),
    *("prompt_tokens_deviation", "output_tokens_deviation", "cancel_share", "cancel_after"),
    *("count_answers", "extra_inputs"),
)


@dataclass(frozen=True, slots=True)
class Basis:
    """Values of a command's other options: `requests` is None if not given, `distinct` the number
    of different synthetic conversations."""

    profile: Profile
    model: str
    default_requests: int
    requests: int | None = None
    distinct: int = 100


def load_of(arguments: argparse.Namespace, basis: Basis) -> Offer | None:
    """What the options come to; None where none was given. Raises InvalidLoad."""
    given = {name: value for name in NAMES if (value := getattr(arguments, name)) is not None}
    if not given:
        return None
    _check(given)
    try:
        dataset = _dataset(given, basis)
        pace = _pace(given, basis.profile.seed)
    except ValueError as error:
        raise InvalidLoad(str(error)) from None
    profile = basis.profile
    extra = dict(_extra(each) for each in given.get("extra_inputs", ()))
    template = RequestTemplate(
        dataset, basis.model, profile.output_tokens, profile.temperature, extra
    )
    return Offer(template, pace, _conversations(given, basis, dataset))


def _check(given: dict[str, Any]) -> None:
    for name, others in NEEDS.items():
        if name in given and not any(other in given for other in others):
            _wrong(name, f"needs {' or '.join(map(_option, others))}")
    for name, other in EXCLUDE:
        if name in given and other in given:
            _wrong(name, f"not together with {_option(other)}")
    if "burstiness" in given and given.get("arrival") != Pattern.GAMMA:
        _wrong("burstiness", "needs --arrival gamma")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _wrong(name: str, reason: str) -> NoReturn:
    raise InvalidLoad(f"{_option(name)}: {reason}")


def _dataset(given: dict[str, Any], basis: Basis) -> Dataset:
    """Raises InvalidDataset."""
    seed, asked = basis.profile.seed, basis.requests
    if "mooncake" in given:
        return mooncake(given["mooncake"], seed, most=asked, block=given.get("block", BLOCK))
    if "sharegpt" in given:
        most = basis.default_requests if asked is None else asked
        turns, think = given.get("turns"), given.get("think", 0.0)
        return sharegpt(given["sharegpt"], bundled().count, most=most, turns=turns, think=think)
    return synthetic(_shape(given, basis), seed)


def _shape(given: dict[str, Any], basis: Basis) -> Shape:
    return Shape(
        conversations=basis.distinct,
        input_tokens=basis.profile.input_tokens,
        input_deviation=given.get("prompt_tokens_deviation", 0.0),
        output_tokens=basis.profile.output_tokens,
        output_deviation=given.get("output_tokens_deviation", 0.0),
        turns=given.get("turns", 1),
        think=given.get("think", 0.0),
        think_varies=given.get("think_varies", False),
        prefixes=given.get("prefixes", 0),
        prefix_tokens=given.get("prefix_tokens", 0),
    )


def _pace(given: dict[str, Any], seed: int) -> Pace:
    ramp = given.get("ramp", 0.0)
    arrivals = None
    if "rate" in given:
        pattern = Pattern(given.get("arrival", Pattern.POISSON))
        arrivals = Arrivals(given["rate"], pattern, given.get("burstiness", 1.0), ramp)
    return Pace(
        arrivals=arrivals,
        replay=given.get("replay"),
        cap=given.get("max_in_flight"),
        ramp=0.0 if arrivals else ramp,
        duration=given.get("duration"),
        cancel=Cancellations(given.get("cancel_share", 0.0), given.get("cancel_after", 0.5), seed),
        seed=seed,
        keep=given.get("count_answers", False),
    )


def _conversations(given: dict[str, Any], basis: Basis, dataset: Dataset) -> int:
    """The given number; else a trace once, or until the duration ends, or the default."""
    if basis.requests is None and "mooncake" in given and "rate" not in given:
        return len(dataset.conversations)
    if basis.requests is None and "duration" in given:
        return UNLIMITED
    requests = basis.default_requests if basis.requests is None else basis.requests
    return conversations(requests, dataset.mean_turns)


def _extra(text: str) -> tuple[str, Any]:
    name, colon, value = text.partition(":")
    try:
        if name and colon:
            return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        pass
    raise InvalidLoad(f"--extra-inputs {text}: not NAME:JSON, such as ignore_eos:true")
