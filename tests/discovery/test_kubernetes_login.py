"""The way to the API server, by the library that reads kubeconfig files and ServiceAccounts."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.discovery.api_server import ApiFailure, ApiServer
from router.discovery.kubernetes_login import kubernetes_login
from router.discovery.source import WrongConfiguration
from tests.discovery.api import Api

CERTIFICATE = Path(__file__).parent.parent / "commands" / "tls" / "certificate.pem"


def kubeconfig(folder: Path, url: str, *, namespace: str | None = "default", **user: Any) -> Path:
    """A file like that of kubectl."""
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "contexts": [{"name": "here", "context": context}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


@contextlib.asynccontextmanager
async def logged_in(login: Any):
    """To be closed."""
    server: ApiServer = await login()
    try:
        yield server
    finally:
        await server.close()


async def test_a_kubeconfig_files_token_is_sent(api: Api, tmp_path: Path) -> None:
    api.token = "t1"
    login = kubernetes_login(kubeconfig(tmp_path, api.url, token="t1"), None)
    async with logged_in(login) as server:
        found = await server.list_pods("role=decode")
    assert [pod.name for pod in found.pods] == ["a", "b"]


async def test_namespace_is_the_contexts_by_default(api: Api, tmp_path: Path) -> None:
    for own, given, asked in (("x", None, "x"), ("x", "y", "y"), (None, None, "default")):
        login = kubernetes_login(kubeconfig(tmp_path, api.url, namespace=own), given)
        async with logged_in(login) as server:
            assert server.namespace == asked


async def test_a_token_that_is_refused_is_read_again(api: Api, tmp_path: Path) -> None:
    api.token = "t2"
    login = kubernetes_login(kubeconfig(tmp_path, api.url, token="t1"), None)
    async with logged_in(login) as server:
        kubeconfig(tmp_path, api.url, token="t2")
        with pytest.raises(ApiFailure, match="401"):
            await server.list_pods("role=decode")
        assert await server.list_pods("role=decode")


async def test_a_plugin_with_external_tokens_is_used(api: Api, tmp_path: Path) -> None:
    """As those of cloud providers."""
    api.token = "from-a-plugin"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\necho '"
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
        ' "status": {"token": "from-a-plugin"}}'
        "'\n"
    )
    plugin.chmod(0o755)
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    login = kubernetes_login(kubeconfig(tmp_path, api.url, exec=exec_), None)
    async with logged_in(login) as server:
        assert await server.list_pods("role=decode")


class TestInAPod:
    @pytest.fixture
    def account(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What Kubernetes mounts."""
        (tmp_path / "token").write_text("t1")
        (tmp_path / "namespace").write_text("llm")
        (tmp_path / "ca.crt").write_bytes(CERTIFICATE.read_bytes())
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        return tmp_path

    async def test_the_service_account_is_used(self, account: Path) -> None:
        async with logged_in(kubernetes_login(None, None, account)) as server:
            assert server.url == "https://[fd00::1]:443/api/v1/namespaces/llm/pods"
            assert await server.credentials.headers() == {"authorization": "Bearer t1"}

    async def test_a_token_that_kubernetes_renewed_is_read_again(self, account: Path) -> None:
        async with logged_in(kubernetes_login(None, None, account)) as server:
            (account / "token").write_text("t2\n")
            await server.credentials.renew()
            assert await server.credentials.headers() == {"authorization": "Bearer t2"}

    async def test_a_token_that_is_gone_is_a_failure_and_no_end(self, account: Path) -> None:
        async with logged_in(kubernetes_login(None, None, account)) as server:
            (account / "token").write_text("")
            with pytest.raises(ApiFailure, match="mount the pod's ServiceAccount token"):
                await server.credentials.renew()

    async def test_a_ca_that_is_none_is_a_wrong_configuration(self, account: Path) -> None:
        (account / "ca.crt").write_text("x")
        with pytest.raises(WrongConfiguration, match="certificates"):
            await kubernetes_login(None, None, account)()


@pytest.mark.parametrize("text", ["", "[]", "{", "a: b", "clusters: 1"])
async def test_other_file_is_a_wrong_configuration(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(WrongConfiguration, match="cannot log in to the Kubernetes API"):
        await kubernetes_login(path, None)()


async def test_a_server_that_does_not_speak_tls_is_named(api: Api, tmp_path: Path) -> None:
    url = api.url.replace("http:", "https:")
    async with logged_in(kubernetes_login(kubeconfig(tmp_path, url), None)) as server:
        with pytest.raises(ApiFailure) as caught:
            await asyncio.wait_for(server.list_pods("a=b"), 60)
    assert caught.value.kind in ("certificate", "unreachable")
