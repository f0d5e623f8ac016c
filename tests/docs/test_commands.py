"""Every command in the documents works, or is at least one that its own parser accepts."""

import itertools
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, commands, documents
from tests.docs.options import Wrong, check
from tests.docs.running import Pools, checkout, run

BLOCKS = [block for path in documents() for block in blocks(path)]
SHELL = [block for block in BLOCKS if block.language == "sh"]


def of(kind: str) -> list[Block]:
    """The blocks that are tested so."""
    return [block for block in SHELL if block.test == kind]


def place(block: Block) -> str:
    """How pytest names a case."""
    return block.place


def test_every_shell_block_has_a_test_marker() -> None:
    for block in SHELL:
        assert block.test, f"{block.place}: the line before the fence has no marker"
        assert (block.why is not None) == (block.test == "options"), f"{block.place}: why options?"
        assert commands(block)


@pytest.mark.parametrize("block", of("run"), ids=place)
def test_blocks_marked_run_work_as_written(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path)


@pytest.mark.parametrize("block", of("engines"), ids=place)
def test_blocks_that_need_engines_run_on_simulated_ones(
    block: Block, tmp_path: Path, running_pools: Pools
) -> None:
    run(block, tmp_path, running_pools)


OUTPUTS = {
    before: block
    for before, block in itertools.pairwise(BLOCKS)
    if block.is_output and before.path == block.path
}
"""What blocks print, by the block."""


def test_every_output_is_one_of_a_block_that_is_run() -> None:
    assert len(OUTPUTS) == sum(block.is_output for block in BLOCKS)
    assert {before.test for before in OUTPUTS} == {"checkout"}


@pytest.mark.parametrize("block", of("checkout"), ids=place)
def test_blocks_that_need_the_repository_print_the_documented_output(
    block: Block, tmp_path: Path
) -> None:
    checkout(tmp_path)
    printed = run(block, tmp_path)
    if block in OUTPUTS:
        # Tables are padded.
        assert [line.rstrip() for line in printed.splitlines()] == OUTPUTS[block].text.splitlines()


@pytest.mark.parametrize("block", of("options"), ids=place)
def test_blocks_that_do_not_run_have_valid_options(block: Block) -> None:
    check(block)


@pytest.mark.parametrize(
    "line",
    [
        "pd-router serve --decode http://d0:8000 --no-such-flag 1",
        "pd-router serve --decode http://d0:8000 --routing-threshold many",
        "pd-router serve --prefill http://p0:8000",
        "pd-router simulate --no-such-flag",
        "pd-bench validate --url http://r:8000 --model m --gpus 1 --rate -1",
        "pd-bench validate --generator aiperf --url http://r:8000",
        "pd-bench ab --policies round_robin --engines 1",
        "pd-bench judge --no-such-flag x.json",
        "pd-bench cluster --platform none",
        "python -m benchmarks compare --scenario no-such-scenario",
        "make no-such-target",
        "pip install 'pd-router[no_such_extra]'",
        "vllm serve MODEL --kv-transfer-config '{\"kv_role\": }'",
        "kubectl apply --no-such-flag x",
        "no-such-program",
        "cd x && no-such-program",
        "for x in y; do",
    ],
)
def test_a_wrong_option_is_found(line: str) -> None:
    with pytest.raises(Wrong):
        check(_block(line))


@pytest.mark.parametrize("line", ["false", "pd-router explain no-such-file --decode http://d0"])
def test_a_command_that_fails_is_found(line: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(_block(line), tmp_path)


def _block(text: str) -> Block:
    return Block(Path(__file__), 1, "sh", f"{text}\n", "run", None)
