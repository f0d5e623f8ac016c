"""What workers tell each other, in one process: the sockets do not mind."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from router.core.events import Ejected, LegAnswered, LegDone, LegFailed, News, Probed, Scraped
from router.core.health import Sight
from router.core.values import Endpoint, FailureKind, Gauges, Role
from router.net.crew import Crew
from tests.net.house import eventually

D0, D1 = Endpoint("http://d0", Role.DECODE), Endpoint("http://d1", Role.DECODE)

NEWS: list[News] = [
    Probed(D0, Sight.OK, ({"id": "m", "root": "Qwen"},)),
    Scraped(D1, Gauges(3, 4, 0.5), 2),
    LegFailed(D0, FailureKind.REFUSED),
    Ejected(D1, 1.0, 31.0),
]


Make = Callable[[int], Crew]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes crews of so many, and closes them."""
    with contextlib.ExitStack() as stack:

        def one(workers: int) -> Crew:
            crew = Crew(workers, [D0, D1])
            stack.callback(crew.close)
            return crew

        yield one


async def test_what_one_tells_all_others_hear_in_order(make: Make) -> None:
    crew = make(3)
    mates = [crew.join(number, 100 + number) for number in range(3)]
    heard: list[list[News]] = [[], [], []]
    for mate in mates:
        mate.gossip.listen(heard[mate.number].append)
    for news in NEWS:
        mates[1].gossip.tell(news)
    await eventually(lambda: heard[0] == heard[2] == NEWS)
    assert heard[1] == []
    for mate in mates:
        mate.gossip.close()


async def test_only_what_concerns_everybody_is_passed_on(make: Make) -> None:
    crew = make(2)
    one, other = crew.join(0, 1), crew.join(1, 2)
    heard: list[News] = []
    other.gossip.listen(heard.append)
    for event in (
        LegAnswered(D0, 200, 0.1, True),
        LegDone(D0),
        LegFailed(D0, FailureKind.TIMEOUT),
        LegFailed(D0, FailureKind.RESET),
    ):
        one.gossip.observe(event)
    await eventually(lambda: heard)
    assert heard == [LegFailed(D0, FailureKind.RESET)]
    other.gossip.close()


async def test_news_wait_for_a_worker_that_is_started_anew(make: Make) -> None:
    crew = make(2)
    one = crew.join(0, 1)
    one.gossip.tell(NEWS[0])
    heard: list[News] = []
    late = crew.join(1, 2)
    late.gossip.listen(heard.append)
    await eventually(lambda: heard == NEWS[:1])
    late.gossip.close()


async def test_a_worker_that_does_not_listen_stops_nobody(make: Make) -> None:
    crew = make(2)
    one, deaf = crew.join(0, 1), crew.join(1, 2)
    for _ in range(20_000):  # more than fits
        one.gossip.tell(NEWS[1])
    heard: list[News] = []
    deaf.gossip.listen(heard.append)
    await eventually(lambda: heard)
    deaf.gossip.close()


async def test_many_models_fit_into_one_piece_of_news(make: Make) -> None:
    crew = make(2)
    one, other = crew.join(0, 1), crew.join(1, 2)
    heard: list[News] = []
    other.gossip.listen(heard.append)
    cards = tuple(
        {"id": f"adapter-{n}", "object": "model", "root": f"/adapters/{n}", "parent": "Qwen"}
        for n in range(2000)
    )
    one.gossip.tell(Probed(D0, Sight.OK, cards))
    await eventually(lambda: heard)
    assert heard == [Probed(D0, Sight.OK, cards)]
    other.gossip.close()


@pytest.mark.parametrize("number", [0, 1])
def test_the_first_worker_leads(make: Make, number: int) -> None:
    assert make(2).join(number, 1).is_leader is (number == 0)
