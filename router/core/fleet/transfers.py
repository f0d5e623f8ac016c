"""How long KV transfers take between zones, and what that is worth in requests in flight.

Measured is the time from a prefill's answer to the stream's first content, as a line over the
prompt's tokens, by the zones of both engines. What is no transfer (a decode step, say) is in all of
these times, and drops out where two are compared.
"""

from typing import Final

from router.core.speed.prompt_costs import Line, LineFit
from router.core.speed.tuning import EXPECTED_FROM

__all__ = ["TRY_SHARE", "Transfers", "Zones"]

Zones = tuple[str | None, str | None]
"""The zones of the prefill and of the decode engine; None for one without."""

TRY_SHARE: Final = 1 / 64
"""Share of the choices that ignore zones, so that a slow link is measured again. Too small to
matter in a 99th percentile, since half of them stay in the zone anyway."""

MEMORY: Final = 32.0
"""Samples that a fit spans. With `TRY_SHARE`, a link that has become fast again is found so after
some thousand requests."""

MAX_PAIRS: Final = 1024
"""Most pairs of zones that are measured: an operator may name each host as a zone."""

SAME: Final = 1.25
"""Transfers that take up to this many times as long as within the zone count as equal."""

PRIOR_REQUESTS: Final = 2.0
"""Requests in flight that a transfer to another zone costs until both have been measured."""

REQUESTS_PER_SECOND: Final = 50.0
"""Requests in flight that a second of a later first token is worth. One more stream delays itself
and the others by some tens of milliseconds in all: a decode step takes some 20 µs longer. (In
virtual time, with crossing 3 and 10 times as slow, first tokens come later with 5 and hardly
sooner with 200.)"""

MAX_REQUESTS: Final = 64.0
"""Most requests that a transfer to another zone costs, whatever was measured, so that one zone does
not queue while another idles. (With 16, crossing 10 times as slow and one of four decode engines in
the zone of three of four prefill engines, first tokens come 50 % later.)"""


class Transfers:
    """The measured transfers of one router process."""

    def __init__(self) -> None:
        self._fits: dict[Zones, LineFit] = {}

    def add(self, zones: Zones, tokens: int, seconds: float) -> None:
        """Count a first content that came `seconds` after the prefill of `tokens`."""
        fit = self._fits.get(zones)
        if fit is None:
            if len(self._fits) >= MAX_PAIRS:
                return
            fit = self._fits[zones] = LineFit(MEMORY)
        fit.add(float(tokens), seconds)

    def keep(self, zones: set[str | None]) -> None:
        """Forget the pairs of zones that are no longer there."""
        self._fits = {pair: fit for pair, fit in self._fits.items() if zones.issuperset(pair)}

    def lines(self) -> dict[Zones, Line]:
        """The seconds by prompt tokens of each pair that has been measured often enough."""
        return {pair: line for pair in self._fits if (line := self._line(pair)) is not None}

    def requests(self, zones: Zones, home: str | None, tokens: int) -> float:
        """What it costs, in requests in flight, to transfer so many tokens between `zones` instead
        of within the zone `home`."""
        there, here = self._line(zones), self._line((home, home))
        if there is None or here is None:
            return PRIOR_REQUESTS
        seconds = there.seconds(tokens) - SAME * here.seconds(tokens)
        return min(MAX_REQUESTS, max(0.0, REQUESTS_PER_SECOND * seconds))

    def _line(self, zones: Zones) -> Line | None:
        fit = self._fits.get(zones)
        return None if fit is None or fit.sums.samples < EXPECTED_FROM else fit.sums.line()
