"""Reads Markdown: its code blocks, how each is to be tested, its commands, tables and links.

A block of shell commands is tested by the marker on the line before its fence:

- `<!-- test: run -->`: its commands are run as they are, in an empty directory;
- `<!-- test: engines -->`: the same, with simulated engines for the hosts p0, d0 and d1, and a
  router in front of them for the host router;
- `<!-- test: checkout -->`: they are run as they are, in a folder with all that the repository has;
- `<!-- test: options: WHY -->`: they are not run, because that needs a GPU or takes long; their
  options are read by the commands' own parsers.

The block behind one may be marked with `<!-- output -->`: that is what it prints.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "Command", "blocks", "commands", "documents", "links", "tables"]

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\S*)\s*$")
_MARKER = re.compile(r"^<!-- test: (run|engines|checkout|options)(?:: (.+?))? -->$")
_OUTPUT = "<!-- output -->"
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block. `line` is that of its fence, `language` the word behind the fence."""

    path: Path
    line: int
    language: str
    text: str
    test: str | None
    """run, engines, checkout or options; None without a marker."""
    why: str | None
    """Why it is not run."""
    is_output: bool = False
    """Whether it is what the block before it prints."""

    @property
    def place(self) -> str:
        """How a failure names it."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a block. `text` is for a shell, `words` are without variables before."""

    text: str
    words: tuple[str, ...]
    is_background: bool


def documents() -> list[Path]:
    """Those whose commands are tested."""
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    benches = [ROOT / "benchmarks" / name for name in ("README.md", "h100/README.md")]
    return [*named, ROOT / "deploy/README.md", *benches, *_docs()]


def _docs() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a document. Raises ValueError for a fence that is not closed."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        start = number
        number += 1
        while number < len(lines) and lines[number] != "```":
            number += 1
        if number == len(lines):
            raise ValueError(f"{path}:{start + 1}: the block is not closed")
        marker = _MARKER.match(lines[start - 1]) if start else None
        test, why = marker.groups() if marker else (None, None)
        text = "\n".join(lines[start + 1 : number]) + "\n"
        is_output = start > 0 and lines[start - 1] == _OUTPUT
        yield Block(path, start + 1, opened[1], text, test, why, is_output)
        number += 1


def commands(block: Block) -> list[Command]:
    """The commands of a block of shell: comments left out, continued lines and here-documents
    put together. Raises ValueError for quotes that are not closed."""
    found = []
    lines = iter(block.text.splitlines())
    for line in lines:
        text = line
        while text.endswith("\\") or _is_open(text):
            text = text[:-1] if text.endswith("\\") else f"{text}\n"
            text += next(lines)
        if here := re.search(r"<<-?'?(\w+)'?$", text):
            body = [""]
            while body[-1] != here[1]:
                body.append(next(lines))
            text += "\n".join(body)
        words = shlex.split(text.split("<<")[0], comments=True)
        if words:
            found.append(_command(text, words))
    return found


def _is_open(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def _command(text: str, words: list[str]) -> Command:
    is_background = words[-1] == "&"
    if is_background:
        words = words[:-1]
        text = text.rpartition("&")[0].rstrip()
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return Command(text, tuple(words), is_background)


def tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a document: rows of cells, the head first."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if set("".join(cells)) - set("-: "):
                rows.append(cells)
        elif rows:
            yield rows
            rows = []


def links(text: str) -> list[str]:
    """The targets of a document's links, code left out."""
    prose = re.sub(r"```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return _LINK.findall(prose)
