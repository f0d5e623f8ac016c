"""`pd-router`, and `python -m router`."""

import sys
from typing import NoReturn

from router.garbage import rarely_collected


def command_line() -> NoReturn:
    """Run the command of the process's command line, and exit with its status."""
    with rarely_collected():
        from router.cli import main  # noqa: PLC0415 - imports most of the rest

        sys.exit(main())


if __name__ == "__main__":
    command_line()
