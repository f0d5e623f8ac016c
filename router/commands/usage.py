"""The error for wrong use of a command, and escaping to one line."""

__all__ = ["UsageError", "one_line"]


class UsageError(Exception):
    """Wrong use of a command; the text names the argument in one line."""


def one_line(text: str) -> str:
    """`text` with everything escaped that would break the line or drive the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
