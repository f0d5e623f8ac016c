"""Where things are in the repository."""

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
DOCKERIGNORE = ROOT / ".dockerignore"
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
HELM = DEPLOY / "helm" / "pd-router"
COMPOSE = DEPLOY / "compose"


def project() -> dict[str, Any]:
    """pyproject.toml's [project]."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def locked(name: str) -> list[Requirement]:
    """The pins of requirements/NAME.txt, without their hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return [Requirement(pin) for pin in re.findall(r"^(\w[^\\\n]*?)\s*\\$", text, re.MULTILINE)]
