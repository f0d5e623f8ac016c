"""What a figure was measured on and with: machine, versions, revision."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.routers.peers import NGINX, PEERS
from benchmarks.system.processes import REPOSITORY

PACKAGES = ("uvloop", "httptools", "uvicorn", "fastapi", "aiohttp", "orjson", "numpy")


def machine() -> dict[str, Any]:
    """The machine the figures hold for."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def versions() -> dict[str, str]:
    """Python, the packages that matter, and the peers."""
    found = {"python": f"{platform.python_version()} ({build()})"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {peer.name: peer.version for peer in (*PEERS, NGINX) if peer.installed()}


def build() -> str:
    """An interpreter without profile-guided optimisation costs a Python router some 15 %.

    Distributions enable it in their own way, and their configure line does not show it.
    """
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return "optimised build"
    is_packaged = Path(sys.executable).resolve().parent == Path("/usr/bin")
    return "the distribution's build" if is_packaged else "not optimised build"


def form() -> str:
    """Whether the router's modules are compiled in this checkout."""
    return "compiled" if any((REPOSITORY / "router").rglob("*.so")) else "pure Python"


def revision() -> dict[str, Any]:
    """The git revision, whether the tree differs from it, and which form of the router it is. None
    outside a repository, and without git."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", "router")
    is_changed = None if changed is None else bool(changed)
    return {"commit": commit, "router_changed": is_changed, "router": form()}


def _git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    command = ["git", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
