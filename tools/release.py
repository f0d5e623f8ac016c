"""Prepares a release: make release VERSION=0.4.0.

It writes the version and the changelog's heading, builds and proves the wheels, commits and tags.
It uploads nothing: it prints the commands that would.
"""

import argparse
import datetime
import hashlib
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]

PLACES = (
    *("pyproject.toml", "router/__init__.py", "Dockerfile", "deploy/versions.yaml"),
    *("deploy/README.md", "deploy/compose/compose.yaml", "deploy/helm/pd-router/Chart.yaml"),
    "deploy/kubernetes/components/versions/kustomization.yaml",
)
"""Files with this project's version; tests/deploy/test_versions.py finds any other."""


def run(*command: str) -> str:
    """The output of a command. Raises CalledProcessError."""
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


def problems(current: str, version: str, changelog: str) -> list[str]:
    """Why the tree cannot be released as this version."""
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## [")[0]
    found = {
        f"{version} is not later than {current}": Version(version) <= Version(current),
        "the tree has changes": bool(run("git", "status", "--porcelain")),
        f"the tag v{version} exists": bool(run("git", "tag", "--list", f"v{version}")),
        "the changelog has nothing under Unreleased": "\n- " not in unreleased,
        "the branch is not main": run("git", "branch", "--show-current").strip() != "main",
    }
    return [text for text, is_so in found.items() if is_so]


def write(current: str, version: str, changelog: str, day: datetime.date) -> None:
    """Write the version everywhere, and its heading above the changes that are unreleased."""
    whole = re.compile(rf"(?<![\d.]){re.escape(current)}(?![\d.])")
    for place in PLACES:
        path = ROOT / place
        path.write_text(whole.sub(version, path.read_text(encoding="utf-8")), encoding="utf-8")
    head = "## [Unreleased]\n"
    text = changelog.replace(head, f"{head}\n## [{version}] - {day}\n", 1)
    (ROOT / "CHANGELOG.md").write_text(text, encoding="utf-8")


def uploads(version: str) -> str:
    """The files, and the commands that would publish them."""
    files = sorted((ROOT / "dist").glob("*"))
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}" for each in files]
    images = [
        f"docker build -t REGISTRY/{image} {target}. && docker push REGISTRY/{image}"
        for image, target in (
            (f"pd-router:{version}", ""),
            (f"pd-router-gate:{version}", "--target gate "),
        )
    ]
    commands = [f"git push origin main v{version}", "twine upload dist/*", *images]
    return "\n".join([*lines, "Not uploaded. To publish:", *commands])


def main() -> int:
    """Returns the exit status: 0, or 1 if the tree cannot be released."""
    parser = argparse.ArgumentParser(prog="tools.release", description=__doc__)
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--no-wheels", action="store_true", help="build none (for tests)")
    given = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+", given.version):
        parser.error("VERSION must be like 0.4.0")
    [current] = re.findall(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if found := problems(current, given.version, changelog):
        print("\n".join(found), file=sys.stderr)
        return 1
    write(current, given.version, changelog, datetime.datetime.now(datetime.UTC).date())
    if not given.no_wheels:
        subprocess.run([ROOT / "tools/wheels.sh"], check=True)
    run("git", "commit", "--all", "--quiet", "--message", f"Release {given.version}")
    run("git", "tag", "--annotate", f"v{given.version}", "--message", f"pd-router {given.version}")
    print(uploads(given.version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
