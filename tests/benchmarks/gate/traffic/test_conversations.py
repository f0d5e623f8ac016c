import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from benchmarks.gate.inputs.datasets import Conversation, Dataset, Turn
from benchmarks.gate.traffic.arrivals import Arrivals, Pattern
from benchmarks.gate.traffic.cancellations import Cancellations
from benchmarks.gate.traffic.conversations import ConversationLoad
from benchmarks.gate.traffic.load import Counter, Outcome, Phase, Target, most_in_flight
from benchmarks.gate.traffic.pace import UNLIMITED, Pace, RequestTemplate, lateness
from benchmarks.gate.traffic.processes import Generators
from tests.benchmarks.gate.listening import listening

HEAD = (
    b"POST /v1 HTTP/1.1\r\nx-request-id: %b\r\nx-talk: %b\r\nx-b: %b\r\ncontent-length: %d\r\n\r\n"
)
calm = pytest.mark.usefixtures("calm")
BEGIN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def piece(text: str) -> bytes:
    return chunk(b"data: %b\n\n" % orjson.dumps({"choices": [{"delta": {"content": text}}]}))


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Server:
    """Says "re:" and what it was asked last, in two pieces, `takes` seconds apart. No answer ends
    before `meet` requests have been there at the same time."""

    def __init__(self, takes: float = 0.0, status: bytes = b"", meet: int = 1) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.talks: list[bytes] = []
        self.ids: list[bytes] = []
        self.at: list[float] = []
        self.connections = self.now = self.most = 0
        self.came: asyncio.Queue[None] = asyncio.Queue()
        self._takes, self._status, self._meet = takes, status, meet
        self._have_met = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.split(b": ") for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(lines[b"content-length"]))
                await self._answer(lines, orjson.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, head: dict[bytes, bytes], body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        self.at.append(time.monotonic())
        self.bodies.append(body)
        self.talks.append(head[b"x-talk"])
        self.ids.append(head[b"x-request-id"])
        if self._status:
            writer.write(self._status)
            return
        self.now += 1
        self.most = max(self.most, self.now)
        self.came.put_nowait(None)
        writer.write(BEGIN + piece("re:"))
        if self.now >= self._meet:
            self._have_met.set()
        await self._have_met.wait()
        await asyncio.sleep(self._takes)
        self.now -= 1
        writer.write(piece(body["messages"][-1]["content"]) + END)

    @property
    def asked(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]


@asynccontextmanager
async def served(server: Server, dataset: Dataset) -> AsyncIterator[Target]:
    async with listening(server.serve) as port:
        template = RequestTemplate(dataset, "m", 7)
        yield Target("127.0.0.1", port, False, True, HEAD, (), 30.0, template)


def dataset(conversations: int = 3, turns: int = 1, think: float = 0.0) -> Dataset:
    found = tuple(
        Conversation(
            tuple(Turn(f"{number}.{turn}", None, think if turn else 0.0) for turn in range(turns))
        )
        for number in range(conversations)
    )
    return Dataset("test", found, "", "words", turns)


async def offered(server: Server, phase: Phase, asked: Dataset | None = None) -> Outcome:
    async with served(server, asked or dataset()) as target:
        assert target.template is not None
        return await ConversationLoad(target, target.template, Counter()).run(phase)


def errors(outcome: Outcome) -> set[str | None]:
    return {each.error for each in outcome.seen}


def clock(rate: float, **more: Any) -> Pace:
    return Pace(Arrivals(rate, Pattern.CONSTANT), **more)


# A closed loop of conversations


@calm
async def test_a_closed_loop_is_unchanged_without_conversations() -> None:
    server = Server(takes=0.01)
    outcome = await offered(server, Phase(4, 10, 2))
    assert [each.number for each in outcome.seen] == list(range(10))
    assert [each.prompt for each in outcome.seen] == [2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert [*server.asked[:3]] == ["2.0", "0.0", "1.0"]
    assert errors(outcome) == {None}
    assert server.connections == server.most == 4
    assert most_in_flight(outcome.seen, time.monotonic()) == 4
    assert {each.late for each in outcome.seen} == {None}
    assert {each.text for each in outcome.seen} == {None}


@calm
async def test_an_answer_becomes_part_of_the_next_question() -> None:
    server = Server()
    outcome = await offered(server, Phase(1, 2, 0), dataset(turns=3))
    assert server.asked == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    said = [each["content"] for each in server.bodies[2]["messages"]]
    assert said == ["0.0", "re:0.0", "0.1", "re:0.1", "0.2"]
    roles = [each["role"] for each in server.bodies[2]["messages"]]
    assert roles == ["user", "assistant"] * 2 + ["user"]
    assert [(each.number, each.prompt, each.turn) for each in outcome.seen] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 0),
        (4, 1, 1),
        (5, 1, 2),
    ]
    assert server.connections == 1
    assert len(set(server.ids)) == 6
    assert server.talks == [server.talks[0]] * 3 + [server.talks[-1]] * 3
    assert len(set(server.talks)) == 2


@calm
async def test_users_think_between_turns() -> None:
    server = Server()
    outcome = await offered(server, Phase(1, 1, 0), dataset(turns=3, think=0.05))
    first, second, third = outcome.seen
    assert first.ended is not None
    assert second.sent == pytest.approx(first.ended + 0.05, abs=0.04)
    assert second.sent >= first.ended + 0.049
    assert third.late is not None
    assert server.at[2] - server.at[0] >= 0.1


@calm
async def test_streams_begin_one_after_the_other_on_a_ramp() -> None:
    begin = time.monotonic()
    outcome = await offered(Server(takes=0.5), Phase(4, 4, 0, begin, Pace(ramp=0.4)))
    begun = [each.sent - begin for each in outcome.seen]
    assert begun == pytest.approx([0, 0.1, 0.2, 0.3], abs=0.05)


@calm
async def test_a_failed_conversation_ends_and_the_next_begins() -> None:
    server = Server(status=b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
    outcome = await offered(server, Phase(2, 4, 0), dataset(turns=3))
    assert [each.error for each in outcome.seen] == ["status 500"] * 4
    assert {each.turn for each in outcome.seen} == {0}


@calm
async def test_after_the_duration_no_request_starts_and_open_ones_finish() -> None:
    server = Server(takes=0.07)
    began = time.monotonic()
    outcome = await offered(server, Phase(2, UNLIMITED, 0, pace=Pace(duration=0.1)))
    assert time.monotonic() - began < 1
    assert 2 <= len(outcome.seen) <= 4
    assert errors(outcome) == {None}
    assert max(each.sent for each in outcome.seen) < began + 0.2


@calm
async def test_after_the_duration_no_turn_begins() -> None:
    outcome = await offered(
        Server(), Phase(1, 1, 0, pace=Pace(duration=0.1)), dataset(turns=9, think=0.04)
    )
    assert 1 < len(outcome.seen) < 9


@calm
async def test_phases_follow_each_other_on_the_same_connections() -> None:
    server, counter = Server(takes=0.01), Counter()
    async with served(server, dataset()) as target:
        assert target.template is not None
        load = ConversationLoad(target, target.template, counter)
        await load.run(Phase(2, 2, 0))
        await asyncio.sleep(0)
        counter.value = 0
        outcome = await load.run(Phase(2, 4, 2))
    assert [each.prompt for each in outcome.seen] == [2, 0, 1, 2]
    assert server.connections == 2


# An open loop


@calm
async def test_requests_are_sent_when_they_are_due() -> None:
    server = Server(takes=0.3)
    begin = time.monotonic() + 0.05
    outcome = await offered(server, Phase(1, 6, 0, begin, clock(50)))
    assert [each.sent - begin for each in outcome.seen] == pytest.approx(
        [0, 0.02, 0.04, 0.06, 0.08, 0.1], abs=0.001
    )
    assert server.most == 6  # no answer was awaited
    assert errors(outcome) == {None}


async def test_latency_counts_from_when_it_was_due() -> None:
    begin = time.monotonic() - 0.5
    outcome = await offered(Server(), Phase(1, 3, 0, begin, clock(100)))
    for number, each in enumerate(outcome.seen):
        assert each.sent == pytest.approx(begin + number / 100)
        assert each.first is not None
        assert each.late is not None
        assert each.first - each.sent > each.late > 0.4
    found = lateness(outcome.seen)
    assert found is not None
    assert found.max_ms > 400


@calm
async def test_above_the_cap_due_requests_wait() -> None:
    server = Server(takes=0.03)
    outcome = await offered(server, Phase(1, 8, 0, pace=clock(1000, cap=2)))
    assert server.most == 2
    assert server.connections == 2
    assert (len(outcome.seen), outcome.dropped) == (8, 0)
    assert [(each.late or 0) > 0.05 for each in outcome.seen][-2:] == [True, True]


@calm
async def test_after_the_duration_requests_waiting_at_the_cap_are_dropped() -> None:
    server = Server(takes=0.2)
    pace = clock(1000, cap=2, duration=0.05)
    outcome = await offered(server, Phase(1, UNLIMITED, 0, pace=pace))
    assert (len(outcome.seen), outcome.dropped) == (2, 48)
    assert errors(outcome) == {None}
    assert len(server.bodies) == 2


@calm
async def test_a_traces_own_times_are_kept() -> None:
    traced = replace(dataset(4), stamps=(5.0, 5.1, 5.2, 6.0))
    begin = time.monotonic() + 0.02
    outcome = await offered(Server(), Phase(1, 3, 0, begin, Pace(replay=2.0)), traced)
    assert [each.sent - begin for each in outcome.seen] == pytest.approx([0, 0.05, 0.1], abs=0.001)
    assert [each.prompt for each in outcome.seen] == [0, 1, 2]


@calm
async def test_in_an_open_loop_conversations_go_on_too() -> None:
    server = Server()
    outcome = await offered(server, Phase(1, 3, 0, pace=clock(100)), dataset(turns=2, think=0.02))
    assert sorted(each.number for each in outcome.seen) == list(range(6))
    assert sorted(server.asked) == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]


@calm
async def test_an_open_loop_of_nothing_is_over_at_once() -> None:
    assert (await offered(Server(), Phase(1, 0, 0, pace=clock(10)))).seen == []
    assert (await offered(Server(), Phase(0, 0, 0))).seen == []


# Given up, kept and stopped


@calm
async def test_cancelled_requests_are_neither_success_nor_failure() -> None:
    server = Server(takes=0.2)
    cancel = Cancellations(0.5, after=0.02, seed=1)
    outcome = await offered(server, Phase(4, 20, 0, pace=Pace(cancel=cancel)), dataset(turns=2))
    given_up = [each for each in outcome.seen if each.cancelled]
    later = {each.number for each in outcome.seen if each.turn}
    assert {each.number for each in given_up} == {
        each.number for each in outcome.seen if cancel.after_of(each.number) is not None
    }
    assert 0 < len(given_up) < len(outcome.seen)
    assert errors(outcome) == {None}
    for each in given_up:
        assert each.ended is not None
        assert 0.019 < each.ended - each.sent < 0.19
        assert each.number + 1 not in later or each.turn


@calm
async def test_requests_that_end_earlier_are_not_cancelled() -> None:
    pace = Pace(cancel=Cancellations(1.0, after=5))
    outcome = await offered(Server(), Phase(2, 4, 0, pace=pace))
    assert [each.cancelled for each in outcome.seen] == [False] * 4


@calm
async def test_texts_are_kept_on_demand() -> None:
    outcome = await offered(Server(), Phase(1, 2, 0, pace=Pace(keep=True)))
    assert [each.text for each in outcome.seen] == ["re:0.0", "re:1.0"]
    assert [each.events for each in outcome.seen] == [None, None]


@calm
@pytest.mark.parametrize("pace", [Pace(keep=True), clock(1000, keep=True)])
async def test_stopping_returns_partial_results(pace: Pace) -> None:
    server = Server(takes=9)
    async with served(server, dataset()) as target:
        assert target.template is not None
        load = ConversationLoad(target, target.template, Counter())
        running = asyncio.ensure_future(load.run(Phase(2, 9000, 0, pace=pace)))
        for _ in range(2):
            await server.came.get()
        load.stop()
        outcome = await running
        assert (await load.run(Phase(2, 9, 0, pace=pace))).seen == []
    assert outcome.stopped
    assert {(each.ended, each.error, each.events) for each in outcome.seen} == {(None, None, None)}


# In several processes


def numbers(outcomes: list[Outcome]) -> list[int]:
    return sorted(each.number for outcome in outcomes for each in outcome.seen)


@pytest.mark.parametrize("pace", [Pace(), clock(400), Pace(ramp=0.1)])
async def test_processes_share_the_conversations(pace: Pace) -> None:
    server = Server(meet=4)  # all streams, of both processes
    async with served(server, dataset(turns=2)) as target:
        with Generators(target, 2) as generators:
            await generators.run(Phase(0, 0, 0), lambda number, progress: None)
            begin = time.monotonic() + 0.05
            outcomes = await generators.run(
                Phase(4, 20, 0, begin, pace), lambda number, progress: None
            )
    assert numbers(outcomes) == list(range(40))
    assert all(outcome.seen for outcome in outcomes)
