from dataclasses import replace

import orjson
import pytest

from benchmarks.gate.inputs.datasets import Dataset, Shape, synthetic
from benchmarks.gate.traffic.arrivals import Arrivals
from benchmarks.gate.traffic.load import Target
from benchmarks.gate.traffic.offer import Offer, conversations
from benchmarks.gate.traffic.pace import UNLIMITED, Pace, RequestTemplate
from benchmarks.streaming.client import Seen

PLAIN = synthetic(Shape(conversations=4, input_tokens=3), 1)
TALKS = synthetic(Shape(conversations=4, input_tokens=3, turns=3, think=1), 1)


def offer(dataset: Dataset = PLAIN, **pace: object) -> Offer:
    return Offer(RequestTemplate(dataset, "m"), Pace(**pace), 12)  # type: ignore[arg-type]


def test_the_target_gets_conversations() -> None:
    target = Target("h", 1, False, True, b"", (b"body",), 3.0)
    asked = offer().target(target)
    assert asked.bodies == ()
    assert asked.template == offer().template
    assert replace(asked, bodies=target.bodies, template=None) == target


def test_the_warm_up_is_a_plain_closed_loop() -> None:
    phase = offer(TALKS, arrivals=Arrivals(9), duration=3.0).warmup(8, 10)
    assert (phase.streams, phase.requests, phase.offset) == (8, 4, 0)
    assert not phase.pace.open_loop
    assert phase.pace.duration is None


def test_the_measured_phase_continues_after_the_warm_up_except_for_a_trace() -> None:
    assert offer().phase(8, 4, 1.5).offset == 4
    assert offer().phase(8, 4, 1.5).begin == 1.5
    assert offer(replace(PLAIN, stamps=(0.0,) * 4), replay=1.0).phase(8, 4).offset == 0


def test_only_a_closed_loop_without_thought_fills_its_streams() -> None:
    assert offer().fills_streams
    for other in (offer(TALKS), offer(arrivals=Arrivals(9)), offer(ramp=3.0), offer(replay=1.0)):
        assert not other.fills_streams


def test_conversations_come_to_so_many_requests() -> None:
    assert conversations(100, 1.0) == 100
    assert conversations(100, 2.5) == 40
    assert conversations(1, 9.0) == 1
    assert conversations(None, 1.0) == UNLIMITED


@pytest.mark.parametrize("pace", [{}, {"arrivals": Arrivals(9, ramp=2.0), "cap": 3}])
def test_the_report_is_json(pace: dict[str, object]) -> None:
    seen = [Seen(0, 0, 0.0, late=0.002), Seen(1, 1, 0.0, cancelled=True, late=0.0)]
    found = offer(TALKS, **pace).report(seen if pace else [])
    assert orjson.loads(orjson.dumps(found))["checksum"] == TALKS.checksum
    assert found["loop"] == ("open" if pace else "closed")
    assert found["begun"] == (2 if pace else 0)
    assert found["cancelled"] == (1 if pace else 0)
    assert (found["late"] is None) == (not pace)
    assert found["ramp"] == (2.0 if pace else 0.0)


def test_a_run_that_fills_no_streams_falls_short_of_nothing() -> None:
    assert offer().concurrency(8, 3) == 8
    assert offer(ramp=1.0).concurrency(8, 3) == 3
    assert offer(ramp=1.0).concurrency(8, 0) == 1


def test_the_number_of_requests_is_known_unless_the_clock_decides() -> None:
    assert offer(TALKS).requests == 36
    assert offer(duration=3.0).requests is None


def test_the_result_has_the_offered_load_and_its_outcome() -> None:
    mark = f"checksum {PLAIN.checksum[:16]}"
    assert offer().line == f"4 conversations (synthetic), {mark}"
    poisson = offer(arrivals=Arrivals(9), duration=2.5)
    assert poisson.line == (
        f"4 conversations (synthetic), 9 begin per second (poisson), for 2.5 s, {mark}"
    )
    assert "3 turns on average" in offer(TALKS).line
    assert "own times, 2 times as fast" in offer(replay=2.0).line
    assert offer().notes([Seen(0, 0, 0.0)]) == []
    late, gone = offer().notes([Seen(0, 0, 0.0, late=0.5), Seen(0, 0, 0.0, cancelled=True)])
    assert late.startswith("sent later than intended: p50 500.0 ms")
    assert gone == "given up by their clients: 1 of 2 requests"
    assert offer(arrivals=Arrivals(9), duration=2.5).notes([Seen(0, 0, 0.0)], 3) == [
        "due and not sent before the 2.5 s were over: 3 of 4 requests"
    ]
