"""The gauges out of /metrics text; anything else in it is skipped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.values import Gauges
from router.core.wire.exposition import MAX_LORA_SERIES, MAX_SERIES, read, shortened
from tests.core.fixtures import sample

NOTHING = Gauges()


def test_a_recorded_idle_engine_has_no_load() -> None:
    assert read(sample("metrics.txt")) == Gauges(
        running=0, waiting=0, kv_usage=0.0, queued=0, cache_tokens=32_768, block_tokens=32
    )


RUNNING = b'vllm:num_requests_running{engine="0",model_name="tiny"} '


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"vllm:num_requests_running 3", Gauges(running=3)),
        (b"vllm:num_requests_running{} 3.0\n", Gauges(running=3)),
        (RUNNING + b"3.0\n", Gauges(running=3)),
        (b'vllm:prefix_cache_queries_total{engine="0"} 90.0\n', Gauges(cache_queries=90)),
        (b'vllm:prefix_cache_hits_total{engine="0"} 30.0\n', Gauges(cache_hits=30)),
        (
            b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1.0\n'
            b'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="20"} 1.0\n',
            Gauges(cache_tokens=480, block_tokens=16),
        ),
        (
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n',
            Gauges(block_tokens=16),
        ),
        (
            b'vllm:request_success_total{engine="0",finished_reason="stop"} 3.0\n'
            b'vllm:request_success_total{engine="0",finished_reason="abort"} 1.0\n',
            Gauges(finished=4),
        ),
        (b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n', Gauges(is_asleep=True)),
        (b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0\n', NOTHING),
        (b'vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0\n', NOTHING),
        (RUNNING + b"3.0\r\n", Gauges(running=3)),
        (RUNNING + b"3.0 1700000000000\n", Gauges(running=3)),
        (RUNNING + b"3.0 -5 \n", Gauges(running=3)),
        (b"vllm:num_requests_running\t3\n", Gauges(running=3)),
        (RUNNING + b"1e2\n", Gauges(running=100)),
        (b'vllm:num_requests_running{model_name="a}b{c\\"d e"} 3\n', Gauges(running=3)),
        (b"vllm:num_requests_waiting 4\n", Gauges(waiting=4)),
        (b'vllm:num_requests_waiting_by_reason{reason="capacity"} 4\n', Gauges(queued=4)),
        (b'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 4\n', NOTHING),
        (b"vllm:num_requests_waiting_by_reason 4\n", NOTHING),
        (b'vllm:num_preemptions_total{engine="0"} 3.0\n', Gauges(preemptions=3)),
        (b'vllm:generation_tokens_total{engine="0"} 1.5e+06\n', Gauges(generated=1_500_000)),
        (b"vllm:kv_cache_usage_perc 0.25\n", Gauges(kv_usage=0.25)),
        (b"vllm:gpu_cache_usage_perc 0.25\n", Gauges(kv_usage=0.25)),
        (b"vllm:cpu_cache_usage_perc 0.25\n", NOTHING),
        (b"# vllm:num_requests_running 3\n", NOTHING),
        (b" vllm:num_requests_running 3\n", NOTHING),
        (b"x_vllm:num_requests_running 3\n", NOTHING),
        (b"vllm:num_requests_running_total 3\n", NOTHING),
        (b"vllm:num_requests_running x} 3\n", NOTHING),
        (b"", NOTHING),
    ],
)
def test_a_gauge_is_known_by_its_whole_name(text: bytes, expected: Gauges) -> None:
    assert read(text) == expected


def loras(*sets: str, room: int = 2) -> bytes:
    """The series of sets of adapters that ran one after the other, as vLLM writes them."""
    return b"".join(
        b'vllm:lora_requests_info{max_lora="%d",running_lora_adapters="%b",'
        b'waiting_lora_adapters="x"} 1.76443%05de+09\n' % (room, names.encode(), time)
        for time, names in enumerate(sets)
    )


@pytest.mark.parametrize(
    ("text", "expected", "are_full"),
    [
        (loras("a"), ("a",), False),
        (loras("a", ""), ("a",), False),
        (loras("a,b"), ("a", "b"), True),
        (loras("a,b", "b"), ("b", "a"), False),
        (loras("a", "b", "c"), ("c", "b"), False),
        (loras("a", "b", "a"), ("a", "b"), False),
        (loras("a,b", "c", ""), ("c", "a"), False),
        (loras("a", room=1), ("a",), True),
        (loras("a", room=0), (), False),
        (loras("", ""), (), False),
        (b"vllm:lora_requests_info 1.0\n", (), False),
    ],
)
def test_the_last_adapters_with_requests_are_loaded(
    text: bytes, expected: tuple[str, ...], are_full: bool
) -> None:
    assert read(text) == Gauges(adapters=expected, adapters_are_full=are_full)
    backwards = b"\n".join(reversed(text.split(b"\n")))
    assert read(backwards) == read(text)


MANY = loras(*(f"t{number}" for number in range(2 * MAX_SERIES))) + RUNNING + b"3\n"


@pytest.mark.parametrize("lines", [MANY.splitlines(True), MANY.splitlines(True)[::-1]])
def test_of_any_number_of_adapters_series_the_newest_count(lines: list[bytes]) -> None:
    newest = tuple(f"t{2 * MAX_SERIES - back}" for back in (1, 2))
    assert read(b"".join(lines)) == Gauges(running=3, adapters=newest)


def test_a_page_is_shortened_while_it_arrives() -> None:
    page, size = b"", 10_007
    for start in range(0, len(MANY), size):
        page = shortened(page + MANY[start : start + size])
    assert page.count(b"\n") == MAX_LORA_SERIES + 2  # the first line stays, wherever it is cut
    assert page == shortened(MANY)


@pytest.mark.parametrize("time", [b"1764439999.25", b"1764440000", b"1.764439999e+09"])
def test_the_newest_is_known_in_any_form_of_its_time(time: bytes) -> None:
    line = b'vllm:lora_requests_info{max_lora="1",running_lora_adapters="new"} %b\n' % time
    assert read(line.join([b"#\n", MANY])).adapters == ("new",)


SGLANG = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",priority="",pp_rank="0",tp_rank="0"} 162.0
sglang:num_running_reqs{model_name="m",priority="3",pp_rank="0",tp_rank="0"} 62.0
sglang:num_queue_reqs{model_name="m",priority="",pp_rank="0",tp_rank="0"} 2826.0
sglang:num_queue_reqs{model_name="m",priority="3",pp_rank="0",tp_rank="0"} 26.0
sglang:num_queue_reqs_other{model_name="m"} 9.0
sglang:token_usage{model_name="m",priority="",pp_rank="0",tp_rank="0"} 0.28
sglang:max_total_num_tokens{model_name="m",pp_rank="0",tp_rank="0"} 436000.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 7.557572e+06
sglang:num_requests_total{is_streaming="true",model_name="m"} 11000.0
sglang:num_requests_total{is_streaming="false",model_name="m"} 8.0
"""
"""Names and labels of SGLang 0.5.23 with --enable-metrics and priorities; numbers of its document
production_metrics.md."""

SGLANG_RANKS = b"""\
sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1",model_name="m",tp_rank="1"} 4.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",tp_rank="0"} 0.0
sglang:num_queue_reqs{dp_rank="1",model_name="m",tp_rank="1"} 1.0
"""

TRTLLM = b"""\
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.25
trtllm_kv_cache_host_utilization{engine_type="trtllm",model_name="m"} 0.75
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 25.0
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="m"} 5.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 900.0
"""

LLAMACPP = b"""\
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 17029
"""

OLD_LLAMACPP = LLAMACPP + b"llamacpp:kv_cache_usage_ratio 0.5\n"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            SGLANG,
            Gauges(running=162, waiting=2826, kv_usage=0.28, cache_tokens=436_000, finished=11_008),
        ),
        (SGLANG_RANKS, Gauges(running=7, waiting=1)),
        (TRTLLM, Gauges(running=3, waiting=1, kv_usage=0.25, finished=30)),
        (LLAMACPP, Gauges(running=4, waiting=46)),
        (OLD_LLAMACPP, Gauges(running=4, waiting=46, kv_usage=0.5)),
    ],
    ids=["SGLang", "SGLang with ranks", "TensorRT-LLM", "llama.cpp", "llama.cpp b4000"],
)
def test_other_engines_have_their_own_names_for_the_same_gauges(
    page: bytes, expected: Gauges
) -> None:
    assert read(page) == expected


@pytest.mark.parametrize(
    "number",
    [
        b"",
        b"NaN",
        b"+Inf",
        b"-Inf",
        b"-1",
        b"e",
        b"1e+",
        b"1e999",
        b"1e12",
        b"1 2 3",
        b"1 x",
        b"3x",
        b"\n3",
    ],
)
def test_an_unreadable_number_is_an_absent_gauge(number: bytes) -> None:
    assert read(RUNNING + number + b"\n") == NOTHING


def test_counts_of_ranks_are_summed_and_the_fullest_cache_counts() -> None:
    text = b"".join(
        b'%b{engine="%d"} %d\n' % (name, rank, value)
        for name in (b"vllm:num_requests_running", b"vllm:num_requests_waiting")
        for rank, value in enumerate((3, 4))
    )
    text += b'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    assert read(text) == Gauges(running=7, waiting=7, kv_usage=0.9)


def test_an_unreadable_rank_leaves_the_others() -> None:
    assert read(RUNNING + b"NaN\n" + RUNNING + b"2\n") == Gauges(running=2)


def test_a_number_of_any_length_is_read_in_one_pass() -> None:
    assert read(RUNNING + b"1" * 200_000 + b"x\n") == NOTHING


fragments = st.sampled_from(
    [
        *(b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc"),
        *(b"{", b"}", b'"', b" ", b"\n", b"\t", b"1", b"-", b"e", b".", b"+", b"NaN", b"\xff"),
    ]
)


@given(st.binary(max_size=60) | st.lists(fragments, max_size=20).map(b"".join))
def test_any_bytes_are_read(text: bytes) -> None:
    gauges = read(text)
    assert all(number is None or number >= 0 for number in (gauges.running, gauges.waiting))
    assert gauges.kv_usage is None or gauges.kv_usage >= 0


@pytest.mark.parametrize(
    "text",
    [
        b"vllm:num_requests_waiting_by_reason{" + b'reason="capacity"' * 20_000 + b"}" * 200_000,
        b"vllm:num_requests_running" + b"{" * 200_000 + b" }" * 200_000,
        b"vllm:num_requests_running" + b" 1" * 400_000 + b"x",
        b"\n" * 1_000_000,
        b"\nvllm:lora_requests_info{" * 65 + b"} 1" * 200_000 + b"." + b"1" * 200_000 + b"x",
        b"vllm:num_requests_running nan\n" * 30_000,
    ],
    ids=["labels", "braces", "numbers", "lines", "adapters", "series"],
)
def test_text_made_to_take_long_takes_no_longer_than_its_bytes(text: bytes) -> None:
    """With patterns that try again from each place the first one took a quarter of an hour."""
    assert read(text + b"\n") == NOTHING


def test_so_many_series_are_read_and_no_more() -> None:
    assert read(RUNNING + b"1\n" + (RUNNING + b"1\n") * 2 * MAX_SERIES) == Gauges(
        running=MAX_SERIES
    )
