"""Why a stream cannot be connected, by name."""

import asyncio
import errno
import os
import socket
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


def of_several(*numbers: int) -> OSError:
    """Errors of a name's addresses, as in asyncio and uvloop."""
    said = ", ".join(f"[Errno {number}] {os.strerror(number)}" for number in numbers)
    return OSError(f"Multiple exceptions: {said}")


@pytest.mark.parametrize(
    ("error", "address", "reason"),
    [
        (of_several(errno.ECONNREFUSED, errno.EADDRNOTAVAIL), "127.0.0.1", "EADDRNOTAVAIL"),
        (of_several(errno.EADDRNOTAVAIL, errno.ENETUNREACH), "127.0.0.1", "EADDRNOTAVAIL"),
        (of_several(errno.ECONNREFUSED, errno.EMFILE), "127.0.0.1", "EMFILE"),
        (of_several(errno.ECONNREFUSED, errno.ENETUNREACH), "127.0.0.1", "ConnectionRefusedError"),
        # Nothing is routed there, as to ::1 on a machine without IPv6: no port is missing.
        (
            of_several(errno.EADDRNOTAVAIL, errno.ECONNREFUSED),
            "255.255.255.255",
            "ConnectionRefusedError",
        ),
    ],
)
async def test_of_several_addresses_errors_that_counts_which_the_client_is_to_blame_for(
    error: OSError, address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise error

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "h"
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fails)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    stream = Failing()
    await open_connection(cast("Stream", stream), "h", 80)
    assert stream.reason == f"cannot connect: {reason}"
