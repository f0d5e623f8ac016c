"""Time that does not run."""

from tests.calm import calm

__all__ = ["calm"]
