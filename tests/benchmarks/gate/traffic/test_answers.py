import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.traffic.answers import Counted, count, said
from benchmarks.streaming.client import Seen


@given(st.lists(st.binary() | st.binary().map(lambda data: b"data: " + data)))
def test_unreadable_events_have_no_text(events: list[bytes]) -> None:
    assert said(events) == ("", "")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'data: {"choices":[{"delta":{"content":"a \\"b\\""}}]}', ('a "b"', "")),
        (b': ping\ndata:{"choices":[{"delta":{"content":\ndata: "a"}}]}', ("a", "")),
        (b'data: {"choices":[{"delta":{"reasoning_content":"a"}}]}', ("", "a")),
        (b'data: {"choices":[{"delta":{"reasoning":"a","content":null}}]}', ("", "a")),
        (b'data: {"choices":[],"usage":{}}', ("", "")),
        (b'data: {"choices":[{"delta":"a"}]}', ("", "")),
        (b'data: {"choices":[{"delta":{"content":7}}]}', ("", "")),
        (b"data: [DONE]", ("", "")),
    ],
)
def test_text_and_reasoning_are_read(event: bytes, expected: tuple[str, str]) -> None:
    assert said([event, event]) == (expected[0] * 2, expected[1] * 2)


def seen(tokens: int | None, text: str | None, **more: bool) -> Seen:
    return Seen(0, 0, 0.0, first=1.0, output_tokens=tokens, text=text, **more)  # type: ignore[arg-type]


def test_the_servers_count_is_first_then_the_tokenizers_then_chunks() -> None:
    answers = [seen(7, "a b"), seen(None, "a b"), seen(None, None), seen(None, "", cancelled=True)]
    failed = Seen(0, 0, 0.0, text="")
    counted = count([*answers, failed], lambda text: len(text.split()))
    assert counted == Counted(usage=1, bundled=1, chunks=1)
    assert counted.text == (
        "1 answers by the server (usage), 1 answers by the bundled tokenizer, "
        "1 answers as chunks with content"
    )
    assert Counted().text == "nothing was answered"
    assert [each.output_tokens for each in [*answers, failed]] == [7, 2, None, None, None]
