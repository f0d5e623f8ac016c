"""Engines are started with the flags that work, and mended between runs."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.h100 import engines
from benchmarks.h100.engines import Engines, Spec, command, specs
from benchmarks.h100.profiles import CPU, H100, Profile
from benchmarks.system.ports import free_port
from benchmarks.system.processes import StartError

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
if sys.argv[2:] != ["works"]:
    sys.exit("no such flag")
class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    """Servers that are healthy with the flag `works`, in place of engines."""

    def stand_in(
        spec: Spec, shape: object, models: object, profile: object, attempt: Sequence[str]
    ) -> list[str]:
        return [sys.executable, "-c", SERVER, spec.url.rpartition(":")[2], *attempt]

    monkeypatch.setattr(engines, "command", stand_in)
    monkeypatch.setattr(engines, "PORT", free_port())
    with Engines(CPU, tmp_path, tmp_path) as made:
        made.attempts = [("fails",), ("works",)]
        yield made


def test_flags_that_work_are_found_and_kept(fleet: Engines) -> None:
    assert all(each.is_well for each in fleet.need("pool"))
    assert fleet.attempts == [("works",)]


def test_only_a_missing_engine_is_started_again(fleet: Engines) -> None:
    first, second, third = fleet.need("pool")
    second.signal(signal.SIGKILL)
    os.waitid(os.P_PID, second._process.pid, os.WEXITED | os.WNOWAIT)
    mended = fleet.need("pool")
    assert (mended[0], mended[2]) == (first, third)
    assert mended[1] is not second
    assert mended[1].is_well


def test_an_engine_that_hangs_is_started_again(fleet: Engines) -> None:
    (engine,) = fleet.need("one")
    engine.signal(signal.SIGSTOP)
    assert fleet.need("one") != [engine]


def test_flags_that_failed_are_not_tried_again(fleet: Engines) -> None:
    fleet.attempts = [("fails",), ("fails", "too")]
    with pytest.raises(StartError):
        fleet.need("one")
    assert fleet.attempts == [("fails", "too")]


def test_engines_of_another_kind_take_the_place_of_the_first(fleet: Engines) -> None:
    before = fleet.need("one")
    fleet.need("pool")
    assert not any(each.is_well for each in before)


def test_without_flags_that_work_the_log_says_why(fleet: Engines) -> None:
    fleet.attempts = [("fails",)]
    with pytest.raises(StartError) as failed:
        fleet.need("one")
    assert "no such flag" in failed.value.log


@pytest.mark.parametrize("profile", [H100, CPU], ids=lambda each: str(each.name))
def test_engines_have_ports_of_their_own(profile: Profile) -> None:
    kinds = ("one", "pool", "transfer", "large")
    found = [spec for kind in kinds for spec in specs(kind, profile)]
    # `one` and `large` never run at the same time.
    assert len({spec.number for spec in found}) == len(found) - 1


def test_a_prefill_engine_knows_its_part() -> None:
    spec = specs("transfer", H100)[0]
    line = command(spec, H100.small, Path("/models"), H100, ())
    assert '"kv_role": "kv_producer"' in line[-1]
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT=18620" in line
