"""A short run of each fuzzer, and of the findings of longer runs."""

import re
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
def test_found_crashes_stay_fixed(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_each_fuzzer_has_fragments_and_a_corpus() -> None:
    assert set(FRAGMENTS) == set(TARGETS) == {path.parent.name for path in FOUND}


def test_each_fuzzer_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bad-inputs.md").read_text()
    _, _, text = text.partition("## Fuzzing\n")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(TARGETS)


def test_the_long_run_keeps_findings_or_names_missing_packages(tmp_path: Path) -> None:
    """atheris is there and inputs stay behind, beside the fragments; or the message names it."""
    command = [sys.executable, "-m", "tests.fuzz", "kv_stream", "--runs", "2000"]
    command += ["--found", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert "pip install" in done.stderr, done.stderr
        return
    kept = [each.name for each in (tmp_path / "kv_stream").iterdir()]
    assert any(not name.startswith("fragment-") for name in kept), done.stderr
