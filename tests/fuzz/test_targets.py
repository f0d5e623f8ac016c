"""A short run of each fuzzer, and of what longer ones have found."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.fragments import FRAGMENTS
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
FOUND = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_it(name: str) -> None:
    mixed = st.lists(st.sampled_from(FRAGMENTS[name]) | st.binary(max_size=4), max_size=24)

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(mixed.map(b"".join) | st.binary(max_size=200))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("path", FOUND, ids=[f"{p.parent.name}/{p.name}" for p in FOUND])
def test_what_was_found_stays_mended(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_each_fuzzer_has_fragments_and_a_corpus() -> None:
    assert set(FRAGMENTS) == set(TARGETS) == {path.parent.name for path in FOUND}


def test_the_long_run_says_what_it_needs() -> None:
    """Either atheris is there and a run of no seconds succeeds, or the message names it."""
    command = [sys.executable, "-m", "tests.fuzz", "kv_stream", "--runs", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "pip install" in done.stderr, done.stderr
