from dataclasses import replace

import httptools
import orjson
import pytest

from benchmarks.engines import frames
from benchmarks.instructions.load import GUARDED, PROMPTS, UNITS, Load, Unit


def body(load: Load) -> dict[str, object]:
    return orjson.loads(load.request().partition(b"\r\n\r\n")[2])  # type: ignore[no-any-return]


@pytest.mark.parametrize("unit", UNITS.values(), ids=lambda unit: unit.key)
def test_a_unit_is_all_that_its_two_loads_differ_in(unit: Unit) -> None:
    smaller, larger = unit.smaller, unit.larger
    requests = larger.requests - smaller.requests
    chunks = larger.requests * larger.chunks - smaller.requests * smaller.chunks
    assert sorted((requests, chunks)) == [0, unit.units]
    assert replace(smaller, requests=1, chunks=1) == replace(larger, requests=1, chunks=1)


def test_keys_are_unique() -> None:
    assert len(UNITS) == len(GUARDED) + len(PROMPTS)


@pytest.mark.parametrize("unit", UNITS.values(), ids=lambda unit: unit.key)
def test_a_load_survives_its_line(unit: Unit) -> None:
    assert Load.decode(unit.larger.encode()) == unit.larger
    assert "\n" not in unit.larger.encode()


def test_a_request_has_the_parameters_of_the_load() -> None:
    asked = body(Load(1, stream=True, chunks=7, prompt_bytes=5000))
    assert asked["stream"] is True
    assert asked["max_tokens"] == 9  # the chunks, and the tokens at both ends
    assert len(Load(1, prompt_bytes=5000).request()) > 5000
    assert body(Load(1))["stream"] is False
    httptools.HttpRequestParser(object()).feed_data(Load(1).request())


def test_a_stream_has_an_event_per_chunk_and_those_of_its_ends() -> None:
    load = Load(1, stream=True, chunks=7)
    ends = Load(1, stream=True)
    assert frames.stream_events(load.tokens, True) - frames.stream_events(ends.tokens, True) == 7


def test_new_prompts_differ_from_their_first_words_on_and_are_as_long_as_others() -> None:
    load = Load(1, prompt_bytes=4000, is_new=True)
    one, other = load.request(1), load.request(20)
    assert len(one) == len(other) == len(Load(1, prompt_bytes=4000).request())
    assert one != other
    start = one.index(b"000000001 brown fox")
    assert one[:start] + b"000000020" + one[start + 9 :] == other
    assert Load(1).request(1) == Load(1).request(20)
