import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.simulator.config import ConfigError, EngineConfig
from router.simulator.model.language import EOS, Language, encode
from router.simulator.model.machine import EngineDead, QueueFull
from router.simulator.model.sequence import Prompt, Sampling, Sequence, Stage
from tests.simulator.machines import generated, machine, of, prefill, run, sequence, submit


class TestTime:
    def test_a_step_takes_its_time_and_that_of_each_sequence_in_it(self):
        engine = machine(step_s=0.01, step_s_per_sequence=0.001)
        submit(engine, sequence(seed=1), sequence(seed=2))
        assert engine.begin(5.0) == pytest.approx(5.012)

    def test_a_prompt_takes_time_by_its_length_and_a_generated_token_does_not(self):
        engine = machine(prefill_tokens_per_second=100)
        submit(engine, sequence(50, answer=3))
        assert engine.begin(0.0) == pytest.approx(0.5)
        engine.finish(0.5)
        assert engine.begin(0.5) == 0.5

    def test_a_prompt_beyond_the_token_budget_takes_several_steps(self):
        engine = machine(max_num_batched_tokens=32, step_s=1.0)
        submit(engine, sequence(80, answer=1))
        now, outputs = run(engine)
        assert (now, len(outputs)) == (3.0, 1)

    def test_a_long_prompt_does_not_stop_running_streams(self):
        engine = machine(max_num_batched_tokens=32)
        talking, long = sequence(10, answer=9, seed=1), sequence(200, seed=2)
        submit(engine, talking)
        engine.begin(0.0)
        engine.finish(0.0)
        submit(engine, long)
        for _ in range(3):
            engine.begin(0.0)
            assert [output.sequence for output in engine.finish(0.0)] == [talking]

    def test_a_slow_engine_takes_longer(self):
        engine = machine(step_s=0.01)
        engine.batch.factor = 3.0
        submit(engine, sequence())
        assert engine.begin(0.0) == pytest.approx(0.03)

    def test_a_cached_prefix_takes_no_time(self):
        engine = machine(prefill_tokens_per_second=100)
        submit(engine, sequence(100, answer=1))
        run(engine)
        submit(engine, sequence(100, answer=1))
        assert engine.begin(0.0) == pytest.approx(0.04)

    def test_prompts_in_one_step_share_computed_prefixes(self):
        engine = machine(prefill_tokens_per_second=100)
        submit(engine, *(sequence(100, answer=1) for _ in range(3)))
        assert engine.begin(0.0) == pytest.approx(1.0 + 2 * 0.04)
        assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (300, 192)

    def test_without_prefix_caching_nothing_is_looked_up(self):
        engine = machine(prefix_caching=False)
        submit(engine, sequence(100, answer=1), sequence(100, answer=1))
        run(engine)
        assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (0, 0)


class TestBatch:
    def test_no_more_sequences_run_than_may(self):
        engine = machine(max_num_seqs=2)
        submit(engine, *(sequence(seed=seed) for seed in range(5)))
        engine.begin(0.0)
        assert (engine.running, engine.waiting) == (2, 3)

    def test_a_free_slot_is_taken_in_order_of_arrival(self):
        engine = machine(max_num_seqs=1)
        first, second, third = (sequence(seed=seed, answer=2) for seed in range(3))
        submit(engine, first, second, third)
        order = [output.sequence for output in run(engine)[1]]
        assert order == [first, first, second, second, third, third]

    def test_requests_beyond_the_queue_are_refused_and_counted(self):
        engine = machine(max_num_queued_reqs=1)
        submit(engine, sequence())
        with pytest.raises(QueueFull):
            submit(engine, sequence())
        assert (engine.waiting, engine.counters.rejected) == (1, 1)

    def test_a_sequence_without_room_for_its_prompt_waits(self):
        engine = machine(total_blocks=8, max_model_len=128)
        first, second = sequence(100, answer=20), sequence(100, seed=1, answer=1)
        submit(engine, first, second)
        engine.begin(0.0)
        assert (engine.running, engine.waiting) == (1, 1)
        engine.finish(0.0)
        assert of(second, run(engine)[1])

    def test_an_aborted_sequence_is_gone_at_once(self):
        engine = machine()
        each = sequence()
        submit(engine, each, sequence(seed=1))
        engine.begin(0.0)
        engine.abort(each)
        assert engine.running == 1
        assert not of(each, engine.finish(0.0))

    def test_an_aborted_sequence_in_the_queue_is_gone_too(self):
        engine = machine(max_num_seqs=1)
        each = sequence(seed=1)
        submit(engine, sequence(), each)
        engine.begin(0.0)
        engine.abort(each)
        assert engine.waiting == 0

    def test_a_dead_engine_drops_all_and_takes_nothing(self):
        engine = machine(max_num_seqs=1)
        submit(engine, sequence(), sequence(seed=1))
        engine.begin(0.0)
        assert [output.finish for output in engine.kill()] == ["dead", "dead"]
        assert (engine.running, engine.waiting, engine.kv.pool.usage) == (0, 0, 0.0)
        with pytest.raises(EngineDead):
            submit(engine, sequence())


class TestText:
    def test_batching_chunks_and_caches_do_not_change_generated_text(self):
        alone = sequence(100, answer=20)
        submit(engine := machine(), alone)
        run(engine)
        other = machine(max_num_batched_tokens=17)
        many = [sequence(100, answer=20), *(sequence(90, answer=20, seed=3) for _ in range(3))]
        submit(other, *many)
        run(other)
        again = sequence(100, answer=20)
        submit(other, again)
        run(other)
        assert generated(many[0]) == generated(again) == generated(alone)

    def test_a_preempted_sequence_goes_on_where_it_was(self):
        engine = machine(total_blocks=8, max_model_len=128)
        first, second = sequence(60, answer=40, seed=1), sequence(60, answer=40, seed=2)
        submit(engine, first, second)
        run(engine)
        assert engine.counters.preemptions > 0
        alone = sequence(60, answer=40, seed=2)
        submit(other := machine(), alone)
        run(other)
        assert generated(second) == generated(alone)

    def test_a_preempted_sequence_yields_to_the_holders_of_blocks(self):
        source, engine = machine(), machine(total_blocks=4, max_model_len=64)
        params = prefill(source, count=40)
        growing, remote = sequence(15, answer=9, seed=1), sequence(40, params=params)
        submit(engine, growing)
        engine.begin(0.0)
        submit(engine, remote)
        engine.finish(0.0)
        engine.begin(0.0)
        engine.finish(0.0)
        engine.loaded(remote, remote.prompt.contents)
        assert len(of(remote, run(engine)[1])) == 4
        assert growing.generated == 9

    def test_a_sequence_ends_at_its_length(self):
        submit(engine := machine(), each := sequence(answer=3))
        assert [output.finish for output in run(engine)[1]] == [None, None, "length"]
        assert each.stage is Stage.ENDED


class TestEnd:
    def ends(self, text: str, **sampling) -> list[tuple[str | None, int | None]]:
        prompt = Prompt.of(encode(text), Language("sim", 0), 16, "")
        values = {"max_tokens": 8, **sampling}
        submit(engine := machine(), Sequence("r", prompt, Sampling(**values)))
        return [(output.finish, output.stop_reason) for output in run(engine)[1]]

    def test_the_end_of_sequence_comes_at_the_marker(self):
        assert self.ends("x <<eos:3>>") == [(None, None), (None, None), ("stop", None)]

    def test_it_comes_nowhere_else_then(self):
        prompt = Prompt.of(encode("<<eos:3>>"), Language("sim", 1), 16, "")
        submit(engine := machine(), Sequence("r", prompt, Sampling(max_tokens=9)))
        assert len(run(engine)[1]) == 3

    def test_it_can_be_ignored(self):
        assert self.ends("x <<eos:3>>", ignore_eos=True)[-1] == ("length", None)

    def test_it_is_masked_below_the_least_length(self):
        assert self.ends("x <<eos:1>>", min_tokens=1)[-1] == ("length", None)

    def test_ignored_it_is_still_a_token(self):
        prompt = Prompt.of(encode("<<eos:1>>"), Language("sim", 0), 16, "")
        each = Sequence("r", prompt, Sampling(max_tokens=2, ignore_eos=True))
        submit(engine := machine(), each)
        run(engine)
        assert generated(each)[0] == EOS

    def test_a_stop_token_ends_it_and_is_named(self):
        submit(engine := machine(), probe := sequence(answer=4))
        run(engine)
        third = generated(probe)[2]
        again = sequence()
        again.sampling = Sampling(max_tokens=9, stop_token_ids=frozenset({third}))
        submit(engine, again)
        assert (run(engine)[1][-1].finish, run(engine)[1]) == ("stop", [])
        assert generated(again) == generated(probe)[:3]

    def test_a_stop_string_found_outside_ends_it_with_success(self):
        submit(engine := machine(), each := sequence())
        engine.begin(0.0)
        engine.finish(0.0)
        engine.stop(each, 0.0)
        assert (engine.running, engine.counters.finished["stop"]) == (0, 1)


class TestPrefixCache:
    def test_full_blocks_of_a_prompt_serve_the_next_one(self):
        submit(engine := machine(), sequence(70, answer=1))
        run(engine)
        submit(engine, each := sequence(70, answer=1))
        run(engine)
        assert (each.cached, engine.counters.prefix_hits) == (64, 64)

    def test_generated_blocks_serve_the_next_turn(self):
        submit(engine := machine(), first := sequence(40, answer=40))
        run(engine)
        submit(engine, second := sequence(prompt=[*first.tokens, 97, 98]))
        run(engine)
        assert second.cached == 64

    def test_another_salt_shares_nothing(self):
        submit(engine := machine(), sequence(70, answer=1))
        run(engine)
        submit(engine, each := sequence(70, answer=1, salt="secret"))
        run(engine)
        assert each.cached == 0

    def test_it_can_be_switched_off(self):
        submit(engine := machine(prefix_caching=False), sequence(70, answer=1))
        run(engine)
        submit(engine, each := sequence(70, answer=1))
        run(engine)
        assert each.cached == 0

    def test_the_last_token_is_computed_even_if_all_is_cached(self):
        submit(engine := machine(), sequence(64, answer=1))
        run(engine)
        submit(engine, each := sequence(64, answer=1))
        run(engine)
        assert each.cached == 48


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 120), st.integers(1, 40)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 20), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(ACTIONS)
def test_whatever_comes_and_goes_everybody_is_served_and_no_block_is_lost(actions):
    engine = machine(total_blocks=10, max_model_len=160, max_num_seqs=3, max_num_batched_tokens=64)
    known: list[Sequence] = []
    for kind, number, answer in actions:
        if kind == "submit":
            name, keep = str(len(known)), number % 5 == 0
            known.append(sequence(number, answer, seed=number % 4, keep=keep, name=name))
            submit(engine, known[-1])
        elif kind == "abort" and number < len(known):
            engine.abort(known[number])
        elif kind == "step":
            for _ in range(number):
                engine.begin(0.0)
                engine.finish(0.0)
    for lease in range(
        len(known) + 1
    ):  # a request waiting for kept blocks gets them when a lease ends
        run(engine, 100.0 * lease)
    assert all(each.stage is Stage.ENDED for each in known)
    engine.kv.references.expire(1e6)
    assert (engine.running, engine.waiting) == (0, 0)
    assert engine.kv.pool.free == 10


def test_a_configuration_that_cannot_work_is_refused_by_name():
    with pytest.raises(ConfigError, match="total_blocks"):
        EngineConfig(total_blocks=10, max_model_len=1000)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        EngineConfig(max_num_seqs=0)
    with pytest.raises(ConfigError, match="prefill_tokens_per_second"):
        EngineConfig(prefill_tokens_per_second=0)
