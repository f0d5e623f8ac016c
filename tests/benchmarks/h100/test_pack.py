"""What is carried to the GPU machine arrives whole, or is refused."""

import json
from pathlib import Path

import pytest

from benchmarks.h100 import pack
from benchmarks.h100.pack import NotPacked, Patch
from benchmarks.h100.unpack import unpack

SIZE = 300


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages, which compresses to several parts of SIZE bytes."""
    folder = tmp_path / "site"
    (folder / "package").mkdir(parents=True)
    (folder / "package/__init__.py").write_text("answer = 42\n")
    (folder / "package/kernels.so").write_bytes(bytes(n * n % 251 for n in range(1000)))
    return folder


@pytest.fixture
def parts(site: Path, tmp_path: Path) -> Path:
    """The folder with the parts and their manifest."""
    folder = tmp_path / "parts"
    folder.mkdir()
    pieces = pack.archived(site, folder, preset=0, size=SIZE)
    (folder / "manifest.json").write_text(json.dumps({"parts": pack.sums(pieces)}))
    assert len(pieces) > 1
    assert all(piece.stat().st_size <= SIZE for piece in pieces)
    return folder


def test_parts_are_joined_into_the_same_files(site: Path, parts: Path, tmp_path: Path) -> None:
    unpack(parts, tmp_path / "there")
    for path in ("package/__init__.py", "package/kernels.so"):
        assert (tmp_path / "there" / path).read_bytes() == (site / path).read_bytes()


def test_the_archive_itself_does_not_stay(parts: Path) -> None:
    assert {each.name.partition("-")[0] for each in parts.iterdir()} == {"part", "manifest.json"}


def test_a_missing_part_is_named(parts: Path, tmp_path: Path) -> None:
    (parts / "part-01").unlink()
    with pytest.raises(ValueError, match="part-01 is missing"):
        unpack(parts, tmp_path / "there")


def test_a_damaged_part_is_named(parts: Path, tmp_path: Path) -> None:
    (parts / "part-00").write_bytes((parts / "part-00").read_bytes()[:-1])
    with pytest.raises(ValueError, match="part-00 is damaged"):
        unpack(parts, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "vllm/_C_stable_libtorch.abi3.so"),
        *("vllm/utils/deep_gemm.py", "vllm/model_executor/layers/fused_moe/layer.py"),
        *("nixl/_api.py", "nixl_cu13/_api.py", "nixl_cu13.libs/nixl/libplugin_UCX.so"),
        *("nixl_cu13.libs/ucx/libuct_cuda.so.0.0.0", "vllm-0.25.1.dist-info/METADATA"),
    ],
)
def test_what_engines_load_is_carried(name: str) -> None:
    assert pack.is_kept(name)


@pytest.mark.parametrize(
    "name",
    [
        *("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so"),
        *("vllm/third_party/deep_gemm/include/a.hpp", "vllm/vllm-rs"),
        *("nixl_ep_cu13/cpp.so", ".nixl_cu13.mesonpy.libs/plugins/libplugin_GDS.so"),
    ],
)
def test_kernels_of_other_models_and_machines_stay(name: str) -> None:
    assert not pack.is_kept(name)


def test_a_patch_changes_one_line(site: Path) -> None:
    pack.patch(site, [Patch("package/__init__.py", "answer = 42", "answer = 43", "")])
    assert (site / "package/__init__.py").read_text() == "answer = 43\n"


def test_a_patch_of_other_packages_is_refused(site: Path) -> None:
    with pytest.raises(NotPacked, match="`answer = 41` 0 times"):
        pack.patch(site, [Patch("package/__init__.py", "answer = 41", "answer = 43", "")])
