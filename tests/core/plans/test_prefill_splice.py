"""What a decode engine's answer says of the prompt comes from the prefill engine's reply."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.plans.first_token_splice import FirstToken
from router.core.plans.prefill_splice import PrefillSplice, prefill_splice
from tests.core.fixtures import reply, request, sample

USAGE = {"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 8}}


def rows(count: int, fill: int = 0, layers: int = 5, kind: str = "|u1") -> bytes:
    """Routed experts, as numpy writes them: `count` tokens, each with one byte per layer."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count}, {layers}, 1), }}"
    data = bytes((fill + at) % 256 for at in range(count * layers))
    return b"\x93NUMPY\x01\x00v\x00" + head.encode().ljust(117) + b"\n" + data


def answer(experts: bytes | None, **more: Any) -> bytes:
    text = None if experts is None else b64encode(experts).decode()
    return orjson.dumps({"choices": [{"index": 0, "routed_experts": text}], **more})


def of(body: bytes, **asked: Any) -> PrefillSplice | None:
    return prefill_splice(request(prompt="a", **asked), reply(200, body))


def test_an_engine_that_reports_the_prefills_figure_itself_is_not_corrected() -> None:
    """vLLM 0.32 and later."""
    assert of(sample("prefill_chat.json")) is None


def test_the_figure_is_that_of_the_prefill_or_unknown() -> None:
    assert of(answer(None, usage=USAGE)) == PrefillSplice(8)
    assert of(answer(None, usage={"prompt_tokens": 9})) == PrefillSplice(None)
    assert of(answer(None)) == PrefillSplice(None)


def test_behind_a_first_token_both_counts_are_corrected() -> None:
    splice = FirstToken("a", PrefillSplice(3))
    event = b"data: %b\n\n" % orjson.dumps({"choices": [], "usage": USAGE})
    told = b'"prompt_tokens":8,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}'
    assert told in splice.events(event)
    assert told in splice.body(orjson.dumps({"choices": [{"text": "b"}], "usage": USAGE}))


# Routed experts.


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4))
def test_the_prompts_rows_are_the_prefill_engines(prompt: int, more: int, layers: int) -> None:
    """Its rows come first; the decode engine's have noise in their place."""
    own, given_ = rows(prompt + more, 100, layers), rows(prompt, 0, layers)
    splice = of(answer(given_))
    assert splice is not None
    expected = own[:128] + given_[128:] + own[128 + prompt * layers :]
    assert splice.body(answer(own)) == answer(expected)


@pytest.mark.parametrize(
    ("own", "given_"),
    [
        (rows(4, layers=3), rows(2)),
        (rows(4, kind="<u2"), rows(2)),
        (rows(1), rows(2)),
        (b"\x93NUMPY\x02" + rows(4)[7:], b"\x93NUMPY\x02" + rows(2)[7:]),
        (b"short", rows(2)),
        (rows(4), b"short"),
    ],
    ids=["layers", "type", "fewer", "version", "own", "given"],
)
def test_rows_of_another_form_are_left_alone(own: bytes, given_: bytes) -> None:
    splice = PrefillSplice(None, b64encode(given_))
    assert splice.body(answer(own)) == answer(own)


def test_text_that_is_no_base64_is_left_alone() -> None:
    whole = b64encode(rows(4))
    for own, given_ in ((whole[:31], whole), (whole, whole[:31]), (b"=", whole), (whole, b"a")):
        body = b'{"choices":[{"routed_experts":"%b"}]}' % own
        assert PrefillSplice(None, given_).body(body) == body


def test_a_stream_has_none() -> None:
    assert of(answer(rows(2)), stream=True) == PrefillSplice(None)
    assert PrefillSplice(None, b64encode(rows(2))).body(answer(None)) == answer(None)


def test_they_are_spliced_behind_an_engine_that_reports_the_figure_itself() -> None:
    told = {"usage": USAGE, "kv_transfer_params": {"remote_prefill_cached_tokens": 8}}
    assert of(answer(rows(2), **told)) == PrefillSplice(8, b64encode(rows(2)))
    assert of(answer(None, **told)) is None
