from dataclasses import dataclass

import pytest

from router.simulator.model.batching import Batch, BatchModel

MODEL = BatchModel(
    step_seconds=1.0, per_sequence_seconds=0.1, prefill_tokens_per_second=10.0,
    max_num_batched_tokens=10, max_num_queued_reqs=1,
)  # fmt: skip


@dataclass
class Prompt:
    left: int


def batch(*left: int) -> Batch[Prompt]:
    made: Batch[Prompt] = Batch(MODEL)
    made.waiting.extend(map(Prompt, left))
    return made


def composed(made: Batch[Prompt], decoding: int = 0) -> list[int]:
    def admit() -> Prompt | None:
        return made.waiting.popleft() if made.waiting else None

    return [tokens for _, tokens in made.compose(decoding, admit)]


def test_prompts_share_the_rest_of_a_step_in_order_of_arrival():
    made = batch(5, 8, 1)
    assert composed(made, decoding=2) == [5, 3]
    assert [one.left for one in made.waiting] == [1]


def test_a_prompt_that_has_begun_goes_first():
    made = batch(4)
    made.prefilling.append(Prompt(7))
    assert composed(made) == [7, 3]


def test_full_decode_steps_admit_no_prompt():
    made = batch(4)
    assert composed(made, decoding=10) == []
    assert (len(made.waiting), len(made.prefilling)) == (1, 0)


def test_none_overtakes_one_that_may_not_run_yet():
    made = batch()
    made.prefilling.extend((Prompt(2), Prompt(3), Prompt(1)))
    parts = made.compose(0, lambda: None, lambda one: one.left != 3)
    assert [tokens for _, tokens in parts] == [2]


def test_a_step_takes_time_by_its_sequences_and_prompts_and_the_engines_factor():
    made = batch()
    assert made.seconds(2, 30) == pytest.approx(4.2)
    made.factor = 3.0
    assert made.seconds(2, 30) == pytest.approx(12.6)


def test_the_queue_has_an_end():
    assert batch().has_room(0)
    assert not batch().has_room(1)
