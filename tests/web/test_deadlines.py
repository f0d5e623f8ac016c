"""One timer looks at the deadlines of all connections."""

import asyncio
import math

from router.web.deadlines import DeadlineSweep


class Waiting:
    """A connection with a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.was_late = False

    def on_deadline(self) -> None:
        self.was_late = True


async def test_only_those_whose_time_is_up_are_told() -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    late, in_time, never = Waiting(now - 1), Waiting(now + 3600), Waiting(math.inf)
    sweep = DeadlineSweep([late, in_time, never], 3600, loop)
    sweep._sweep()
    sweep.close()
    assert [each.was_late for each in (late, in_time, never)] == [True, False, False]
