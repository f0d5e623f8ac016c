"""tools/release.py, on a copy of the files that it changes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from router import __version__
from tests.docs.blocks import ROOT
from tools.release import PLACES

WHO = {
    f"GIT_{role}_{what}": text
    for role in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "a"), ("EMAIL", "a@b.c"))
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with one commit: the files with a version, and what the script needs."""
    script = ("tools/__init__.py", "tools/release.py")
    for name in (*PLACES, ".gitignore", "CHANGELOG.md", "README.md", *script):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    """The output of a command of git."""
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **WHO},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def release(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run it there, without wheels."""
    return subprocess.run(
        [sys.executable, "-m", "tools.release", version, "--no-wheels"],
        cwd=folder,
        env={**os.environ, **WHO},
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_release_is_a_commit_with_one_version_and_a_tag(copy: Path) -> None:
    done = release(copy, "99.1.0")
    assert done.returncode == 0, done.stderr
    assert git(copy, "status", "--porcelain") == ""
    assert git(copy, "tag", "--points-at", "HEAD") == "v99.1.0\n"
    assert "git push origin main v99.1.0" in done.stdout
    assert re.search(
        r"## \[Unreleased\]\n\n## \[99.1.0\] - \d", (copy / "CHANGELOG.md").read_text()
    )
    stated = yaml.safe_load((copy / "deploy/versions.yaml").read_text())
    assert stated["pd-router"] == "99.1.0"


def test_every_place_with_the_version_is_known() -> None:
    folders = ("pyproject.toml", "router", "Dockerfile", "deploy")
    found = git(ROOT, "grep", "-l", "--fixed-strings", __version__, "--", *folders).split()
    assert sorted(found) == sorted(PLACES)


@pytest.mark.parametrize(
    ("version", "change", "said"),
    [
        (__version__, "", f"{__version__} is not later than {__version__}"),
        ("99.1.0", "echo >> README.md", "the tree has changes"),
        ("99.1.0", "git switch --quiet --create other", "the branch is not main"),
        ("99.1.0", "git tag v99.1.0", "the tag v99.1.0 exists"),
    ],
)
def test_a_tree_that_is_not_ready_is_left_as_it_is(
    copy: Path, version: str, change: str, said: str
) -> None:
    subprocess.run(["bash", "-c", change], cwd=copy, check=True)
    before = git(copy, "status", "--porcelain")
    done = release(copy, version)
    assert (done.returncode, done.stderr) == (1, f"{said}\n")
    assert git(copy, "status", "--porcelain") == before
