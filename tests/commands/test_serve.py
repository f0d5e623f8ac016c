"""The log lines of a router's start."""

import logging
import socket

import pytest

from router.commands import serve
from router.settings import SettingsSource, load


def announced(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, **flags: object
) -> dict[str, object]:
    """The fields of the line; nothing starts."""

    class NoServer:
        """In place of the server."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def run(self, sockets: list[socket.socket]) -> None:
            """Close what was bound."""
            for each in sockets:
                each.close()

    monkeypatch.setattr(serve, "Server", NoServer)
    caplog.set_level(logging.INFO, "router.commands.serve")
    given = {"host": "127.0.0.1", "port": 0, **flags}
    assert serve.run(load(given), SettingsSource(given)) == 0
    [record] = caplog.records
    assert record.message == "starting"
    fields = record.__dict__["fields"]
    assert isinstance(fields, dict)
    return fields


def test_the_first_line_describes_the_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = announced(
        caplog,
        monkeypatch,
        prefill="http://p0:8000",
        decode="http://d0:8000,http://d1:8000",
        routing_threshold=4096,
        decode_load_balancing_strategy="round_robin",
    )
    assert fields.pop("version")
    assert fields == {
        "prefill": "http://p0:8000",
        "decode": "http://d0:8000,http://d1:8000",
        "encode": None,
        "threshold": 4096,
        "strategy": "shortest_expected_delay,decode:round_robin",
        "connector": "nixl",
        "workers": 1,
        "configuration": "flags",
    }


def test_it_stays_a_line_with_many_engines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = ",".join(f"http://d{number}:8000" for number in range(100))
    fields = announced(caplog, monkeypatch, decode=urls)
    assert fields["prefill"] == "none"
    assert str(fields["decode"]).endswith("http://d15:8000,and 84 more")
