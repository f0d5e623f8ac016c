"""tools/wheels.sh, as far as it can be checked in a second; it proves the wheels itself."""

import re
import subprocess

from tests.docs.blocks import ROOT

SCRIPT = ROOT / "tools/wheels.sh"


def test_it_is_a_script_that_make_starts() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0
    make = ("make", "--no-print-directory", "--dry-run", "--old-file", ".uv/bin/uv")
    asked = [*make, "wheels", "PYTHONS=3.11 3.12"]
    done = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "tools/wheels.sh 3.11 3.12"


def test_the_lock_files_that_it_names_exist() -> None:
    named = re.findall(r"requirements/[\w.]+", SCRIPT.read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
