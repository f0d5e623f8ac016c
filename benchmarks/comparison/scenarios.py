"""The table of scenarios: the load, and the number of engines.

A new scenario is a new row.
"""

from dataclasses import dataclass, replace

from benchmarks.engines.speed import FREEZE, Change


@dataclass(frozen=True)
class Scenario:
    """One load. `clients`, `tokens` and `requests` can be changed on the command line.

    With `requests` it is a finite job of that size, from clients that start at once. Without, it is
    a timed window over clients that are out of step.
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
    # What a prefill takes, and how many a prefill engine does side by side; None: no time, all of
    # them. Without prefill engines each engine does its own, all side by side.
    prefill_s: float | None = None
    prefill_slots: int | None = None
    # All engines step at the same moments: answers that began together end together, in waves.
    common_clock: bool = False
    # So many clients ask a few times each before a finite job.
    warm_up_clients: int = 0
    changes: tuple[Change, ...] = ()
    # Clients start over this time; None: over one answer's length.
    start_s: float | None = None
    # Content of a token's event; None: a word.
    token_bytes: int | None = None
    # All connect at once, and a request's time begins with its connection.
    burst: bool = False
    # The machine is the limit on purpose: a router with less CPU serves more.
    saturated: bool = False
    # Answers outlast the turn and are cut off at its end.
    endless: bool = False
    # This share of the clients reads no faster than that, an answer that does not end.
    slow_share: float = 0.0
    slow_bytes_per_s: int = 1000
    # What a timer of the bench may be late (p99); None: a step.
    late_s: float | None = None
    # Whether its subject is the time that a router adds to a direct connection.
    over_direct: bool = False

    @property
    def answer_s(self) -> float:
        """How long one answer takes an engine."""
        return self.tokens * self.step_s

    @property
    def ramp_s(self) -> float:
        """Clients start over one answer's length, so that streams end evenly spread."""
        if self.start_s is not None:
            return self.start_s
        return max(self.answer_s, 0.5)

    @property
    def slow_clients(self) -> int:
        """How many of the clients read slowly."""
        return int(self.clients * self.slow_share)

    @property
    def engines(self) -> int:
        """All of them: decode engines first, as changes count them."""
        return self.decode_engines + self.prefill_engines


def relay(streams: int, step_s: float = 0.014) -> Scenario:
    """Token streams in a timed window.

    14 ms is the cadence of a mid-size model. Engines with more streams take longer steps, and at 14
    ms 1024 streams are more chunks than two cores can make, relay and read.
    """
    name = "relay" if streams == 256 else f"relay-{streams}"
    return Scenario(
        name, "token streams", clients=streams, tokens=64, stream=True, prompt_bytes=1000,
        step_s=step_s,
    )  # fmt: skip


def saturated(streams: int) -> Scenario:
    """More chunks than two cores can make, relay and read, from clients that connect at once.

    With eight answers per client it lasts some ten seconds, and the first tokens that connections
    at the start delay still decide the p99.
    """
    return Scenario(
        f"saturated-{streams}", "more than the machine can relay, all connect at once",
        clients=streams, tokens=64, stream=True, prompt_bytes=1000, requests=8 * streams,
        burst=True, saturated=True,
    )  # fmt: skip


def large_prompt(name: str, about: str, decode_engines: int, prefill_engines: int = 0) -> Scenario:
    """60 000 tokens. 8 clients: more would have engines and client busy with bytes."""
    return Scenario(
        name, about, clients=8, tokens=1, stream=False, prompt_bytes=240_000,
        decode_engines=decode_engines, prefill_engines=prefill_engines,
    )  # fmt: skip


def job(
    name: str, about: str, *changes: Change, clients: int = 384, requests: int = 6000
) -> Scenario:
    """A finite job for 8 engines of 64 slots. 384 streams fit on 7 of them, 560 do not.

    Answers of equal length on a common clock end in waves of hundreds, after a warm-up of two
    streams per engine: the hardest load for a router that learns from running numbers.
    """
    return Scenario(
        name, about, clients, tokens=50, stream=True, prompt_bytes=1000, step_s=0.02,
        requests=requests, prompts=100, slots=64, prefill_s=0.04, common_clock=True,
        warm_up_clients=16, changes=changes,
    )  # fmt: skip


def two_legs(name: str, about: str, *changes: Change) -> Scenario:
    """A finite job for 4 decode and 4 prefill engines.

    224 streams leave room on the decode engines, so the choice of prefill decides.
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
        relay(256),
        relay(512),
        relay(1024, 0.028),
        relay(2048, 0.056),
        replace(relay(64), name="added-ttft", about="token streams, against no router",
                over_direct=True),
        Scenario(
            "unary", "short answers, no stream", clients=32, tokens=1, stream=False,
            prompt_bytes=1000,
        ),
        # 12 kB is about 3000 tokens: long enough to be worth a prefill leg for any router.
        Scenario(
            "pd", "two legs, NIXL: prefill, then a token stream from decode", clients=64, tokens=32,
            stream=True, prompt_bytes=12_000, decode_engines=4, prefill_engines=2,
        ),
        large_prompt("large-prompt", "240 kB prompts, no stream", decode_engines=8),
        large_prompt(
            "large-prompt-pd", "240 kB prompts, two legs, NIXL, no stream", decode_engines=4,
            prefill_engines=2,
        ),
        # One answer per client. A step is long, so that the first events have the machine.
        Scenario(
            "burst", "all connect at once, one request each", clients=2048, tokens=16, stream=True,
            prompt_bytes=1000, step_s=0.1, requests=2048, burst=True, late_s=0.1,
        ),
        saturated(1024),
        saturated(2048),
        # About 1 kB per token, as with log probabilities: what is not read backs up in two seconds.
        Scenario(
            "slow-client", "half of the clients read at 1 kB/s", clients=256, tokens=64,
            stream=True, prompt_bytes=1000, token_bytes=800, start_s=2.0, window_s=8.0,
            slow_share=0.5,
        ),
        # 10 000 streams are some 20 000 files of a router; a token every 10 s keeps them alive.
        # On 40 engines, as no engine runs 1250 streams: they would all speak at the same moment.
        Scenario(
            "idle-streams", "memory per open stream", clients=10_000, tokens=1000, stream=True,
            prompt_bytes=1000, decode_engines=40, step_s=10.0, start_s=10.0, window_s=11.0,
            endless=True, late_s=0.1,
        ),
        job("healthy", "all engines equal"),
        job("slow-engine", "engine 0 is 8 times slower", SLOW),
        # 10 minutes at some 355 requests/s: what drifts or swings shows.
        job("slow-engine-long", "engine 0 is 8 times slower, 10 minutes", SLOW, requests=213_000),
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
