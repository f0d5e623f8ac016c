"""The Markdown reader: blocks that it misses are tested nowhere."""

from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, commands, links, tables


def written(tmp_path: Path, text: str) -> list[Block]:
    """The blocks of a document with this text."""
    path = tmp_path / "x.md"
    path.write_text(text)
    return list(blocks(path))


def test_a_block_has_its_language_its_marker_and_its_line(tmp_path: Path) -> None:
    text = "a\n\n<!-- test: options: needs a GPU -->\n```sh\nx\ny\n```\n```text\nz\n```\n"
    first, second = written(tmp_path, text)
    assert (first.language, first.test, first.why, first.line) == (
        "sh",
        "options",
        "needs a GPU",
        4,
    )
    assert first.text == "x\ny\n"
    assert (second.language, second.test, second.text) == ("text", None, "z\n")


def test_a_block_that_is_not_closed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not closed"):
        written(tmp_path, "```sh\nx\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b  # c\n", [("a", "b")]),
        ("# only a comment\n", []),
        ("a \\\n  b\nc\n", [("a", "b"), ("c",)]),
        ("A=1 B_C=2 d --e='f g'\n", [("d", "--e=f g")]),
        ("a -d '{\n \"x\": 1}'\nb\n", [("a", "-d", '{\n "x": 1}'), ("b",)]),
        ("cat > x <<END\na 'b\nEND\nc\n", [("cat", ">", "x"), ("c",)]),
        ("a & \n", [("a",)]),
    ],
)
def test_commands_are_split(text: str, words: list[tuple[str, ...]]) -> None:
    found = commands(Block(Path("x.md"), 1, "sh", text, "run", None))
    assert [command.words for command in found] == words


def test_a_command_in_the_background_is_known() -> None:
    first, second = commands(Block(Path("x.md"), 1, "sh", "a --b &\nc\n", "run", None))
    assert (first.is_background, first.text) == (True, "a --b")
    assert not second.is_background


def test_tables_and_links_are_read() -> None:
    text = "x\n\n| a | b |\n|---|---|\n| `1` | x \\| y |\n\n[l](m.md#n) ![i](j.png) `[no](x)`\n"
    assert list(tables(text)) == [[["a", "b"], ["`1`", "x \\| y"]]]
    assert links(text) == ["m.md#n"]
