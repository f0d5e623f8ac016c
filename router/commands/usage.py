"""The error for wrong use of a command, and escaping to one line."""

__all__ = ["UsageError", "one_line"]


class UsageError(Exception):
    """Wrong use of a command; the message names the argument in one line."""


def one_line(text: str) -> str:
    """`text` with all characters escaped that would break the line or control the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
