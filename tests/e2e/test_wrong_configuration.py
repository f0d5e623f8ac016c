"""Discovery that can never work ends the router with status 2 and one line, also in a worker."""

from pathlib import Path

import orjson
import pytest

from tests import forked

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: none, user: none}}]
clusters: []
users: []
"""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_kubeconfig_that_names_no_cluster(tmp_path: Path, workers: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    status, _, said = await forked.ended(
        *("pd-router", "serve", "--host", "127.0.0.1", "--port", "0"),
        *("--k8s-decode-selector", "app=vllm", "--k8s-config-file", str(file)),
        *("--workers", workers, "--log-format", "json"),
    )
    assert status == 2
    records = [orjson.loads(line) for line in said.splitlines()]
    [error] = [record for record in records if record["level"] == "error"]
    assert error["message"].startswith(
        "discovery by kubernetes: cannot log in to the Kubernetes API"
    )
    assert "--k8s-config-file" in error["message"]
    assert not [record for record in records if "exception" in record]
