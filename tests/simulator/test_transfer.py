"""KV caches from one machine to another, right and wrong; the clock is typed in."""

import pytest

from router.simulator.model.kv_cache import KvCache, StaleEngine
from router.simulator.model.machine import EngineDead, Machine
from router.simulator.model.sequence import RemoteRead, Sequence
from tests.simulator.machines import (
    generated,
    machine,
    prefill,
    pull,
    run,
    sequence,
    submit,
    tokens,
)


def single(**options) -> list[int]:
    submit(engine := machine(), each := sequence(**options))
    run(engine)
    return generated(each)


def decoded(source: Machine, target: Machine, now: float = 0.0, **options) -> Sequence:
    submit(target, sequence(**options), now=now)
    each = pull(source, target, now)
    run(target, now)
    return each


class TestRight:
    @pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40, 64])
    def test_two_engines_give_the_answer_of_one(self, count):
        p, d = machine(), machine()
        params = prefill(p, count=count)
        assert generated(decoded(p, d, count=count, params=params)) == single(count=count)
        assert (d.counters.external, d.counters.computed_here) == (count, 0)

    def test_the_blocks_are_kept_until_they_are_read(self):
        p, d = machine(), machine()
        params = prefill(p, count=40)
        assert (p.running, p.kv.references.pinned_blocks) == (0, 3)
        assert p.kv.pool.usage == pytest.approx(3 / 64)
        decoded(p, d, params=params)
        assert (p.kv.references.pinned_blocks, p.kv.pool.usage) == (0, 0.0)

    def test_cached_blocks_of_the_decode_engine_are_not_pulled(self):
        p, d = machine(), machine()
        submit(d, sequence(40, answer=1))
        run(d)
        each = decoded(p, d, params=prefill(p))
        assert (each.cached, each.external) == (32, 8)
        assert generated(each) == single()

    def test_while_the_blocks_are_on_their_way_the_request_counts_as_waiting(self):
        p, d = machine(), machine()
        submit(d, sequence(params=prefill(p)))
        d.begin(0.0)
        assert (d.running, d.waiting, d.loading) == (0, 1, 1)

    def test_a_second_reading_of_the_parameters_as_flat_list_works(self):
        params = prefill(p := machine())
        flat = {**params, "remote_block_ids": params["remote_block_ids"][0]}
        assert generated(decoded(p, machine(), params=flat)) == single()


class TestWrong:
    def test_a_reference_used_twice_gives_wrong_tokens(self):
        p, d = machine(), machine()
        params = prefill(p)
        decoded(p, d, params=params)
        each = decoded(p, machine(), params=params)
        assert generated(each) != single()
        assert (p.kv.references.reused, len(generated(each))) == (1, 4)

    def test_another_prompt_than_the_prefilled_gives_wrong_tokens(self):
        p, d = machine(), machine()
        each = decoded(p, d, seed=5, params=prefill(p))
        assert generated(each) != single(seed=5)
        assert d.counters.wrong_transfers == 1

    def test_a_shorter_prompt_reads_the_wrong_end_of_the_blocks(self):
        p = machine()
        each = decoded(p, machine(), count=20, params=prefill(p, count=40))
        assert generated(each) != single(count=20)

    def test_a_longer_prompt_kills_the_decode_engine(self):
        p, d = machine(), machine()
        submit(d, each := sequence(50, params=prefill(p, count=40)))
        d.begin(0.0)
        with pytest.raises(EngineDead):
            d.wanted(each)

    def test_blocks_that_were_reused_after_the_lease_give_wrong_tokens(self):
        p = machine()
        params = prefill(p, count=40)
        submit(p, sequence(1000, seed=9, answer=10), now=31.0)
        run(p, 31.0)
        each = decoded(p, machine(), 31.0, params=params)
        assert generated(each) != single()
        assert (p.kv.references.expired, p.kv.references.late) == (1, 1)

    def test_blocks_that_were_not_reused_after_the_lease_are_right_by_luck(self):
        p = machine()
        params = prefill(p)
        assert generated(decoded(p, machine(), 31.0, params=params)) == single()
        assert (p.kv.references.expired, p.kv.references.late) == (1, 1)

    def test_a_wrong_cache_is_not_passed_on_to_other_requests(self):
        p, d = machine(), machine()
        decoded(p, d, count=40, seed=5, params=prefill(p, count=40))
        submit(d, each := sequence(40, seed=5))
        run(d)
        assert (each.cached, generated(each)) == (0, single(seed=5))

    @pytest.mark.parametrize(
        "change", [{"remote_block_ids": [[1, 2, 999]]}, {"remote_engine_id": "x"}]
    )
    def test_an_unknown_engine_or_block_fails_the_load(self, change):
        p, d = machine(), machine()
        submit(d, sequence(params={**prefill(p), **change}))
        with pytest.raises(StaleEngine):
            pull(p, d)

    def test_an_unknown_request_id_reads_the_present_blocks(self):
        p = machine()
        params = {**prefill(p), "remote_request_id": "nobody's"}
        assert generated(decoded(p, machine(), params=params)) == single()
        assert (p.kv.references.unknown, p.kv.references.pinned_blocks) == (1, 3)

    @pytest.mark.parametrize("policy", ["fail", "recompute"])
    def test_a_load_that_fails_ends_the_request_or_is_computed_here(self, policy):
        p, d = machine(), machine(kv_load_failure_policy=policy)
        submit(d, each := sequence(params=prefill(p)))
        d.begin(0.0)
        failed = [output.finish for output in d.load_failed(each)]
        run(d)
        assert failed == (["error"] if policy == "fail" else [])
        assert generated(each) == ([] if policy == "fail" else single())
        assert (d.counters.external, d.kv.pool.usage) == (0, 0.0)

    def test_a_load_that_ends_after_its_request_does_nothing(self):
        p, d = machine(), machine()
        submit(d, each := sequence(params=prefill(p)))
        d.begin(0.0)
        d.abort(each)
        d.loaded(each, [1, 2, 3])
        assert d.load_failed(each) == []
        assert (d.waiting, d.kv.pool.usage) == (0, 0.0)


class TestLease:
    def test_unread_blocks_are_freed_at_the_end_of_the_lease(self):
        p = machine(kv_lease_s=10.0)
        prefill(p, now=5.0)
        p.kv.references.expire(14.9)
        assert p.kv.references.pinned_blocks == 3
        p.kv.references.expire(15.0)
        assert (p.kv.references.pinned_blocks, p.kv.references.expired) == (0, 1)

    def test_a_heartbeat_keeps_them(self):
        p = machine(kv_lease_s=30.0)
        params = prefill(p)
        p.kv.references.extend(params["remote_request_id"], 25.0)
        p.kv.references.expire(44.9)
        assert p.kv.references.pending == 1
        p.kv.references.expire(45.0)
        assert p.kv.references.pending == 0

    def test_a_decode_engine_that_will_not_read_gives_them_back(self):
        p = machine()
        p.kv.references.release(prefill(p)["remote_request_id"])
        assert (p.kv.references.pinned_blocks, p.kv.references.released) == (0, 1)

    def test_kept_blocks_make_others_wait_until_the_lease_ends(self):
        p = machine(total_blocks=4, max_model_len=64)
        prefill(p, count=40)
        submit(p, sequence(40, seed=1), now=1.0)
        assert p.begin(1.0) is None
        assert p.kv.references.expires_next == 30.0
        assert p.begin(30.0) is not None

    def test_the_cache_is_kept_only_for_a_finish_by_length(self):
        for switch, kept in ((False, False), (True, True)):
            p = machine(kv_params_on_stop=switch)
            prompt = [*tokens(20), *b"<<eos:1>>"]
            submit(p, each := sequence(prompt=prompt, answer=1, keep=True))
            run(p)
            assert (each.kv_params is not None) is kept

    def test_parameters_that_come_back_changed_are_counted(self):
        p = machine(kv_params_extra={"big": 2**60 + 1})
        params = prefill(p)
        decoded(p, machine(), params={**params, "big": float(2**60 + 1)})
        assert p.kv.references.altered == 1
        decoded(p, machine(), params=prefill(p))
        assert p.kv.references.altered == 1


@pytest.mark.parametrize(
    "lost",
    [
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
    ],
)
def test_parameters_that_lack_something_cannot_be_read(lost):
    params = prefill(machine())
    assert RemoteRead.parse(params) is not None
    assert RemoteRead.parse({**params, lost: None}) is None


class TestExternal:
    """LMCache: found by tokens."""

    def pushed(self, count: int) -> Machine:
        engine = machine()
        source = sequence(count)
        engine.kv.external.add(source.prompt.contents, count, 16)
        return engine

    @pytest.mark.parametrize("count", [1, 16, 17, 40, 48])
    def test_the_prompt_with_its_first_token_finds_all_that_was_pushed(self, count):
        engine = self.pushed(count)
        first = single(count=count)[0]
        submit(engine, each := sequence(prompt=[*tokens(count), first], answer=3))
        run(engine)
        assert each.external == count
        assert generated(each) == single(count=count)[1:]

    def test_the_same_prompt_finds_all_except_the_last_token(self):
        submit(engine := self.pushed(40), each := sequence(40))
        run(engine)
        assert (each.external, generated(each)) == (39, single())

    def test_a_longer_prompt_finds_the_full_blocks(self):
        submit(engine := self.pushed(40), each := sequence(prompt=[*tokens(40), *b"more"]))
        run(engine)
        assert each.external == 32

    def test_another_prompt_finds_nothing(self):
        submit(engine := self.pushed(40), each := sequence(40, seed=1))
        run(engine)
        assert (each.external, engine.counters.computed_here) == (0, 40)

    def test_nothing_is_known_without_a_push(self):
        assert not KvCache(machine()._config, "e").external
