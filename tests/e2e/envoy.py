"""A real Envoy process, configured like deploy/envoy, except for ports."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.forked import SECONDS
from tests.net.client import Client
from tests.ports import own_port

__all__ = ["Envoy", "envoy"]

CONFIG = Path(__file__).parents[2] / "deploy" / "envoy" / "endpoint-picker.yaml"
BINARY = Path(sys.executable).parent / "envoy"


class Envoy:
    """The process, and its port for clients."""

    def __init__(self, port: int, process: asyncio.subprocess.Process) -> None:
        self.port = port
        self._process = process
        self._clients: list[Client] = []

    async def client(self) -> Client:
        """A new connection."""
        client = await Client.open(self.port)
        self._clients.append(client)
        return client

    async def until_listening(self) -> None:
        """Wait until it takes connections."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    (await self.client()).leave()
                    return
                except OSError:
                    await asyncio.sleep(0.05)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """End it, and its clients."""
        for client in self._clients:
            client.leave()
        self.kill()
        await self._process.wait()


def configured(
    port: int, engines: Sequence[str], picker: int, modes: dict[str, str]
) -> dict[str, Any]:
    """The shipped configuration with these places and body modes."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    resources = config["static_resources"]
    listener = resources["listeners"][0]
    listener["address"]["socket_address"]["port_value"] = port
    http = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    http[0]["typed_config"]["processing_mode"] |= modes
    http[0]["typed_config"]["message_timeout"] = f"{SECONDS:g}s"  # the machine may be busy
    clusters = {each["name"]: each for each in resources["clusters"]}
    for name, ports in (("engines", [int(e.rpartition(":")[2]) for e in engines]),
                        ("picker", [picker])):  # fmt: skip
        clusters[name]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {
                "endpoint": {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": each}}
                }
            }
            for each in ports
        ]
    return config


@asynccontextmanager
async def envoy(
    folder: Path, engines: Sequence[str], picker: int, **modes: str
) -> AsyncIterator[Envoy]:
    """Run it until the block ends."""
    port = own_port()
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(configured(port, engines, picker, modes)))
    flags = ("--use-dynamic-base-id", "--disable-hot-restart", "--concurrency", "1")
    process = await asyncio.create_subprocess_exec(
        BINARY, "-c", str(path), *flags, "-l", "warning", stderr=asyncio.subprocess.DEVNULL
    )
    running = Envoy(port, process)
    try:
        await running.until_listening()
        yield running
    finally:
        await running.close()
