"""Standard output of commands: tables and colours on a terminal, plain complete lines elsewhere."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.commands.flags import one_line

__all__ = ["UNBOUNDED", "cell", "make_console", "make_table"]

UNBOUNDED = 100_000
"""Width for pipes, where lines must not be wrapped."""


def make_console() -> Console:
    """The console that commands print on. It interprets no markup in what is printed."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def cell(*lines: str, style: str = "") -> Text:
    """Escaped text for a terminal, since model names and prompts come from others."""
    return Text("\n".join(map(one_line, lines)), style)


def make_table(console: Console, **options: Any) -> Table:
    """A table with a ruled head on a terminal, and plain columns elsewhere."""
    return Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, **options)
