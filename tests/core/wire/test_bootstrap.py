"""The answers of Mooncake's bootstrap servers."""

import orjson
import pytest

from router.core.wire.bootstrap import engine_ids

VLLM_0_32 = (
    b'{"0":{"engine_id":"41ca6755-8d1b-4a7c-9a53-0a4d4f2a9b11","worker_addr":'
    b'{"0":{"0":"tcp://127.0.0.1:43657"}}}}'
)


def of(*ranks: tuple[str, object]) -> bytes:
    """An answer with an entry for each rank."""
    return orjson.dumps({rank: {"engine_id": name} for rank, name in ranks})


def test_a_recorded_answer_is_read() -> None:
    assert engine_ids(VLLM_0_32) == ("41ca6755-8d1b-4a7c-9a53-0a4d4f2a9b11",)


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    ranks = [(str(number), f"id_dp{number}") for number in (10, 9, 0)]
    assert engine_ids(of(*ranks)) == ("id_dp0", "id_dp9", "id_dp10")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"no JSON", b"[]", b"{}", b'{"0":null}', b'{"0":{}}', b'{"detail":"Not Found"}'),
        *(of(("0", 7)), of(("0", "")), of(("0", "x" * 257)), of(("0", "a\nb"))),
        *(of(("-1", "a")), of(("0", "a"), ("1", "a")), of(("99999", "a"))),
        of(*((str(number), str(number)) for number in range(65))),
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        engine_ids(body)
