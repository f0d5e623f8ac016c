"""TLS and mutual TLS, with certificates made in the test: on the listeners, and towards engines."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from router.certificates import engine_tls, server_tls
from tests.net.client import Client, Truncated, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, OK, STREAM, completion, token


class Folder:
    """A CA, and the files that it has issued certificates into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ca = trustme.CA()
        self.ca_file = path / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, name: str, ca: trustme.CA | None = None) -> tuple[Path, Path]:
        """A new certificate for 127.0.0.1 and its key, in place of the last of this name."""
        issued = (ca or self.ca).issue_cert("127.0.0.1")
        chain, key = self.path / f"{name}.pem", self.path / f"{name}-key.pem"
        for path, blobs in ((key, [issued.private_key_pem]), (chain, issued.cert_chain_pems)):
            other = path.with_suffix(".new")
            other.write_bytes(b"".join(blob.bytes() for blob in blobs))
            other.replace(path)
        return chain, key

    def client(self, *, own: bool = False) -> ssl.SSLContext:
        """A client context that trusts this CA, optionally with its own certificate."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if own:
            context.load_cert_chain(*self.issue("client"))
        return context


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def connect(router: Running, tls: ssl.SSLContext) -> Client:
    """A new connection."""
    client = await Client.open(router.port, tls=tls)
    router.clients.append(client)
    return client


async def is_served(router: Running, tls: ssl.SSLContext) -> bool:
    """Whether a client gets an answer. With TLS 1.3 it learns only then that it is refused."""
    try:
        client = await connect(router, tls)
        return (await client.ask(COMPLETIONS, completion())).status == 200
    except (OSError, Truncated):
        return False


def serial(client: Client) -> str:
    """That of the certificate which the router shows."""
    return str(client.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])


async def serving(harness: Harness, folder: Folder, **flags: Any) -> Running:
    chain, key = folder.issue("router")
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    return await harness.router(engine, tls_cert_file=chain, tls_key_file=key, **flags)


async def streaming(
    harness: Harness, folder: Folder
) -> tuple[ScriptedEngine, Running, Client, Call]:
    """A client whose stream over TLS has begun."""
    chain, key = folder.issue("router")
    engine, router = await harness.single(tls_cert_file=chain, tls_key_file=key)
    client = await connect(router, folder.client())
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    return engine, router, client, call


# Clients.


async def test_a_stream_goes_over_tls_as_it_does_without(harness: Harness, folder: Folder) -> None:
    engine, _, client, call = await streaming(harness, folder)
    answer = await (await client.begin()).until(token("a"))
    call.end(token("b"), DONE)
    await answer.rest()
    assert answer.body == token("a") + token("b") + DONE
    engine.answer_all(lambda call: call.send(OK))
    large = completion("x" * 300_000)
    assert (await client.ask(COMPLETIONS, large)).status == 200  # on the same connection
    version = client.writer.get_extra_info("ssl_object").version()
    assert version in ("TLSv1.2", "TLSv1.3")


async def test_a_disconnect_over_tls_ends_the_engines_work(
    harness: Harness, folder: Folder
) -> None:
    _, router, client, call = await streaming(harness, folder)
    await client.begin()
    client.leave()
    assert (await router.record()).outcome == "client_left"
    await call.left()


async def test_a_client_without_tls_gets_no_answer_and_does_no_harm(
    harness: Harness, folder: Folder
) -> None:
    router = await serving(harness, folder)
    plain = await router.send(COMPLETIONS, completion())
    assert b"HTTP" not in await plain.ended()
    client = await connect(router, folder.client())
    assert (await client.ask(COMPLETIONS, completion())).status == 200


async def test_a_certificate_is_read_again_when_it_changes(
    harness: Harness, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    router = await serving(harness, folder)
    caplog.set_level(logging.INFO, "router.net.watched_files")
    before = await connect(router, folder.client())
    folder.issue("router")
    assert router.router.clients.tls is not None
    router.router.clients.tls.refresh()
    after = await connect(router, folder.client())
    assert serial(before) != serial(after)
    for client in (before, after):  # the old connection continues
        assert (await client.ask(COMPLETIONS, completion())).status == 200
    assert caplog.messages == ["--tls-cert-file: the certificates were read again"]


async def test_an_invalid_certificate_is_logged_and_the_previous_one_kept(
    harness: Harness, folder: Folder, complaints: list[str]
) -> None:
    router = await serving(harness, folder)
    before = await connect(router, folder.client())
    assert router.router.clients.tls is not None
    (folder.path / "router-key.pem").write_bytes(trustme.CA().private_key_pem.bytes())
    router.router.clients.tls.refresh()
    router.router.clients.tls.refresh()
    after = await connect(router, folder.client())
    assert serial(before) == serial(after)
    [line] = complaints
    assert "is not that of the certificate" in line
    assert line.endswith("keeping the previous certificates")
    complaints.clear()


async def test_mutual_tls_wants_a_certificate(harness: Harness, folder: Folder) -> None:
    router = await serving(harness, folder, tls_client_ca_file=folder.ca_file)
    known = await connect(router, folder.client(own=True))
    assert (await known.ask(COMPLETIONS, completion())).status == 200
    strange = folder.client()
    strange.load_cert_chain(*folder.issue("stranger", trustme.CA()))
    assert not await is_served(router, folder.client())
    assert not await is_served(router, strange)
    assert len(await router.records(1)) == 1


async def test_new_ca_refuses_old_clients(harness: Harness, folder: Folder) -> None:
    router = await serving(harness, folder, tls_client_ca_file=folder.ca_file)
    old = folder.client(own=True)
    assert (await (await connect(router, old)).ask(COMPLETIONS, completion())).status == 200
    trusted = folder.client()
    trustme.CA().cert_pem.write_to_path(str(folder.ca_file))
    assert router.router.clients.tls is not None
    router.router.clients.tls.refresh()
    trusted.load_cert_chain(folder.path / "client.pem", folder.path / "client-key.pem")
    assert not await is_served(router, trusted)


async def test_admin_listener_has_own_certificates(harness: Harness, folder: Folder) -> None:
    chain, key = folder.issue("admin")
    router = await harness.router(
        await harness.engine(),
        admin_port=0,
        admin_tls_cert_file=chain,
        admin_tls_key_file=key,
        admin_tls_client_ca_file=folder.ca_file,
    )
    assert (await (await router.client()).get("/ready")).status == 200  # without TLS
    assert router.server.admin is not None
    port = router.server.admin.socket.getsockname()[1]
    client = await Client.open(port, tls=folder.client(own=True))
    router.clients.append(client)
    assert (await client.get("/metrics")).status == 200


async def test_a_missing_handshake_delays_no_other_connection(
    harness: Harness, folder: Folder
) -> None:
    router = await serving(harness, folder)
    silent = [await router.client() for _ in range(20)]
    client = await connect(router, folder.client())
    assert (await client.ask(COMPLETIONS, completion())).status == 200
    for each in silent:
        each.leave()
    await eventually(lambda: not router.server.servers[0]._connecting)  # type: ignore[attr-defined]


# Engines.


async def engine_with(harness: Harness, folder: Folder) -> ScriptedEngine:
    """An https engine that wants a certificate of the CA."""
    engine = ScriptedEngine(server_tls(*folder.issue("engine"), folder.ca_file))
    harness.engines.append(engine)
    await engine.listen()
    engine.answer_all(lambda call: call.send(OK))
    return engine


async def test_engine_gets_the_routers_certificate(harness: Harness, folder: Folder) -> None:
    engine = await engine_with(harness, folder)
    chain, key = folder.issue("router")
    router = await harness.router(  # it is up: probes show the certificate too
        engine, engine_ca_file=folder.ca_file, engine_cert_file=chain, engine_key_file=key
    )
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_without_one_it_is_never_up(harness: Harness, folder: Folder) -> None:
    engine = await engine_with(harness, folder)
    router = await harness.router(engine, ready=False, engine_ca_file=folder.ca_file)
    assert (await router.ask(COMPLETIONS, completion())).status == 503


async def test_engines_new_ca_is_used_next(harness: Harness, folder: Folder) -> None:
    engine = await engine_with(harness, folder)
    chain, key = folder.issue("router")
    ca_file = folder.path / "engines-ca.pem"
    ca_file.write_bytes(folder.ca.cert_pem.bytes())
    router = await harness.router(
        engine,
        engine_ca_file=ca_file,
        engine_cert_file=chain,
        engine_key_file=key,
        max_idle_connections=0,
    )
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    trustme.CA().cert_pem.write_to_path(str(ca_file))
    router.router.connections.tls.refresh()
    answer = await router.ask(COMPLETIONS, completion())
    assert (answer.status, answer.error["message"]) == (502, "The engine cannot be reached.")
    assert str(ca_file).encode() not in answer.body


async def test_another_ca_for_engines_counts_for_siblings_too(
    harness: Harness, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.net.replicas.stream.RETRY_SECONDS", 0.01)
    engine = await harness.engine()
    chain, key = folder.issue("admin")
    told = await harness.router(
        engine,
        admin_port=0,
        admin_tls_cert_file=chain,
        admin_tls_key_file=key,
        peers=["http://127.0.0.1:9"],
    )
    assert told.server.admin is not None
    port = told.server.admin.socket.getsockname()[1]
    ca_file = folder.path / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca_file))
    telling = await harness.router(
        engine, admin_port=0, peers=[f"https://127.0.0.1:{port}"], engine_ca_file=ca_file
    )
    assert telling.router.replicas is not None
    shown = telling.router.replicas.siblings.shown
    await eventually(lambda: "cannot be reached" in str(shown()))
    ca_file.write_bytes(folder.ca.cert_pem.bytes())
    telling.router.connections.tls.refresh()
    assert told.router.replicas is not None
    await eventually(lambda: bool(told.router.replicas.siblings.shown()["heard"]))  # type: ignore[union-attr]


# Files.


def test_an_encrypted_key_is_refused_at_once(folder: Folder) -> None:
    chain, key = folder.issue("router")
    plain = key.read_bytes()
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415

    locked = form.load_pem_private_key(plain, None).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret")
    )
    key.write_bytes(locked)
    with pytest.raises(ValueError, match="not encrypted"):
        server_tls(chain, key)


@pytest.mark.parametrize("content", [b"", b"no certificate"])
def test_files_without_certificates_are_named(folder: Folder, content: bytes) -> None:
    chain, key = folder.issue("router")
    empty = folder.path / "empty.pem"
    empty.write_bytes(content)
    wrong: list[Callable[[], ssl.SSLContext]] = [
        lambda: server_tls(empty, key),
        lambda: server_tls(chain, empty),
        lambda: server_tls(chain, key, empty),
        lambda: engine_tls(empty),
    ]
    for make in wrong:
        with pytest.raises(ValueError, match=r"empty\.pem"):
            make()
    with pytest.raises(ValueError, match="cannot read"):
        engine_tls(folder.path / "gone.pem")
    with pytest.raises(ValueError, match="cannot read"):
        server_tls(folder.path / "gone.pem", key)


def test_the_systems_cas_are_the_default_for_engines() -> None:
    assert engine_tls(None).verify_mode is ssl.CERT_REQUIRED
