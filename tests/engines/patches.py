"""One-line edits that let several vLLM engines with NIXL share a machine of two cores, and Mooncake
run without an accelerator.

None changes what is computed or sent: they are about waiting and pinning. Without them, on
two cores, the first transfer fails after 5 s (handshake timeout) and later ones take 0.2-31 s.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.engines.layout import LabError

__all__ = ["PATCHES", "Patch", "apply", "pending"]


@dataclass(frozen=True)
class Patch:
    """One whole line of a file under site-packages, before and after."""

    file: str
    before: str
    after: str
    why: str


PATCHES = (
    Patch(
        file="nixl_cu12/_api.py",
        before="agent_config.pthrDelay = 0",
        after="agent_config.pthrDelay = 2000",
        why=(
            "NIXL's progress thread polls without a pause and takes 0.4-1.0 of a core per idle"
            " engine; 2000 us of sleep leave 0.003, and events still wake it"
        ),
    ),
    Patch(
        file="vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        before="if rsv_cores_for_kv:",
        after="if rsv_cores_for_kv and len(os.sched_getaffinity(0)) > 8:",
        why=(
            "the NIXL worker of every engine pins itself to the last core of the node, so all"
            " engines fight for one core"
        ),
    ),
    Patch(
        file="vllm/distributed/device_communicators/shm_broadcast.py",
        before="busy_loop_s: float = 1,",
        after="busy_loop_s: float = 0.002,",
        why="each worker spins for 1 s after every message: 2 ms",
    ),
    Patch(
        file="vllm/distributed/device_communicators/shm_broadcast.py",
        before="SHM_READER_RECHECK_INTERVAL_MS = 5000",
        after="SHM_READER_RECHECK_INTERVAL_MS = 20",
        why=(
            "a worker that stopped spinning may miss the message that should wake it, and looks"
            " again after 5 s: engines stood still for 5 s in the middle of answers"
        ),
    ),
    Patch(
        file="vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py",
        before="self.device_id = torch.accelerator.current_device_index()",
        after="self.device_id = 0",
        why="it raises on a machine without an accelerator",
    ),
)


def apply(site_packages: Path) -> list[Patch]:
    """Make every edit that is not made yet and return those.

    Raises LabError when a line is neither in its old nor its new form exactly once: the packages
    are then not those that the patch was written for.
    """
    missing = pending(site_packages)
    for patch in missing:
        path = site_packages / patch.file
        lines = path.read_text().splitlines(keepends=True)
        at = _positions(lines, patch.before)[0]
        lines[at] = lines[at].replace(patch.before, patch.after)
        path.write_text("".join(lines))
    return missing


def pending(site_packages: Path) -> list[Patch]:
    """The edits not made yet. Raises LabError as `apply` does."""
    return [patch for patch in PATCHES if _is_pending(site_packages, patch)]


def _is_pending(site_packages: Path, patch: Patch) -> bool:
    path = site_packages / patch.file
    if not path.is_file():
        raise LabError(f"small-machine patch: {path} does not exist")
    lines = path.read_text().splitlines(keepends=True)
    old, new = len(_positions(lines, patch.before)), len(_positions(lines, patch.after))
    if {old, new} != {0, 1}:
        raise LabError(
            f"small-machine patch: {path} has `{patch.before}` {old} times and `{patch.after}`"
            f" {new} times; exactly one of the two was expected once"
        )
    return old == 1


def _positions(lines: list[str], wanted: str) -> list[int]:
    return [at for at, line in enumerate(lines) if line.strip() == wanted]
