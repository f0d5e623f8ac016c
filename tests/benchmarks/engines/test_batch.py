from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engines import frames
from benchmarks.engines.batch import Answer, Batch


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def answer(tokens: int, transport: Transport | None = None) -> Answer:
    return Answer(transport or Transport(), tokens, b"tail", lead=b"lead ")


def step(batch: Batch[str]) -> list[str]:
    finished = batch.step()
    for key in finished:
        batch.finish(key)
    return finished


def test_at_most_so_many_make_progress_and_the_rest_wait_in_order() -> None:
    batch: Batch[str] = Batch(2)
    for key in "abcd":
        batch.add(key, answer(2))
    assert (list(batch.running), list(batch.waiting)) == (["a", "b"], ["c", "d"])
    assert step(batch) == []
    assert step(batch) == ["a", "b"]
    assert (list(batch.running), list(batch.waiting)) == (["c", "d"], [])
    assert [step(batch), step(batch)] == [[], ["c", "d"]]


def test_a_request_with_a_slot_gets_its_first_token_in_the_next_step() -> None:
    batch: Batch[str] = Batch(1)
    transport = Transport()
    batch.add("a", answer(1))
    batch.add("b", answer(2, transport))
    step(batch)
    assert transport.written == []
    step(batch)
    assert transport.written == [b"lead " + frames.TOKENS[1]]
    step(batch)
    assert transport.written[1:] == [b"tail"]


def test_a_disconnect_frees_slot_or_place() -> None:
    batch: Batch[str] = Batch(1)
    for key in "abc":
        batch.add(key, answer(9))
    assert batch.remove("b") is not None
    assert (list(batch.running), list(batch.waiting)) == (["a"], ["c"])
    assert batch.remove("a") is not None
    assert list(batch.running) == ["c"]
    assert batch.remove("a") is None


def test_the_first_token_waits_for_the_prefill_and_holds_a_slot() -> None:
    batch: Batch[str] = Batch(2)
    for key, prefilled_at in (("a", 1.0), ("b", 2.0), ("c", 0.0)):
        batch.add(key, Answer(Transport(), 2, b"tail", prefilled_at=prefilled_at))
    assert batch.step(1.5) == []
    assert (len(batch.running), batch.begun) == (2, 1)
    assert batch.step(2.0) == ["a"]
    batch.finish("a")
    assert (list(batch.running), batch.begun) == (["b", "c"], 1)


def test_without_slots_there_is_no_queue() -> None:
    batch: Batch[int] = Batch()
    for key in range(100):
        batch.add(key, answer(1))
    assert (len(batch.running), len(batch.waiting)) == (100, 0)
    assert len(batch.step()) == 100


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_slots_are_never_exceeded_nor_idle_while_a_request_waits(
    slots: int, moves: list[tuple[int, bool]]
) -> None:
    batch: Batch[str] = Batch(slots)
    for key, joins in moves:
        name = str(key)
        if joins and name not in batch.running | batch.waiting:
            batch.add(name, answer(3))
        elif joins:
            step(batch)
        else:
            batch.remove(name)
        assert len(batch.running) <= slots
        assert not batch.waiting or len(batch.running) == slots
