"""The table of scenarios: what is offered, and to how many engines.

A new scenario is one more row. It refuses to know routers and how the load is made.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """One load. `clients` and `tokens` can be changed on the command line."""

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

    @property
    def answer_s(self) -> float:
        """How long one answer takes an engine."""
        return self.tokens * self.step_s

    @property
    def ramp_s(self) -> float:
        """Clients start over one answer's length, so that streams end evenly spread."""
        return max(self.answer_s, 0.5)


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
    )
}  # fmt: skip
