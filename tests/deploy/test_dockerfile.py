"""Claims about the image that hold without building it."""

import fnmatch
import re

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from router.settings import Settings
from tests.deploy.dockerfile import Instruction, Stage, name_of, read
from tests.deploy.places import DOCKERFILE, DOCKERIGNORE, ROOT, locked, project

TEXT = DOCKERFILE.read_text()
MAKE = (ROOT / "Makefile").read_text()
STAGES = {name_of(stage): stage for stage in read(TEXT)}
BUILD, FINAL = STAGES["build"], STAGES["router"]
IMAGES = ("router", "gate")
BUILDS = ("build", "gate-build")


def only(stage: Stage, name: str) -> Instruction:
    """The one instruction of this name."""
    (found,) = (one for one in stage if one.name == name)
    return found


def copied(stage: Stage) -> list[str]:
    """The sources of what a stage copies from the build context."""
    copies = [one.words for one in stage if one.name == "COPY"]
    return [
        source
        for words in copies
        if not words[0].startswith("--from=")
        for source in words[:-1]
        if not source.startswith("--")
    ]


def is_in_context(path: str) -> bool:
    """Whether .dockerignore lets a path of the repository through; its last match decides."""
    allowed = True
    for line in DOCKERIGNORE.read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        wanted = pattern.startswith("!")
        pattern = pattern.removeprefix("!").replace("**/", "*")
        parents = path.split("/")
        prefixes = ("/".join(parents[: n + 1]) for n in range(len(parents)))
        if any(fnmatch.fnmatchcase(prefix, pattern) for prefix in prefixes):
            allowed = wanted
    return allowed


def runs(stage: str) -> str:
    """All that a stage runs, on one line."""
    return " && ".join(one.text for one in STAGES[stage] if one.name == "RUN")


@pytest.mark.parametrize("image", IMAGES)
def test_binaries_of_one_stage_run_in_another(image: str) -> None:
    assert not [one for one in STAGES[image] if one.name == "RUN"]
    assert copied(STAGES[image]) == []
    taken = [one.words for one in STAGES[image] if one.name == "COPY"]
    for origin, source, target in taken:
        assert origin.removeprefix("--from=") in BUILDS
        # The same place: environments hold absolute paths.
        assert source == target
        assert source in runs(origin.removeprefix("--from=")) or source == "/opt/aiperf"


def test_the_router_is_the_default_build_target() -> None:
    assert list(STAGES)[-1] == "router"


def test_all_stages_are_of_one_slim_python_that_the_project_supports() -> None:
    images = {only(stage, "FROM").words[0] for stage in STAGES.values()}
    assert images == {"python:${PYTHON}-slim-bookworm"}
    default = re.search(r"^ARG PYTHON=(\d+)\.(\d+)$", TEXT, re.MULTILINE)
    assert default is not None
    assert SpecifierSet(project()["requires-python"]).contains(".".join(default.groups()))


def test_the_router_is_the_first_process_with_no_shell_around_it() -> None:
    entry, command = only(FINAL, "ENTRYPOINT").exec_form, only(FINAL, "CMD").exec_form
    assert entry == ["pd-router"]
    assert command == ["serve"]
    assert entry[0] in project()["scripts"]


@pytest.mark.parametrize("image", IMAGES)
def test_the_user_is_a_number_and_not_root(image: str) -> None:
    uid, _, gid = only(STAGES[image], "USER").text.partition(":")
    assert uid.isdecimal()
    assert gid.isdecimal()
    assert int(uid) > 0
    assert int(gid) > 0


@pytest.mark.parametrize("stage", BUILDS)
def test_installed_packages_have_a_hash_or_come_from_the_built_wheel(stage: str) -> None:
    text = re.sub(" +", " ", runs(stage))
    installs = [part for part in text.split("&&") if re.search(r"\bpip\b.* install ", part)]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or "--no-deps --no-index /wheels/" in command
    assert "--no-deps --no-build-isolation" in text  # nothing is fetched for the build


def test_aiperf_is_installed_as_it_is_locked_and_looked_for_where_it_lies() -> None:
    [line] = re.findall(r"pd-bench (aiperf install .*)", runs("gate-build"))
    assert line == "aiperf install --requirement requirements/aiperf.txt"
    home = "PD_ROUTER_AIPERF=/opt/aiperf"
    for stage in ("gate-build", "gate"):
        assert any(home in one.text for one in STAGES[stage] if one.name == "ENV")


def test_the_gates_image_has_no_router_and_begins_with_the_gate() -> None:
    assert "rm /opt/pd-router-gate/bin/pd-router" in runs("gate-build")
    assert only(STAGES["gate"], "ENTRYPOINT").exec_form == ["pd-bench"]
    pinned = {requirement.name for requirement in locked("gate")}
    for requirement in map(Requirement, project()["optional-dependencies"]["bench"]):
        assert requirement.name in pinned


EXTRAS = ["lmcache", "kv", "tracing", "kubernetes", "dns", "epp"]
"""Those that a setting or a command of the router needs."""


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_that_a_setting_needs_are_installed(extra: str) -> None:
    assert "--requirement requirements/image.txt" in TEXT
    pinned = {requirement.name for requirement in locked("image")}
    for requirement in map(Requirement, project()["optional-dependencies"][extra]):
        assert requirement.name in pinned


def test_they_are_all_except_developer_routes() -> None:
    assert {*EXTRAS} == project()["optional-dependencies"].keys() - {"fuzz", "bench", "dev", "docs"}


def test_the_dockerfile_and_the_makefile_name_the_same() -> None:
    comment = re.sub(r"\n# ", " ", TEXT)
    assert f"with the extras {', '.join(EXTRAS[:-1])} and {EXTRAS[-1]}" in comment
    recipes = {
        target: re.findall(r"--extra (\w+)", recipe)
        for target, recipe in re.findall(r"^(lock|lowest): .*\n((?:\t.*\n)+)", MAKE, re.MULTILINE)
    }
    assert recipes["lock"][: len(EXTRAS)] == EXTRAS
    assert recipes["lowest"] == [*EXTRAS, "bench"]


def test_the_image_has_no_bench() -> None:
    assert not {requirement.name for requirement in locked("image")} & {"numpy", "matplotlib"}
    assert "rm /opt/pd-router/bin/pd-bench" in TEXT


def test_the_port_is_the_routers_default() -> None:
    assert only(FINAL, "EXPOSE").text == str(Settings.model_fields["port"].default)


def test_copied_files_exist_in_the_build_context() -> None:
    sources = copied(BUILD)
    assert set(copied(STAGES["gate-build"])) == {*sources, "benchmarks"}
    assert set(sources) >= {"pyproject.toml", "router", project()["readme"]}
    assert set(sources) >= set(project()["license-files"])
    for source in (*sources, "benchmarks"):
        assert (ROOT / source).exists(), source
        assert is_in_context(source), source
    assert is_in_context("router/py.typed")
    assert is_in_context("benchmarks/gate/inputs/tokenizer.txt")
    for name in ("image", "gate", "aiperf", "build"):
        assert is_in_context(f"requirements/{name}.txt")


@pytest.mark.parametrize(
    "path",
    [
        *(".git/config", ".env", ".venv/bin/python", "tests/deploy", "router/core/__pycache__"),
        *("x.pem", "benchmarks/results/relay.json"),
    ],
)
def test_nothing_else_is_in_the_context(path: str) -> None:
    assert not is_in_context(path)


def test_the_router_is_compiled() -> None:
    [build] = [one.text for one in BUILD if one.name == "RUN" and "pip wheel" in one.text]
    assert "PD_ROUTER_COMPILE=${COMPILE}" in build
    assert "COMPILE=1" in [one.text for one in BUILD if one.name == "ARG"]
    # Of this checkout, perhaps for another interpreter: the image's are built in it.
    assert not is_in_context("router/core/facts.cpython-311-x86_64-linux-gnu.so")


def test_holds_no_secret() -> None:
    every = [one for stage in STAGES.values() for one in stage]
    declared = " ".join(one.text for one in every if one.name in {"ARG", "ENV"})
    assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD", declared, re.IGNORECASE)
    assert not [one for one in every if one.name == "ADD"]
