"""Certificates that are exchanged while a router runs, in one process and in several: it notices by
itself, on both listeners and towards engines."""

import ssl
from pathlib import Path

import pytest

from router.certificates import server_tls
from tests.e2e.process import Process, serving
from tests.e2e.worker_processes import served_by, until
from tests.net.client import Client, Truncated
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, OK, completion
from tests.web.test_tls import Folder, serial

WORKERS = "2"

CONNECTIONS = 16
"""In a row: the kernel spreads them over the workers, and each of these has to have had one."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def shown(process: Process, port: int, tls: ssl.SSLContext) -> dict[int, str]:
    """The serial numbers of the certificates that new connections are shown, by the id of the
    router's process that shows it."""
    found = {}
    for _ in range(CONNECTIONS):
        client = await Client.open(port, tls=tls)
        found[served_by(process, client)] = serial(client)
        client.leave()
    return found


async def answer(port: int, tls: ssl.SSLContext) -> int:
    """The status of /metrics on a new connection; 0 if that is refused."""
    client = None
    try:
        client = await Client.open(port, tls=tls)
        return (await client.get("/metrics")).status
    except (OSError, Truncated):  # with TLS 1.3 a client learns only then that it is refused
        return 0
    finally:
        if client is not None:
            client.leave()


async def ports(process: Process) -> tuple[int, int]:
    """Those of the listeners for clients and operators."""
    line = await process.until("listening")
    return process.port, int(line["admin_url"].rpartition(":")[2])


def listeners(folder: Folder) -> list[str]:
    """The flags of two listeners with TLS; operators need a certificate."""
    chain, key = folder.issue("router")
    admin_chain, admin_key = folder.issue("admin")
    return [
        *("--tls-cert-file", str(chain), "--tls-key-file", str(key)),
        *("--admin-port", "0", "--admin-tls-cert-file", str(admin_chain)),
        *("--admin-tls-key-file", str(admin_key)),
        *("--admin-tls-client-ca-file", str(folder.ca_file)),
    ]


async def test_listeners_show_the_new_certificates(harness: Harness, folder: Folder) -> None:
    engine = await harness.engine()
    flags = listeners(folder)
    client = folder.client(own=True)
    async with serving("--decode", engine.url, "--workers", WORKERS, *flags) as process:
        for port, name in zip(await ports(process), ("router", "admin"), strict=True):
            [before] = {*(await shown(process, port, client)).values()}
            folder.issue(name)

            async def is_new(port: int = port, before: str = before) -> bool:
                found = await shown(process, port, client)
                return len(found) == int(WORKERS) and before not in found.values()

            await until(is_new, f"{name}: still the old certificate")


async def test_operators_without_a_certificate_of_the_ca_are_refused(
    harness: Harness, folder: Folder
) -> None:
    engine = await harness.engine()
    flags = listeners(folder)
    known = folder.client(own=True)
    async with serving("--decode", engine.url, "--workers", WORKERS, *flags) as process:
        _, port = await ports(process)
        assert await answer(port, known) == 200
        assert await answer(port, folder.client()) == 0


async def test_engines_are_shown_the_new_certificate(harness: Harness, folder: Folder) -> None:
    engine = ScriptedEngine(server_tls(*folder.issue("engine"), folder.ca_file))
    harness.engines.append(engine)
    await engine.listen()
    seen: list[str] = []

    def on_call(call: Call) -> None:
        certificate = call.connection.transport.get_extra_info("ssl_object").getpeercert()
        seen.append(certificate["serialNumber"])
        call.send(OK)

    engine.answer_all(on_call)
    chain, key = folder.issue("router")
    flags = (
        *("--decode", engine.url, "--workers", WORKERS, "--max-idle-connections", "0"),
        *("--engine-ca-file", str(folder.ca_file)),
        *("--engine-cert-file", str(chain), "--engine-key-file", str(key)),
    )
    async with serving(*flags) as process:
        await process.ready()

        async def ask() -> dict[int, str]:
            """The certificates that the engine is shown for requests of new clients, by the id of
            the router's process that asks it."""
            found = {}
            for _ in range(CONNECTIONS):
                client = await process.client()
                assert (await client.ask(COMPLETIONS, completion())).status == 200
                found[served_by(process, client)] = seen[-1]
                client.leave()
            return found

        [before] = {*(await ask()).values()}
        folder.issue("router")

        async def is_new() -> bool:
            found = await ask()
            return len(found) == int(WORKERS) and before not in found.values()

        await until(is_new, "engines are still shown the old certificate")
