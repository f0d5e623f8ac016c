"""kubectl as a process: what it gets, and what comes back."""

from pathlib import Path

import pytest

from benchmarks.gate.cluster.kubectl import ClusterTrouble, Kubectl


def test_it_gets_its_arguments_and_input(program: Path) -> None:
    program.write_text('#!/bin/sh\necho "$*"; cat\n')
    kubectl = Kubectl("east")
    assert kubectl.run("apply", "--filename=-", given="objects") == (
        "--context east apply --filename=-\nobjects"
    )


@pytest.mark.parametrize("stream", [1, 2])
def test_a_failed_command_is_an_error_with_its_last_line(program: Path, stream: int) -> None:
    program.write_text(f"#!/bin/sh\nprintf 'one\\ntwo\\n' >&{stream}; exit 1\n")
    with pytest.raises(ClusterTrouble, match=r"^kubectl get: two$"):
        Kubectl().items("pods")


def test_a_missing_right_and_an_unknown_one_differ(program: Path) -> None:
    program.write_text("#!/bin/sh\n[ $4 = jobs ] && { echo no; exit 1; } || echo yes\n")
    rights = [("create", "jobs"), ("list", "nodes", "--all-namespaces")]
    assert Kubectl().forbidden(rights) == ["create jobs"]
    program.write_text("#!/bin/sh\necho Unauthorized >&2; exit 1\n")
    with pytest.raises(ClusterTrouble, match="log in to the cluster again"):
        Kubectl().forbidden(rights)


def test_a_missing_kubectl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterTrouble, match="there is no kubectl: install it"):
        Kubectl()
