"""Conversations of users with an assistant, in ShareGPT's format.

`[{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}]`, as an array
or as lines. The assistant's recorded text is not sent: its length limits the answer.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.gate.inputs.datasets import Conversation, Dataset, Turn, dataset
from benchmarks.gate.inputs.jsonl import Malformed, Record, read

ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}


def sharegpt(
    path: Path,
    count: Callable[[str], int],
    *,
    most: int | None = None,
    turns: int | None = None,
    think: float = 0.0,
) -> Dataset:
    """The first `most` conversations, each cut to `turns`. Raises InvalidDataset.

    `count` counts the tokens of the recorded answers.
    """
    found = read(path, lambda record: _conversation(record, count, turns, think), most)
    return dataset(f"sharegpt {path.name}", tuple(found), "bundled")


def _conversation(
    record: Record, count: Callable[[str], int], limit: int | None, think: float
) -> Conversation | None:
    """None without a user's text."""
    said = record.get("conversations", record.get("conversation"))
    if not isinstance(said, list):
        raise Malformed("conversations: not a list")
    system: str | None = None
    turns: list[Turn] = []
    for number, each in enumerate(said):
        role, text = _said(each, number)
        if role == "system":
            system = text
        elif role == "user" and text:
            if limit is not None and len(turns) == limit:
                break
            turns.append(Turn(text, None, think if turns else 0.0))
        elif turns and text:  # an answer without a question
            turns[-1] = Turn(turns[-1].text, count(text), turns[-1].think)
    return Conversation(tuple(turns), system) if turns else None


def _said(each: object, number: int) -> tuple[str, str]:
    where = f"conversations[{number}]"
    if not isinstance(each, dict):
        raise Malformed(f"{where}: not an object")
    role, text = each.get("from"), each.get("value")
    if not isinstance(role, str) or role not in ROLES:
        raise Malformed(f"{where}.from: {repr(role)[:40]} is none of {', '.join(ROLES)}")
    if not isinstance(text, str):
        raise Malformed(f"{where}.value: not a text")
    return ROLES[role], text
