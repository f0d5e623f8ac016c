"""Why a stream cannot be connected, by name."""

import asyncio
import errno
import ssl
from typing import Any, cast

import pytest

from benchmarks.streaming.client import Stream, open_connection


class Failing:
    """Keeps why it failed."""

    reason = ""

    def fail(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "EMFILE"),
        (OSError(errno.EADDRNOTAVAIL, "no port"), "EADDRNOTAVAIL"),
        (OSError(errno.ECONNREFUSED, "refused"), "ConnectionRefusedError"),
        (OSError("Multiple exceptions: ..."), "OSError"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "SSLCertVerificationError"),
    ],
)
async def test_a_connection_fails_under_the_name_of_its_error(
    error: OSError, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fails)
    stream = Failing()
    await open_connection(cast("Stream", stream), "h", 80)
    assert stream.reason == f"cannot connect: {reason}"
