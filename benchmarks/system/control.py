"""Protocol between a bench process and its parent: a JSON document per line, both ways.

The end of standard input ends the process, so that no engine outlives a bench that was killed.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson


def say(event: str, **fields: Any) -> None:
    """Send a document to the starting process."""
    sys.stdout.buffer.write(orjson.dumps({"event": event, **fields}) + b"\n")
    sys.stdout.buffer.flush()


def listen(loop: asyncio.AbstractEventLoop, on_line: Callable[[str], None]) -> None:
    """Call `on_line` for each line of standard input; stop the loop when it ends."""
    pending = b""

    def readable() -> None:
        nonlocal pending
        data = os.read(0, 65536)
        if not data:
            loop.remove_reader(0)
            loop.stop()
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            on_line(line.decode())

    loop.add_reader(0, readable)
