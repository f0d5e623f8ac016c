import pytest

from benchmarks.gate.inputs.exact_length import MOST_COUNTED, exact


async def _fit(made: str) -> str:
    return f"{made} exactly"


async def _unknown(made: str) -> str:
    return made


async def _impossible(made: str) -> str:
    raise ValueError("no text of 64 tokens")


@pytest.mark.parametrize(
    ("fit", "texts", "found", "note"),
    [
        (_fit, MOST_COUNTED, "made exactly", "counted by the server"),
        (_fit, MOST_COUNTED + 1, "made", "too many to ask"),
        (_unknown, 1, "made", "the server does not count tokens"),
        (_impossible, 1, "made", "counted as words: no text of 64 tokens"),
    ],
)
async def test_sent_prompts_and_their_token_counter(
    fit: object, texts: int, found: str, note: str
) -> None:
    sent, said = await exact("made", texts, fit)  # type: ignore[arg-type]
    assert sent == found
    assert note in said
