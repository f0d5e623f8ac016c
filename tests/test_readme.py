"""The README: short, and true. Its commands are run by tests/docs."""

import json
import re

from benchmarks.comparison.bound import bound
from benchmarks.reporting.stored import Stored
from tests.docs.blocks import ROOT, blocks, commands, tables

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")

MOST_WORDS = 1500

STORED = "benchmarks/results/slow-engine-2026-11-26T212600Z.json"
ROWS = ("ours-sed", "nginx", "vllm-router", "smg-cache-aware")


def test_it_is_read_in_one_sitting() -> None:
    assert len(TEXT.split()) <= MOST_WORDS


def test_ci_runs_its_two_commands_for_setting_up() -> None:
    shell = [block for block in blocks(README) if block.language == "sh"]
    setups = [[command.words for command in commands(block)] for block in shell]
    assert [("make", "demo"), ("make", "test")] in setups
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_its_figures_are_those_of_the_stored_run_that_it_links() -> None:
    assert f"({STORED})" in TEXT
    stored = Stored(STORED, json.loads((ROOT / STORED).read_bytes()))
    [measured] = [rows for rows in tables(TEXT) if rows[0][1] == "requests/s"]
    for name, row in zip(ROWS, measured[1:], strict=True):
        [figures] = stored.figures(name)
        assert figures is not None
        assert row[1:] == [
            f"{figures['requests_per_s']:.0f}",
            f"{(figures['whole_p99_ms'] or 0) / 1000:.1f} s",
            f"{figures['ttft_p99_ms']:.0f} ms",
        ]
    size = stored.scenario
    assert f"gives {bound(size):.0f} requests/s" in TEXT
    assert f"{size.clients} streams, {size.requests:,} requests of {size.tokens}" in TEXT


def test_every_route_of_the_operations_is_in_it() -> None:
    for path in ("/health", "/ready", "/endpoints", "/metrics", "/version", "/docs", "/v1/models"):
        assert re.search(rf"`GET {path}`", TEXT), path
