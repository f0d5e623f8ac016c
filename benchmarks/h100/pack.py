"""Fetch what the GPU machine lacks, and pack it into parts that fit through its door.

One folder of packages (of vLLM only what a dense model needs on this GPU), one archive, cut into
parts of equal size: `unpack.py` joins them.
"""

import fnmatch
import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.h100.profiles import Profile
from benchmarks.system.machine import revision
from benchmarks.system.processes import REPOSITORY

__all__ = [
    "DROPPED",
    "PART",
    "PATCHES",
    "NotPacked",
    "Patch",
    "archived",
    "is_kept",
    "pack",
    "patch",
    "sums",
]

PART = 48 << 20
"""Bytes. 64 MiB are the limit of a transfer, of which the checkout takes 13."""
REQUIREMENTS = REPOSITORY / "requirements" / "h100.txt"
PLATFORMS = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17")
DROPPED = (
    "vllm/vllm-rs",  # a front end
    # Kernels of other GPUs, of mixture-of-experts models, and of FlashAttention 2: imported in a
    # try, or not at all.
    *("vllm/_moe_C*", "vllm/_flashmla*", "vllm/_qutlass_C*", "vllm/*/_vllm_fa2_C*"),
    *("vllm/third_party/deep_gemm/*", "vllm/third_party/fmha_sm100/*"),
    "mistral_common/data/*",
    # NIXL's other backends; it finds UCX alone.
    *("nixl_ep*", "*.scripts/*", "*.data/*", "*/libucx_perftest*", "*/libuct_ib_mlx5_gd*"),
    *("*/libaws-cpp-sdk-s3*", "*/libazure*", "*/libgusli*", "*/libxml2*"),
    *("*/libplugin_[!U]*", "*/libtelemetry_*", "*/libtrace_*"),
)


class NotPacked(Exception):
    """The packages are not those that this was written for, or could not be fetched."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One line of a file of the packages, before and after. None changes what is computed."""

    file: str
    before: str
    after: str
    why: str


NIXL_WORKER = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py"
SHARED_MEMORY = "vllm/distributed/device_communicators/shm_broadcast.py"
PATCHES = (
    Patch(
        "nixl_cu13/_api.py",
        "agent_config.pthrDelay = 0",
        "agent_config.pthrDelay = 2000",
        "a progress thread polls without a pause, up to one core per idle engine: 2 ms",
    ),
    Patch(
        NIXL_WORKER,
        "if rsv_cores_for_kv:",
        "if False:",
        "on CPU all engines pin their transfers to the same core",
    ),
    Patch(
        "vllm/distributed/kv_transfer/kv_connector/utils.py",
        "len(kv_cache_shape) == 5 and kv_cache_shape[0] == 1",
        "len(kv_cache_shape) in (4, 5) and kv_cache_shape[0] == 1",
        "on CPU a cache has four dimensions, blocks first: NIXL refuses it",
    ),
    Patch(
        SHARED_MEMORY,
        "busy_loop_s: float = 1,",
        "busy_loop_s: float = 0.002,",
        "on CPU each worker spins for 1 s after every message",
    ),
    Patch(
        SHARED_MEMORY,
        "events = dict(self.poller.poll(timeout=timeout_ms))",
        "events = dict(self.poller.poll(timeout=20))",
        "a worker that does not spin may miss the message that wakes it: it looks again",
    ),
)


def pack(profile: Profile, folder: Path) -> list[Path]:
    """Fetch, unpack, patch, archive, cut. Returns the parts and the manifest; prints each step's
    time. Raises NotPacked."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels, site = folder / "wheels", folder / "site"
    with _timed("fetched"):
        _fetch(profile.engine, wheels)
    with _timed("unpacked"):
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, site)
        patch(site, PATCHES)
    with _timed("archived"):
        parts = archived(site, folder, profile.preset, PART)
    manifest = folder / "manifest.json"
    contents = {
        "profile": profile.name,
        "revision": revision(),
        "wheels": {each.name: each.stat().st_size for each in sorted(wheels.glob("*.whl"))},
        "parts": sums(parts),
    }
    manifest.write_text(json.dumps(contents, indent=1))
    return [*parts, manifest]


def archived(site: Path, folder: Path, preset: int, size: int) -> list[Path]:
    """The packages as one archive, cut into parts of at most `size` bytes, in the order of their
    names."""
    whole = folder / "site.tar.xz"
    with (
        lzma.open(whole, "wb", preset=preset) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        tar.add(site, ".")
    parts: list[Path] = []
    with whole.open("rb") as source:
        while piece := source.read(size):
            parts.append(folder / f"part-{len(parts):02}")
            parts[-1].write_bytes(piece)
    whole.unlink()
    return parts


def sums(parts: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each part by its name, for the manifest."""
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in parts}


def is_kept(name: str) -> bool:
    """Whether a file of a wheel is carried."""
    return not any(fnmatch.fnmatchcase(name, pattern) for pattern in DROPPED)


def patch(site: Path, patches: Sequence[Patch]) -> None:
    """Make every edit. Raises NotPacked if a line is not there exactly once."""
    for each in patches:
        path = site / each.file
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = [at for at, line in enumerate(lines) if line.strip() == each.before]
        if len(found) != 1:
            raise NotPacked(f"{each.file} has `{each.before}` {len(found)} times, not once")
        lines[found[0]] = lines[found[0]].replace(each.before, each.after)
        path.write_text("".join(lines), encoding="utf-8")


def _fetch(engine: str, wheels: Path) -> None:
    """Exactly the locked files, for the GPU machine's Python. Raises NotPacked."""
    wheels.mkdir(parents=True)
    locked = wheels / "requirements.txt"
    locked.write_text(f"{REQUIREMENTS.read_text(encoding='utf-8')}\n{engine}\n", encoding="utf-8")
    tags = (*(f"manylinux_{each}_x86_64" for each in PLATFORMS), "manylinux2014_x86_64")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"),
        *("--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"),
        *(word for tag in (*tags, "manylinux1_x86_64") for word in ("--platform", tag)),
        *("--dest", str(wheels), "--requirement", str(locked)),
    ]
    if subprocess.run(command, check=False).returncode:
        raise NotPacked("pip could not fetch all packages")


def _unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site, [name for name in archive.namelist() if is_kept(name)])


@contextmanager
def _timed(what: str) -> Iterator[None]:
    """Print how long something took."""
    begun = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - begun:.0f} s", flush=True)
