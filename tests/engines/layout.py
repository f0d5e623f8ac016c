"""Where the lab keeps what it installs and runs.

Everything lives in one cache folder outside the repository: 2.7 GB that survive a `git clean`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LabError", "Layout", "layout"]


class LabError(Exception):
    """A failed lab command; the message has the reason."""


@dataclass(frozen=True)
class Layout:
    """The paths under the lab's folder."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        found = sorted((self.venv / "lib").glob("python3*/site-packages"))
        if not found:
            raise LabError(f"{self.venv} holds no site-packages")
        return found[0]

    @property
    def model(self) -> Path:
        return self.root / "tiny"

    @property
    def llava(self) -> Path:
        """The model that sees images."""
        return self.root / "tiny-llava"

    @property
    def vision(self) -> Path:
        """What only that model's engines import."""
        return self.root / "vision"

    @property
    def run(self) -> Path:
        """Logs and state files of processes."""
        return self.root / "run"

    @property
    def install_log(self) -> Path:
        return self.root / "install.log"


def layout() -> Layout:
    """The lab's folder: PD_ROUTER_LAB, or one in the user's cache."""
    named = os.environ.get("PD_ROUTER_LAB")
    root = Path(named) if named else Path.home() / ".cache" / "pd-router-lab"
    return Layout(root.expanduser().resolve())
