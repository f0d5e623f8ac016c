"""What GET /endpoints tells of an engine's prefix cache."""

import orjson

from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.prefix.coverage import EVENTS, HISTORY, NOTHING
from router.web.endpoints import endpoints
from tests.core.fixtures import D0


def test_the_blind_share_and_the_regret_of_an_engines_prompts_are_told() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), stale_after=5.0)
    coverage = fleet.member(D0).prefix_coverage
    [before] = endpoints(fleet)
    assert before["prefix_cache"]["blind_share"] is None
    for known_by, tokens in ((EVENTS, 500), (HISTORY, 250), (NOTHING, 250)):
        coverage.add(tokens, known_by, 10)
    [entry] = orjson.loads(orjson.dumps(endpoints(fleet)))
    told = entry["prefix_cache"]
    assert told["tokens_known_by"] == {"events": 500, "history": 250, "nothing": 250}
    assert told["blind_share"] == 0.25
    assert told["regret_tokens"] == 30
