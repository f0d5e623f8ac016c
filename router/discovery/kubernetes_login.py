"""Access to the API server, by the pod's own ServiceAccount or by a kubeconfig file.

kubernetes-asyncio reads both, with everything that kubeconfig files may contain (certificates,
tokens, plugins of cloud providers). The session that uses the result is the router's own.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from router.discovery.api_server import ANSWER_SECONDS, ApiFailure, ApiServer
from router.discovery.source import WrongConfiguration

__all__ = ["SERVICE_ACCOUNT", "kubernetes_login"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token, its namespace and the API server's CA."""

UNREADABLE = (AttributeError, KeyError, OSError, TypeError, ValueError, yaml.YAMLError)
"""Errors that the library raises, besides its own, for an invalid kubeconfig file."""

Load = Callable[[], Awaitable[tuple[Any, str]]]
"""Reads the configuration: kubernetes-asyncio's `Configuration`, and the namespace in it."""


def kubernetes_login(
    config_file: Path | None, namespace: str | None, account: Path = SERVICE_ACCOUNT
) -> Callable[[], Awaitable[ApiServer]]:
    """Returns a function that logs in: with `config_file`, or else with the ServiceAccount of the
    router's pod, or else as kubectl does. `namespace` takes precedence over theirs.

    Raises ImportError, whose message names the extra to install.
    """
    try:
        from kubernetes_asyncio import client, config  # noqa: PLC0415 - an extra: 37 MiB of classes
    except ImportError as error:
        raise ImportError(
            f"discovery by Kubernetes needs {error.name}: pip install 'pd-router[kubernetes]'"
        ) from None

    async def load() -> tuple[Any, str]:
        configuration = client.Configuration()
        try:
            if config_file is None and (account / "token").exists():
                config.load_incluster_config(
                    configuration,
                    token_filename=str(account / "token"),
                    cert_filename=str(account / "ca.crt"),
                )
                return configuration, (account / "namespace").read_text().strip()
            loader = await config.load_kube_config(
                None if config_file is None else str(config_file),
                client_configuration=configuration,
                persist_config=False,
            )
            context = loader.current_context["context"]
            return configuration, str(context.get("namespace") or "default")
        except (config.ConfigException, *UNREADABLE) as error:
            raise WrongConfiguration(
                f"cannot log in to the Kubernetes API: {error}; mount the pod's ServiceAccount "
                "token, or give a kubeconfig file by --k8s-config-file"
            ) from None

    return partial(_log_in, load, namespace, config.ConfigException)


async def _log_in(load: Load, namespace: str | None, failure: type[Exception]) -> ApiServer:
    configuration, named = await load()
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=_tls(configuration)),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS),
    )
    options: dict[str, Any] = {}
    if configuration.proxy:
        options["proxy"] = configuration.proxy
    if configuration.tls_server_name:
        options["server_hostname"] = configuration.tls_server_name
    credentials = _Credentials(configuration, load, failure)
    return ApiServer(configuration.host, namespace or named, session, credentials, options)


def _tls(configuration: Any) -> ssl.SSLContext:
    """How the API server's certificate is verified, with the router's own certificate if it has
    one."""
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        # Like Go's clients: the CAs of many clusters lack fields that newer Python versions
        # require.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except OSError as error:  # includes SSLError
        raise WrongConfiguration(f"the Kubernetes API's certificates: {error}") from None
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Credentials:
    """The bearer token of a configuration; that of a ServiceAccount is read again each minute.

    `failure` is the exception that the library raises if it cannot be read.
    """

    def __init__(self, configuration: Any, load: Load, failure: type[Exception]) -> None:
        self._configuration = configuration
        self._load = load
        self._failure = failure

    async def headers(self) -> Mapping[str, str]:
        """See `Credentials`."""
        try:
            found = await self._configuration.auth_settings()
        except self._failure as error:
            raise ApiFailure("unauthorized", f"the router has no token: {error}") from None
        return {each["key"]: each["value"].strip() for each in found.values()}

    async def renew(self) -> None:
        """See `Credentials`."""
        try:
            self._configuration, _ = await self._load()
        except WrongConfiguration as error:
            raise ApiFailure("unauthorized", str(error)) from None
