"""The table of scenarios: what is offered, and to how many engines.

A new scenario is one more row. It refuses to know routers and how the load is made.
"""

from dataclasses import dataclass

from benchmarks.speed import FREEZE, Change


@dataclass(frozen=True)
class Scenario:
    """One load. `clients`, `tokens` and `requests` can be changed on the command line.

    With `requests` it is a finite job: so many in all, from clients that start at once. Without, it
    is a timed window over clients that are out of step.
    """

    name: str
    about: str
    clients: int
    tokens: int
    stream: bool
    prompt_bytes: int
    decode_engines: int = 8
    prefill_engines: int = 0
    # A decode step of a mid-size model on one GPU; the cadence of the measurements in the design.
    step_s: float = 0.014
    window_s: float = 4.0
    requests: int | None = None
    # Distinct prompts, cycled.
    prompts: int = 1
    # Streams that an engine serves side by side (vLLM's max_num_seqs); None: all of them.
    slots: int | None = None
    # What a prefill takes, and how many an engine does side by side; None: no time, all of them.
    prefill_s: float | None = None
    prefill_slots: int | None = None
    changes: tuple[Change, ...] = ()

    @property
    def answer_s(self) -> float:
        """How long one answer takes an engine."""
        return self.tokens * self.step_s

    @property
    def ramp_s(self) -> float:
        """Clients start over one answer's length, so that streams end evenly spread."""
        return max(self.answer_s, 0.5)

    @property
    def engines(self) -> int:
        """All of them: decode engines first, as changes count them."""
        return self.decode_engines + self.prefill_engines


def job(
    name: str, about: str, *changes: Change, clients: int = 384, requests: int = 6000
) -> Scenario:
    """A finite job for 8 engines of 64 slots. 384 streams fit on 7 of them, 560 do not."""
    return Scenario(
        name, about, clients, tokens=50, stream=True, prompt_bytes=1000, step_s=0.02,
        requests=requests, prompts=100, slots=64, changes=changes,
    )  # fmt: skip


def two_legs(name: str, about: str, *changes: Change) -> Scenario:
    """A finite job for 4 decode and 4 prefill engines.

    224 streams leave room on the decode engines: what is seen is the choice of prefill.
    """
    return Scenario(
        name, about, clients=224, tokens=50, stream=True, prompt_bytes=12_000, decode_engines=4,
        prefill_engines=4, step_s=0.02, requests=6000, prompts=100, slots=64, prefill_s=0.04,
        prefill_slots=8, changes=changes,
    )  # fmt: skip


SLOW = Change(0, 0, 8)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("relay", "token streams", clients=256, tokens=64, stream=True, prompt_bytes=1000),
        Scenario(
            "unary", "short answers, no stream", clients=32, tokens=1, stream=False,
            prompt_bytes=1000,
        ),
        # 12 kB is about 3000 tokens: long enough to be worth a prefill leg for any router.
        Scenario(
            "pd", "two legs, NIXL: prefill, then a token stream from decode", clients=64, tokens=32,
            stream=True, prompt_bytes=12_000, decode_engines=4, prefill_engines=2,
        ),
        job("healthy", "all engines equal"),
        job("slow-engine", "engine 0 is 8 times slower", SLOW),
        job("slow-engine-2x", "engine 0 is 2 times slower", Change(0, 0, 2)),
        job(
            "slow-engine-full", "engine 0 is 8 times slower, the others have no room for all", SLOW,
            clients=560, requests=8000,
        ),
        job(
            "freeze", "engine 0 stands still from 5 s to 15 s", Change(5, 0, FREEZE),
            Change(15, 0, 1), requests=9000,
        ),
        job(
            "recovery", "engine 0 is 8 times slower, and healthy from 8 s on", SLOW,
            Change(8, 0, 1), requests=12_000,
        ),
        job("half-slow", "engines 0-3 are 2 times slower", *(Change(0, n, 2) for n in range(4))),
        two_legs("healthy-prefill", "two legs, NIXL; all engines equal"),
        two_legs(
            "slow-prefill", "two legs, NIXL; prefill engine 4 is 8 times slower", Change(0, 4, 8)
        ),
    )
}  # fmt: skip
